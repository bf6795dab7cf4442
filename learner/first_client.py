"""The environment of a run that clients play: its spaces come from a file, or from the first client that connects."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

from gymnasium import spaces

from learner.evaluation.protocol import apply_protocol
from learner.runs.loading import merge_settings
from learner.settings.check import check_settings
from learner.settings.schema import DEFAULTS, Settings, build
from serve.app import ClientServer
from serve.run import check_address, listen, run, serve
from serve.session import Busy, Host, Outcome, Session
from serve.settings import ServerConfig
from setting import AUTO
from workers.base import SERVED
from wrappers import family_of
from wrappers.served import NO_SPACES, PREFIX, ServedSpaces, matches, parse_spaces

log = logging.getLogger("springbok")

UNKNOWN = f"{PREFIX}client"
_ANY = spaces.Box(0.0, 1.0, (1,)), spaces.Discrete(2)  # of a host that looks at no values
RETRY_SECONDS = 3.0
"""After which the first client comes again: the run starts meanwhile."""


def settle_served(given: Settings) -> Settings:
    """The given settings, with the environment and the spaces of a run that clients play. It may wait for a client.

    Raises ValueError in one line, before it waits if the settings cannot be those of such a run whatever its spaces.
    """
    if given.get("worker_kind", AUTO) != SERVED:
        return given
    server = build(ServerConfig, {**DEFAULTS, **given})
    check_address(server)
    env, text = given.get("env", UNKNOWN), given.get("spaces", NO_SPACES)
    if not matches(env):
        if (family := family_of(env)) not in (None, "gymnasium"):
            raise ValueError(
                f"worker_kind: wanted an environment of Gymnasium with {SERVED}, or none for that of the first client, got "
                f"{env} of the family {family}"
            )
        return given
    if text == NO_SPACES:
        settings, _ = merge_settings({**given, "env": env}, {})
        check_settings(apply_protocol(settings, given))
        name, found = wait_for_client(server)
        env = PREFIX + name if env == UNKNOWN else env
        return {**given, "env": env, "spaces": json.dumps(found.to_json())}
    return {**given, "env": env, "spaces": json.dumps(parse_spaces(_text_of(text)).to_json())}


def _text_of(spaces: str) -> str:
    """The JSON of a setting that is JSON or names a file. Raises ValueError."""
    if spaces.lstrip().startswith("{"):
        return spaces
    try:
        return Path(spaces).read_text()
    except (OSError, ValueError) as error:
        raise ValueError(f"spaces: wanted a JSON object or a file with one, got {spaces[:80]!r} ({error})") from None


class _AnyClient(Host):
    """Takes the spaces of the first client, and asks it to come again."""

    waits = True

    def __init__(self) -> None:
        super().__init__("", ServedSpaces(*_ANY))
        self.found: tuple[str, ServedSpaces] | None = None
        self.came = asyncio.Event()

    def check_spaces(self, spaces: ServedSpaces) -> None:
        self._asked = spaces

    def join(self, session: Session, count: int, *, exploit: bool) -> list[int]:
        self.found = self.found or (session.name, self._asked)
        self.came.set()
        raise Busy(RETRY_SECONDS)

    def begin(self, seat: int, outcome: Outcome) -> None:
        raise AssertionError("no client has a seat")

    def take(self, seat: int, outcome: Outcome) -> None:
        raise AssertionError("no client has a seat")

    def leave(self, seat: int) -> None:
        raise AssertionError("no client has a seat")


def wait_for_client(config: ServerConfig) -> tuple[str, ServedSpaces]:
    """Name and spaces of the first client. It is asked to come again. Raises ValueError in one line."""
    listening = listen(config)
    log.info("Waiting for the first client at %s, which tells the spaces of its environment", config.url)
    log.info("  python -m springbok_client my_module:MyEnv-v0 --url=%s", config.url)
    found: list[tuple[str, ServedSpaces]] = []

    async def work() -> None:
        host = _AnyClient()

        async def come() -> None:
            await host.came.wait()
            await asyncio.sleep(0.1)  # its answer goes out
            assert host.found is not None
            found.append(host.found)

        def status() -> dict[str, Any]:
            return {"waiting": True}

        await serve(ClientServer(host, config, status), listening, come())

    run(work(), fast=False)
    return found[0]
