"""Settings of the server that clients connect to."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from setting import SERVING_MODES, Setting, check_fields

NO_FILE = "none"
_Server = partial(Setting, kind="output", modes=SERVING_MODES)


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of an address. Raises ValueError."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"bind: wanted HOST:PORT such as 127.0.0.1:7001, got {text!r}")
    return host, int(port)


def is_local(host: str) -> bool:
    """Whether an address is reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True)
class ServerConfig:
    """Where clients connect, and what each may do."""

    bind: Annotated[
        str,
        _Server("Address at which clients connect; another one than 127.0.0.1 needs --token_file.", check=parse_address),
    ] = "127.0.0.1:7001"
    token_file: Annotated[str, _Server("File with the token that clients must send; none: no token.")] = NO_FILE
    tls_cert: Annotated[str, _Server("File with the certificate of TLS (PEM); none: no TLS.")] = NO_FILE
    tls_key: Annotated[str, _Server("File with the certificate's key (PEM).")] = NO_FILE
    max_clients: Annotated[
        int,
        _Server("Connections at once; further clients are asked to come again.", "a whole number of connections >= 1", 1, 1e5),
    ] = 256
    least_free_megabytes: Annotated[
        float,
        _Server(
            "Free memory below which further clients are asked to come again, in megabytes; 0: no limit.",
            "a number of megabytes >= 0",
            0,
            1e7,
        ),
    ] = 200.0
    client_timeout: Annotated[
        float,
        _Server("Seconds without a message after which a client is gone.", "a number of seconds >= 0.1", 0.1, 1e6),
    ] = 60.0
    client_seconds: Annotated[
        float,
        _Server(
            "Seconds after which a client is asked to connect again at an episode's end, so that a load balancer can divide "
            "clients anew; 0: never.",
            "a number of seconds >= 0",
            0,
            1e9,
        ),
    ] = 0.0
    client_rate: Annotated[
        float,
        _Server("Messages of a client in a second, each of its seats counted by itself; 0: no limit.", "a number >= 0", 0, 1e9),
    ] = 0.0
    client_megabytes: Annotated[
        float, _Server("Largest frame of a client, in megabytes.", "a number of megabytes > 0", 1e-3, 1e4)
    ] = 16.0

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return parse_address(self.bind)

    @property
    def url(self) -> str:
        """The URL that clients connect to."""
        host, port = self.address
        return f"{'wss' if self.has_tls else 'ws'}://{f'[{host}]' if ':' in host else host}:{port}"

    @property
    def most_bytes(self) -> int:
        """Bytes of a client's largest frame."""
        return int(1e6 * self.client_megabytes)

    @property
    def has_tls(self) -> bool:
        return self.tls_cert != NO_FILE

    def check(self) -> None:
        """Raise ValueError in one line if clients cannot know the port, the files cannot be used, or a token is missing."""
        if self.address[1] == 0:
            raise ValueError(f"bind: wanted a port that clients can know, 1 to 65535, got {self.bind}")
        self.read_token()
        if (self.tls_cert == NO_FILE) != (self.tls_key == NO_FILE):
            raise ValueError("tls_key: wanted --tls_cert and --tls_key together, got one of them")
        for name in ("tls_cert", "tls_key"):
            if getattr(self, name) != NO_FILE:
                _read(name, getattr(self, name))
        if self.has_tls:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.tls_cert, self.tls_key)
            except ssl.SSLError as error:
                got = f"{self.tls_cert} and {self.tls_key} ({error})"
                raise ValueError(f"tls_cert: wanted a certificate and its key as PEM, got {got}") from None
        if self.token_file == NO_FILE and not is_local(self.address[0]):
            raise ValueError(
                f"token_file: wanted a file with a token for an address that others reach, got none with {self.bind}"
            )

    def read_token(self) -> str:
        """The token; empty for none. Raises ValueError in one line."""
        if self.token_file == NO_FILE:
            return ""
        if token := _read("token_file", self.token_file).strip():
            return token
        raise ValueError(f"token_file: wanted a file with a token, got {self.token_file}, which is empty")


def _read(name: str, path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, ValueError) as error:
        raise ValueError(f"{name}: wanted a file that can be read, got {path} ({error})") from None
