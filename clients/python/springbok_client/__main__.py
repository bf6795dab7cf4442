"""`python -m springbok_client my_module:MyEnv-v0 --url=ws://127.0.0.1:7001`: any Gymnasium environment as a client."""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from springbok_client.agent import RemoteAgent, ServerError
from springbok_client.runner import Limits, Player, Printer
from springbok_client.spaces import SpaceError


class BadInput(Exception):
    """A flag, or a file that it names, cannot be used; the message is one line."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"springbok_client: {message}\n")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = Parser(prog="python -m springbok_client", description=__doc__, allow_abbrev=False)
    made.add_argument("env", help="id of a Gymnasium environment; with MODULE: before it, MODULE is imported first")
    made.add_argument("--url", default="ws://127.0.0.1:7001", help="of the server (%(default)s)")
    made.add_argument("--seats", type=positive, default=1, help="environments that this process plays (%(default)s)")
    made.add_argument("--exploit", action="store_true", help="play the best actions; the server learns nothing from them")
    made.add_argument("--token_file", metavar="FILE", help="file with the server's token")
    made.add_argument("--ca_file", metavar="FILE", help="certificates (PEM) that a server with wss:// may have")
    made.add_argument("--env_args", type=arguments, default={}, metavar="JSON", help="arguments of the environment")
    made.add_argument("--steps", type=positive, metavar="N", help="end after N steps of all seats together")
    made.add_argument("--episodes", type=positive, metavar="N", help="end after N episodes of all seats together")
    made.add_argument("--seed", type=natural, help="of the first environment; the others count on from it")
    made.add_argument("--patience", type=seconds, default=60.0, metavar="SECONDS", help="to try a missing server (%(default)s)")
    made.add_argument("--json", action="store_true", help="print JSON, an object a line")
    return made


def positive(text: str) -> int:
    """A whole number >= 1. Raises argparse.ArgumentTypeError."""
    if text.isascii() and text.isdigit() and int(text) >= 1:
        return int(text)
    raise argparse.ArgumentTypeError(f"wanted a whole number >= 1, got {text!r}")


def natural(text: str) -> int:
    """A whole number >= 0. Raises argparse.ArgumentTypeError."""
    if text.isascii() and text.isdigit():
        return int(text)
    raise argparse.ArgumentTypeError(f"wanted a whole number >= 0, got {text!r}")


def seconds(text: str) -> float:
    """A finite number of seconds, >= 0. Raises argparse.ArgumentTypeError."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if 0 <= number < math.inf:
        return number
    raise argparse.ArgumentTypeError(f"wanted a finite number >= 0, got {text!r}")


def arguments(text: str) -> dict[str, Any]:
    """An object of JSON. Raises argparse.ArgumentTypeError."""
    try:
        made = json.loads(text)
    except ValueError:
        made = None
    if isinstance(made, dict):
        return made
    raise argparse.ArgumentTypeError(f"wanted an object of JSON, got {text!r}")


def make_environments(name: str, count: int, env_args: dict[str, Any]) -> list[Any]:
    """Environments of Gymnasium. Raises BadInput."""
    try:
        import gymnasium
    except ImportError:
        raise BadInput("gymnasium: wanted it installed for this command, got none; run pip install gymnasium") from None
    try:
        return [gymnasium.make(name, **env_args) for _ in range(count)]
    except Exception as error:  # the environment may raise anything
        raise BadInput(f"env: wanted an environment of Gymnasium, got {name} ({' '.join(str(error).split())})") from None


def read_token(path: str | None) -> str | None:
    """The token in a file. Raises BadInput."""
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, ValueError) as error:
        raise BadInput(f"token_file: wanted a file that can be read, got {path} ({error})") from None


def make_agent(flags: argparse.Namespace, player: Player, action_space: Any) -> RemoteAgent:
    """The agent of the server. Raises BadInput."""
    token = read_token(flags.token_file)
    try:
        return RemoteAgent(
            flags.url,
            player.observation_space,
            action_space,
            name=flags.env[:64],
            seats=flags.seats,
            exploit=flags.exploit,
            token=token,
            mask=player.has_mask,
            patience=flags.patience,
            ca_file=flags.ca_file,
        )
    except ValueError as error:
        raise BadInput(str(error)) from None
    except OSError as error:
        raise BadInput(f"ca_file: wanted a file of certificates (PEM), got {flags.ca_file} ({error})") from None


def main(argv: Sequence[str] | None = None) -> int:
    """Play until a limit or Ctrl-C. Returns the exit code: 2 for bad input, 1 if the server cannot be reached."""
    flags = parser().parse_args(argv)
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    if os.getcwd() not in sys.path[:1]:
        sys.path.insert(0, os.getcwd())  # the module of the environment is there, whatever its name is
    environments: list[Any] = []
    try:
        environments = make_environments(flags.env, flags.seats, flags.env_args)
        player = Player(environments, flags.seed)
        with make_agent(flags, player, environments[0].action_space) as agent:
            player.play(agent, Limits(flags.steps, flags.episodes), Printer(flags.json))
    except KeyboardInterrupt:
        pass
    except (BadInput, SpaceError, ServerError) as error:
        print(f"springbok_client: {error}", file=sys.stderr)
        return 2
    except ConnectionError as error:
        print(f"springbok_client: {error}", file=sys.stderr)
        return 1
    finally:
        for environment in environments:
            environment.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
