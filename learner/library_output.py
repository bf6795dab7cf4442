"""A program that reads what libraries print from its standard input, and keeps each message once in a run's log.

`learner.console.apart_from_libraries` starts it. It outlives a crash, so the last words of the libraries are shown then. A line
and the indented lines that follow it are one message, so a traceback is one. Messages that differ in numbers count as equal. A
line that begins with `COMMAND` comes from the trainer: `log PATH` names the log, and `end` says that there was no crash.
"""

from __future__ import annotations

import os
import re
import select
import sys
import time
from collections import Counter
from pathlib import Path

from learner.stores.store import redacted

COMMAND = "\0"
TRACEBACK = "Traceback (most recent call last):"
MOST_MESSAGES = 1000  # different ones that are kept; the others would fill the disk
LONGEST_MESSAGE = 20_000  # characters
LAST_SECONDS = 2.0  # before a crash; later messages are its last words
NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")


class Messages:
    """Splits a stream into messages, and counts equal ones."""

    def __init__(self) -> None:
        self._rest = b""
        self._lines: list[str] = []
        self._counts: Counter[str] = Counter()

    def feed(self, data: bytes) -> list[str]:
        """Take the next bytes. Returns the messages that are complete and new, and the commands."""
        *lines, self._rest = re.split(rb"[\r\n]+", self._rest + data)
        found = []
        for line in (line.decode(errors="replace") for line in lines):
            ends_traceback = TRACEBACK in self._lines[:1] and len(self._lines) > 1
            if self._lines and (line[:1].isspace() or ends_traceback):
                self._lines.append(line)
                found += self._take() if not line[:1].isspace() else []
            else:
                found += self._take()
                self._lines = [line] if line.strip() else []
                found += self._take() if line.startswith(COMMAND) else []
        return found

    def flush(self) -> list[str]:
        """The rest, if it is new: no more lines of it are expected."""
        return [*(self.feed(b"\n") if self._rest else []), *self._take()]

    def repeated(self) -> list[str]:
        """A line about each message that came several times."""
        return [f"{count:,} times: {message.splitlines()[-1]}" for message, count in self._counts.items() if count > 1]

    def _take(self) -> list[str]:
        """The message of the present lines, if it is new. The next one begins."""
        message, self._lines = "\n".join(self._lines)[:LONGEST_MESSAGE], []
        if message.startswith(COMMAND):
            return [message]
        key = NUMBERS.sub("#", message)
        is_new = bool(message) and key not in self._counts and len(self._counts) < MOST_MESSAGES
        if is_new or key in self._counts:
            self._counts[key] += 1
        return [message] if is_new else []


class Keeper:
    """Keeps messages until it knows the log, and then writes them there."""

    def __init__(self) -> None:
        self._log: Path | None = None
        self._waiting: list[str] = []  # for the log
        self._last: list[tuple[float, str]] = []
        self.ended = False

    def keep(self, messages: list[str]) -> None:
        """Take messages and commands."""
        for message in messages:
            command, _, path = message.removeprefix(COMMAND).partition(" ")
            if not message.startswith(COMMAND):
                self._waiting.append(message)
                self._last = [*self._last, (time.monotonic(), message)][-100:]
            elif command == "log":
                self._log = Path(path)
            else:
                self.ended = True
        if self._log and self._waiting:
            try:
                with self._log.open("a", encoding="utf-8", errors="backslashreplace") as file:
                    for message in self._waiting:
                        file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} LIBRARY {redacted(message)}\n")
            except OSError:  # the disk is full, or the folder is gone
                return
            self._waiting = []

    def show(self) -> None:
        """Show messages that have no log, or else the last words before a crash."""
        since = time.monotonic() - LAST_SECONDS
        for message in self._waiting or [message for moment, message in self._last if moment >= since and not self.ended]:
            sys.stderr.write(f"{redacted(message)}\n")


def main() -> None:
    messages, keeper, parent = Messages(), Keeper(), os.getppid()
    while not keeper.ended:
        if select.select([0], [], [], LAST_SECONDS / 2)[0]:
            data = os.read(0, 1 << 16)
            keeper.keep(messages.feed(data))
            if not data:
                break
        else:
            keeper.keep(messages.flush())
            if os.getppid() != parent:  # processes that environments started may hold the pipe open
                break
    keeper.keep([*messages.flush(), *messages.repeated()])
    keeper.show()


if __name__ == "__main__":
    main()
