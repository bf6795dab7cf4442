"""A game that is a client of a trainer. It may run anywhere, and needs neither PyTorch nor Gymnasium.

The package springbok_client speaks the protocol of docs/protocol.md.
"""

from __future__ import annotations

import random
import sys

URL = "ws://127.0.0.1:7001"
OBSERVATION = {"type": "box", "shape": [2], "dtype": "float32", "low": -1, "high": 1}
ACTION = {"type": "discrete", "n": 2}
LENGTH, TIME_LIMIT = 8, 40


class Corridor:
    """A corridor with a goal at one of its ends. Put your own game here."""

    def __init__(self) -> None:
        self.place = self.steps = 0
        self.goal = random.choice((-LENGTH, LENGTH))

    def observe(self) -> list[float]:
        """The place and the goal, from -1 to 1."""
        return [self.place / LENGTH, self.goal / LENGTH]

    def step(self, action: int) -> tuple[float, bool, bool]:
        """Walk left (0) or right (1). Returns the reward, and whether the episode has ended or was cut by the time limit."""
        self.place = max(-LENGTH, min(LENGTH, self.place + (1 if action else -1)))
        self.steps += 1
        arrived = self.place == self.goal
        return 1.0 if arrived else -0.01, arrived, self.steps == TIME_LIMIT and not arrived


def main(url: str) -> None:
    """Play episodes until the trainer ends. url: of the trainer."""
    from springbok_client import RemoteAgent, ServerError

    with RemoteAgent(url, OBSERVATION, ACTION, name="my_app") as agent:
        try:
            while True:
                game = Corridor()
                action = agent.reset(game.observe())
                while action is not None:  # None: the episode has ended, or the connection broke
                    reward, arrived, late = game.step(action)
                    action = agent.step(game.observe(), reward, terminated=arrived, truncated=late)
        except (ConnectionError, ServerError) as error:
            print(f"The trainer has ended: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:] or [URL])
