"""Compares one update of SAC with the same update written plainly in PyTorch, in CPU time on one thread.

    python -m benchmarks.off_policy --hidden_sizes=256,256 --batch_size=256

The plain update has two critics as separate modules. It has one optimiser each for the actor, both critics and the temperature,
and steps them one after the other. Both updates learn from random vectors. Ours includes the finite check and the copy of each
draw into tensors.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn import functional

from agents.networks.torsos import parse_hidden_sizes
from benchmarks.output import add_json, print_values, write_json
from learner.machine.detect import Machine
from learner.machine.fit import fit_to_machine
from learner.machine.measuring import learning, prepare_to_measure
from learner.plan import make_plan
from learner.settings.config import Config, make_config
from learner.settings.schema import default_settings
from tools.termination import end_with

WINDOWS = 7
ENV = "Pendulum-v1"
FEATURES, ACTIONS = 3, 1
GAMMA, TAU, RATE = 0.99, 0.005, 3e-4


class PlainSAC:
    """The update of SAC as a textbook writes it. sizes: units of the hidden layers. batch: rows."""

    def __init__(self, sizes: tuple[int, ...], batch: int) -> None:
        self.actor = _mlp(FEATURES, sizes, 2 * ACTIONS)
        self.critics = [_mlp(FEATURES + ACTIONS, sizes, 1) for _ in range(2)]
        self.targets = deepcopy(self.critics)
        self.log_alpha = nn.Parameter(torch.zeros(()))
        weights = [list(self.actor.parameters()), [w for critic in self.critics for w in critic.parameters()], [self.log_alpha]]
        self.steps = [torch.optim.Adam(group, lr=RATE) for group in weights]
        shapes = ((batch, FEATURES), (batch, ACTIONS), (batch, 1), (batch, FEATURES))
        self.batch = [torch.randn(shape) for shape in shapes]

    def update(self) -> None:
        x, action, reward, following = self.batch
        actor_step, critic_step, temperature_step = self.steps
        drawn, log_prob = self._act(x)
        alpha = self.log_alpha.detach().exp()
        _take(temperature_step, -(self.log_alpha * (log_prob - ACTIONS).detach()).mean())
        with torch.no_grad():
            next_action, next_log_prob = self._act(following)
            next_q = self._q(self.targets, following, next_action).amin(0)
            y = reward + GAMMA * (next_q - alpha * next_log_prob)
        loss = 0.5 * (self._q(self.critics, x, action) - y).square().mean((1, 2)).sum()
        _take(critic_step, loss)
        _take(actor_step, (alpha * log_prob - self._q(self.critics, x, drawn).amin(0)).mean())
        with torch.no_grad():
            for target, critic in zip(self.targets, self.critics, strict=True):
                for old, new in zip(target.parameters(), critic.parameters(), strict=True):
                    old.mul_(1 - TAU).add_(new, alpha=TAU)

    def _act(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(x).chunk(2, -1)
        log_std = log_std.clamp(-20, 2)
        normals = torch.randn_like(mean)
        u = mean + log_std.exp() * normals
        log_prob = -0.5 * normals.square() - log_std - 0.5 * math.log(2 * math.pi)
        log_prob = log_prob - 2 * (math.log(2) - u - functional.softplus(-2 * u))
        return u.tanh(), log_prob.sum(-1, keepdim=True)

    @staticmethod
    def _q(critics: list[nn.Module], x: Tensor, action: Tensor) -> Tensor:
        inputs = torch.cat([x, action], -1)
        return torch.stack([critic(inputs) for critic in critics])


def _mlp(inputs: int, sizes: tuple[int, ...], outputs: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before, size in zip((inputs, *sizes), sizes, strict=False):
        layers += [nn.Linear(before, size), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))


def _take(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def config_of(hidden_sizes: str, batch_size: int) -> Config:
    """A run of SAC with these sizes."""
    own = {"agent": "sac", "env": ENV, "frames_stacked": 1, "network": "mlp", "worker_kind": "serial"}
    settings = {**default_settings("sac"), **own, "hidden_sizes": hidden_sizes, "batch_size": batch_size, "learner_threads": 1}
    settled, _ = fit_to_machine(settings, Machine(cores=1, memory_bytes=8 * 10**9, gpu=None))
    return make_config(settled)


def compare(config: Config, seconds: float) -> dict[str, float]:
    """Median CPU milliseconds of an update, ours and the plain one, in windows that alternate. seconds: of each window."""
    prepare_to_measure(config)
    torch.manual_seed(1)
    ours = learning(make_plan(config), config.training.batch_size)
    plain = PlainSAC(parse_hidden_sizes(config.network_settings.hidden_sizes), config.training.batch_size)
    calls: dict[str, tuple[Callable[[], object], int]] = {
        "ours": (ours.call, config.needs.batches_at_once),
        "plain": (plain.update, 1),
    }
    found: dict[str, list[float]] = {name: [] for name in calls}
    for window in range(WINDOWS + 1):
        for name, (call, updates) in calls.items():
            spent = cpu_seconds(call, seconds) / updates
            found[name] += [spent] if window else []  # the first window warms up
    middle = {name: statistics.median(values) for name, values in found.items()}
    ratios = [plain / own for own, plain in zip(found["ours"], found["plain"], strict=True)]
    return {
        "ours_ms": 1e3 * middle["ours"],
        "plain_ms": 1e3 * middle["plain"],
        "speed_against_plain": statistics.median(ratios),
    }


def cpu_seconds(call: Callable[[], object], seconds: float) -> float:
    """CPU seconds of one call, as a mean over about so many of them."""
    started, count = time.process_time(), 0
    while time.process_time() - started < seconds:
        call()
        count += 1
    return (time.process_time() - started) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden_sizes", default="256,256")
    parser.add_argument("--batch_size", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=1.0, help="CPU time of each of the windows")
    add_json(parser)
    arguments = parser.parse_args()
    found = compare(config_of(arguments.hidden_sizes, arguments.batch_size), arguments.seconds)
    print_values(found)
    write_json(arguments.json, found)


if __name__ == "__main__":
    end_with(main)
