"""The modules whose errors are intrinsic rewards: RND's predictor of random features, and ICM's model of the environment.

RND (Burda et al. 2018, arXiv:1810.12894): f is random and fixed, p learns to predict it, and the reward of a step is

    raw_t = mean over features of (f(x_{t+1}) - p(x_{t+1}))^2

ICM (Pathak et al. 2017, arXiv:1705.05363): phi = encoder, g names the action from phi(x_t) and phi(x_{t+1}), h predicts
phi(x_{t+1}) from phi(x_t) and the action, and the reward is

    raw_t = ||h(phi(x_t), a_t) - phi(x_{t+1})||^2 / 2

As in the authors' code the forward loss sends its gradient into both phi. Both networks compute in float32: errors are small
differences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from agents.networks.initial_weights import draw_orthogonal
from wrappers.spaces import ActionSpace, Box, Discrete, MultiDiscrete

FEATURES = 512
"""Random features of RND, as in the paper."""
HIDDEN = 256
"""Units of the hidden layer of ICM's inverse and forward model, as in the paper."""
BETA = 0.2
"""Part of the forward loss in ICM's loss, as in the paper."""
_GAIN = 2.0**0.5

Frames = Sequence[Tensor]
"""n prepared frames: `[n, *input_shape]` for each part of an observation."""
MakeTorso = Callable[[], Any]
"""Makes a torso with an attribute `feature_count`."""


class CuriousErrors(NamedTuple):
    """ICM's losses of n steps, `[n]` each: of the inverse and of the forward model."""

    inverse: Tensor
    forward: Tensor


def prediction_errors(target: Tensor, predicted: Tensor) -> Tensor:
    """mean_f (target - predicted)^2 of features `[..., F]`, of shape `[...]`."""
    return (target - predicted).square().mean(-1)


def curious_errors(action: ActionSpace, actions: Tensor, inverse: Tensor, after: Tensor, predicted: Tensor) -> CuriousErrors:
    """ICM's losses of n steps.

    Args:
        action: the space of the actions.
        actions: `[n]` or `[n, D]`, those taken.
        inverse: `[n, A]`, the inverse model's logits of choices, or its estimates of real numbers.
        after: `[n, F]`, phi(x_{t+1}).
        predicted: `[n, F]`, h(phi(x_t), a_t).
    """
    if isinstance(action, Box):
        of_inverse = (inverse - actions).square().sum(-1)
    else:
        choices = actions.reshape(len(actions), -1).unbind(1)  # [n] each
        logits = inverse.split(counts_of(action), 1)
        pairs = zip(logits, choices, strict=True)
        of_inverse = torch.stack([functional.cross_entropy(*pair, reduction="none") for pair in pairs]).sum(0)
    return CuriousErrors(of_inverse, 0.5 * (predicted - after).square().sum(-1))


def curious_loss(errors: CuriousErrors, beta: float) -> Tensor:
    """(1 - beta) inverse + beta forward of each step, `[n]`."""
    return (1 - beta) * errors.inverse + beta * errors.forward


def counts_of(action: ActionSpace) -> list[int]:
    """The number of values of each choice; one number for each component of real numbers."""
    if isinstance(action, Discrete):
        return [action.count]
    return list(action.counts) if isinstance(action, MultiDiscrete) else [1] * action.shape[0]


def encoded(action: ActionSpace, actions: Tensor) -> Tensor:
    """Actions `[n]` or `[n, D]` as numbers `[n, A]`: one-hot for choices, as they are for real numbers."""
    if isinstance(action, Box):
        return actions
    choices = actions.reshape(len(actions), -1).unbind(1)
    numbers = [torch.arange(count, device=actions.device) for count in counts_of(action)]
    return torch.cat([each[:, None] == of_choice for each, of_choice in zip(choices, numbers, strict=True)], 1).float()


class _Encoder(nn.Module):
    """A torso, and layers behind it. The joint torso of several parts takes several tensors."""

    def __init__(self, make_torso: MakeTorso, *sizes: int) -> None:
        super().__init__()
        self.torso = make_torso()
        before, layers = self.torso.feature_count, []
        for size in sizes:
            layers += [nn.Linear(before, size), nn.ReLU()]
            before = size
        self.layers = nn.Sequential(*layers[:-1])  # nothing behind the last layer
        self.feature_count: int = before

    def forward(self, frames: Frames) -> Tensor:
        features: Tensor = self.layers(self.torso(*frames))
        return features


class RND(nn.Module):
    """f and p of random network distillation. p has one hidden layer more (the paper: two), so that it can be exact.

    The weights of f are buffers: a checkpoint holds them, because with another f everything would be new again, and no
    optimiser or gradient sees them.

    weight: of its loss beside the agent's. reads_before: whether errors depend on the frame before the step.
    """

    weight: ClassVar[float] = 1.0
    reads_before: ClassVar[bool] = False

    def __init__(self, make_torso: MakeTorso, action: ActionSpace) -> None:
        super().__init__()
        self.target = _Encoder(make_torso, FEATURES)
        self.predictor = _Encoder(make_torso, FEATURES, FEATURES)
        draw_weights(self)
        for module in self.target.modules():
            for name, weights in list(module.named_parameters(recurse=False)):
                delattr(module, name)
                module.register_buffer(name, weights.detach())

    def rewards(self, before: Frames, actions: Tensor, after: Frames) -> Tensor:
        """raw_t of n steps, `[n]`. before and after: x_t and x_{t+1}. actions: `[n, ...]`."""
        return prediction_errors(self.target(after), self.predictor(after))

    losses = rewards
    """The loss of each step, `[n]`: with gradient, the same numbers."""


class ICM(nn.Module):
    """The encoder, the inverse and the forward model of the intrinsic curiosity module."""

    weight: ClassVar[float] = 10.0  # of the authors' code
    reads_before: ClassVar[bool] = True

    def __init__(self, make_torso: MakeTorso, action: ActionSpace) -> None:
        super().__init__()
        self.action, outputs = action, sum(counts_of(action))
        self.encoder = make_torso()
        features: int = self.encoder.feature_count
        self.inverse = nn.Sequential(nn.Linear(2 * features, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, outputs))
        self.forward_model = nn.Sequential(nn.Linear(features + outputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, features))
        draw_weights(self)

    def errors(self, before: Frames, actions: Tensor, after: Frames) -> CuriousErrors:
        """The losses of both models. Arguments as `RND.rewards` takes them."""
        one, other = self.encoder(*before), self.encoder(*after)  # phi(x_t), phi(x_{t+1}), [n, F] each
        predicted = self.forward_model(torch.cat([one, encoded(self.action, actions)], 1))
        return curious_errors(self.action, actions, self.inverse(torch.cat([one, other], 1)), other, predicted)

    def rewards(self, before: Frames, actions: Tensor, after: Frames) -> Tensor:
        """raw_t of n steps, `[n]`. The paper's factor eta has no effect, since rewards are scaled by their deviation."""
        return self.errors(before, actions, after).forward

    def losses(self, before: Frames, actions: Tensor, after: Frames) -> Tensor:
        """The loss of each step, `[n]`."""
        return curious_loss(self.errors(before, actions, after), BETA)


MODULES: dict[str, type[RND] | type[ICM]] = {"rnd": RND, "icm": ICM}
"""Value of `--intrinsic` -> class of the module."""


def draw_weights(module: nn.Module) -> None:
    """Orthogonal weights and biases of zero, from PyTorch's global generator; nothing on the meta device."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear) and layer.weight.device.type != "meta":
            with torch.no_grad():
                draw_orthogonal(layer, _GAIN, None)
