"""Frames of the protocol: JSON or MessagePack on the wire, plain objects here. Nothing that is read is trusted."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from wrappers.space_json import DTYPES

PROTOCOL = 1
MOST_MESSAGES = 1024
"""Messages in one frame."""
LARGEST = float(np.finfo(np.float32).max)
"""Rewards and observations become float32."""

Message = Mapping[str, Any]


class ProtocolError(Exception):
    """A client broke the protocol. Its one line goes to the client.

    code: one of docs/protocol.md. seat: the client's number of the seat that the error belongs to, None for none.
    """

    def __init__(self, code: str, message: str, seat: int | None = None) -> None:
        super().__init__(message)
        self.code, self.seat = code, seat

    def to_message(self) -> dict[str, Any]:
        """The message that tells the client."""
        of_seat = {} if self.seat is None else {"seat": self.seat}
        return {"type": "error", "code": self.code, "message": str(self), **of_seat}


def pack(messages: Any, *, binary: bool) -> str | bytes:
    """A frame of a message or a list of messages: MessagePack if `binary`, otherwise JSON."""
    if binary:
        import msgpack  # optional, as all packages of a server

        packed: bytes = msgpack.packb(messages)
        return packed
    return json.dumps(messages, separators=(",", ":"), allow_nan=False)


def unpack(frame: str | bytes) -> Any:
    """The content of a frame: bytes are MessagePack, a text is JSON. Raises ProtocolError."""
    try:
        if isinstance(frame, bytes):
            import msgpack

            return msgpack.unpackb(frame, strict_map_key=True)
        return json.loads(frame, parse_constant=_no_constant)
    # Too deep a nesting is a RecursionError in JSON and a StackError, which is a ValueError, in MessagePack.
    except (ValueError, RecursionError, TypeError, OverflowError, MemoryError) as error:
        form = "MessagePack" if isinstance(frame, bytes) else "JSON"
        detail = " ".join(str(error).split())[:100]
        raise ProtocolError("message", f"frame: wanted {form}, got {len(frame)} bytes that are none ({detail})") from None


def messages_of(frame: str | bytes) -> list[Message]:
    """The messages in a frame. Raises ProtocolError."""
    content = unpack(frame)
    messages = content if isinstance(content, list) else [content]
    if len(messages) > MOST_MESSAGES:
        raise ProtocolError("message", f"frame: wanted at most {MOST_MESSAGES} messages, got {len(messages)}")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            raise ProtocolError("message", f"frame: wanted an object with a type, got {shown(message)}")
    return messages


def shown(value: Any) -> str:
    """A value in a few characters, for a line."""
    try:
        text = repr(value)
    except RecursionError:
        text = type(value).__name__
    return text if len(text) <= 80 else f"{text[:77]}..."


def integer(message: Message, name: str, default: int | None = None, *, least: int = 0, most: int = 2**31) -> int:
    """The field `name`, a whole number in a range. default: if it is not there. Raises ProtocolError."""
    value = message.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ProtocolError("message", f"{name}: wanted a whole number from {least} to {most}, got {shown(value)}")
    return value


def truth(message: Message, name: str, default: bool | None = None) -> bool:
    """The field `name`, true or false. default: if it is not there. Raises ProtocolError."""
    value = message.get(name, default)
    if isinstance(value, bool):
        return value
    raise ProtocolError("message", f"{name}: wanted true or false, got {shown(value)}")


def number(message: Message, name: str) -> float:
    """The field `name`, a number that is finite in float32. Raises ProtocolError."""
    value = message.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ProtocolError("message", f"{name}: wanted a number, got {shown(value)}")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not abs(result) <= LARGEST:
        raise ProtocolError("value", f"{name}: wanted a finite number of float32, got {shown(value)}")
    return result


def array(value: Any, shape: tuple[int, ...], name: str) -> np.ndarray:
    """An array of the wire with this shape, of any dtype of `DTYPES`. Raises ProtocolError.

    value: nested lists of numbers, or an object with dtype, shape and data.
    """
    if isinstance(value, dict):
        return _from_bytes(value, shape, name)
    try:
        made = np.asarray(value)
    except (ValueError, OverflowError, RecursionError):  # lists of different lengths, or too large numbers
        raise ProtocolError("value", f"{name}: wanted numbers of shape {list(shape)}, got {shown(value)}") from None
    if made.dtype.kind not in "biuf" or made.shape != shape:
        got = f"shape {list(made.shape)}" if made.dtype.kind in "biuf" else shown(value)
        raise ProtocolError("value", f"{name}: wanted numbers of shape {list(shape)}, got {got}")
    return made


def _from_bytes(value: Mapping[str, Any], shape: tuple[int, ...], name: str) -> np.ndarray:
    dtype, given, data = value.get("dtype"), value.get("shape"), value.get("data")
    if not isinstance(dtype, str) or dtype not in DTYPES or not isinstance(data, bytes):
        raise ProtocolError("value", f"{name}: wanted an array with dtype, shape and data, got {shown(value)}")
    if given != list(shape):
        raise ProtocolError("value", f"{name}: wanted numbers of shape {list(shape)}, got shape {shown(given)}")
    little = np.dtype(dtype).newbyteorder("<")
    if len(data) != math.prod(shape) * little.itemsize:
        wanted = math.prod(shape) * little.itemsize
        raise ProtocolError("value", f"{name}: wanted {wanted} bytes of {dtype} {list(shape)}, got {len(data)}")
    return np.frombuffer(data, little).reshape(shape)


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")
