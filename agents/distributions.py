"""Probability distributions over actions, from which stochastic policies draw. Exploration noise is drawn elsewhere.

A distribution is a plain object without weights. Its parameters are a tensor `[..., P]` that the network computes and that the
rollout stores. Log-probabilities, entropies and divergences of a vector action are sums over its components, so the importance
ratio is one number per step. All numbers are in nats.

The drawn value is the one with which `log_prob` is called later. Only a squashed Gaussian stores it in addition to the action.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from setting import listed
from wrappers.spaces import ActionSpace, Box, Discrete, MultiDiscrete

ILLEGAL_LOGIT = -1e8
"""Logit of an action that a mask forbids. It is finite, so that entropies and divergences are; the probability is 0."""
LOG_STD_RANGE = (-5.0, 2.0)
"""Bounds of a logarithm of a standard deviation; the gradient is 0 outside. Below, a ratio in float32 would be noise."""
MEAN_BOUND = 1.1
"""Largest mean of a bounded action that is not penalised, a little outside the bound 1."""
BETA_RANGE = (1e-30, 1e3)
"""Bounds of alpha - 1 and beta - 1. At the upper one actions have a standard deviation of 0.02."""
BETA_MARGIN = 2.0**-20
"""A Beta action stays this far from the ends of [0, 1], where a density may be 0. float32 holds both bounds exactly."""
NODES, NODES_END = 21, 5.0
"""Nodes of the expectation in a squashed Gaussian's entropy: from -5 to 5 standard deviations."""


class Distribution(ABC):
    """A family of distributions over the actions of one space.

    stores_drawn: whether the drawn value is stored as the field `raw_action`, because the action does not determine it in
    float32.
    """

    stores_drawn: ClassVar[bool] = False

    @property
    @abstractmethod
    def parameter_count(self) -> int:
        """P, the number of parameters."""

    @abstractmethod
    def describe(self) -> str:
        """How an action is made of the parameters, in words."""

    @abstractmethod
    def sample(self, parameters: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw one value for each of parameters `[..., P]`. The host does not wait for a GPU.

        generator: on the device of the parameters; None takes PyTorch's global one.
        """

    @abstractmethod
    def mode(self, parameters: Tensor) -> Tensor:
        """The value that a deterministic policy takes, as `sample` would draw it."""

    def action(self, drawn: Tensor) -> Tensor:
        """The actions of drawn values."""
        return drawn

    @abstractmethod
    def log_prob(self, parameters: Tensor, drawn: Tensor) -> Tensor:
        """Log-probability, or log-density, `[...]` of drawn values. Raises ValueError if their rows differ in shape."""

    @abstractmethod
    def entropy(self, parameters: Tensor) -> Tensor:
        """Entropy `[...]`."""

    @abstractmethod
    def kl(self, one: Tensor, other: Tensor) -> Tensor:
        """KL(one || other) `[...]` of parameters that may be broadcast."""

    def excess(self, parameters: Tensor) -> Tensor | None:
        """Return the squared distance of the means beyond the actions' bounds, summed, `[...]`; None if they cannot be outside.

        Between -1.1 and 1.1 it is 0, so that a policy can choose the bounds themselves.
        """
        return None


@dataclass(frozen=True)
class Categorical(Distribution):
    """One of `count` actions. The parameters are logits."""

    count: int

    @property
    def parameter_count(self) -> int:
        return self.count

    def describe(self) -> str:
        return "sample the action from softmax(logits)"

    def sample(self, parameters: Tensor, generator: torch.Generator | None) -> Tensor:
        return sample_categorical(parameters, generator)

    def mode(self, parameters: Tensor) -> Tensor:
        return parameters.argmax(-1)

    def log_prob(self, parameters: Tensor, drawn: Tensor) -> Tensor:
        _check_rows(parameters.shape[:-1], drawn.shape)
        log_probs = functional.log_softmax(parameters, dim=-1)
        return log_probs.gather(-1, drawn.long().unsqueeze(-1)).squeeze(-1)  # [..., A] -> [...]

    def entropy(self, parameters: Tensor) -> Tensor:
        log_probs = functional.log_softmax(parameters, dim=-1)
        return -(log_probs.exp() * log_probs).sum(dim=-1)  # - sum p log p

    def kl(self, one: Tensor, other: Tensor) -> Tensor:
        log_one = one.log_softmax(-1)  # finite, where the logarithm of a rounded softmax is -inf
        return (log_one.exp() * (log_one - other.log_softmax(-1))).sum(-1)  # sum p (log p - log q)


@dataclass(frozen=True)
class MultiCategorical(Distribution):
    """Several independent choices. The parameters are the logits of all components, one after the other."""

    counts: tuple[int, ...]

    @property
    def parameter_count(self) -> int:
        return sum(self.counts)

    def describe(self) -> str:
        return f"cut the logits into parts of {', '.join(map(str, self.counts))}; sample a component from each part's softmax"

    def sample(self, parameters: Tensor, generator: torch.Generator | None) -> Tensor:
        return sample_categorical(self.components(parameters), generator)

    def mode(self, parameters: Tensor) -> Tensor:
        return self.components(parameters).argmax(-1)

    def log_prob(self, parameters: Tensor, drawn: Tensor) -> Tensor:
        _check_rows((*parameters.shape[:-1], len(self.counts)), drawn.shape)
        return self._each.log_prob(self.components(parameters), drawn).sum(-1)  # [..., D] -> [...]

    def entropy(self, parameters: Tensor) -> Tensor:
        return self._each.entropy(self.components(parameters)).sum(-1)

    def kl(self, one: Tensor, other: Tensor) -> Tensor:
        return self._each.kl(self.components(one), self.components(other)).sum(-1)

    @property
    def _each(self) -> Categorical:
        return Categorical(max(self.counts))

    def components(self, parameters: Tensor) -> Tensor:
        """Logits `[..., D, largest count]`. Places beyond a component's count are illegal."""
        widest = max(self.counts)
        if min(self.counts) == widest:
            logits: Tensor = parameters.unflatten(-1, (len(self.counts), widest))
            return logits
        parts = parameters.split(self.counts, -1)
        # Lower than masked values, so that a component whose values are all masked draws none of these places.
        absent = 2 * ILLEGAL_LOGIT
        return torch.stack([functional.pad(part, (0, widest - part.shape[-1]), value=absent) for part in parts], -2)


@dataclass(frozen=True)
class DiagonalGaussian(Distribution):
    """D independent normal numbers. The parameters are the means, then the logarithms of the standard deviations.

    bounded: whether each number is clipped to [-1, 1] before the environment gets it; none by default. log_stds: bounds of the
    logarithms of the standard deviations.
    """

    size: int
    bounded: tuple[bool, ...] = ()
    log_stds: tuple[float, float] = LOG_STD_RANGE

    @property
    def parameter_count(self) -> int:
        return 2 * self.size

    def describe(self) -> str:
        low, high = self.log_stds
        return (
            f"the first {self.size} numbers are means, the others logarithms of standard deviations, clamped to [{low:g}, "
            f"{high:g}]; sample from the normal distributions"
        )

    def sample(self, parameters: Tensor, generator: torch.Generator | None) -> Tensor:
        mean, log_std = self._split(parameters)
        return mean + log_std.exp() * torch.empty_like(mean).normal_(generator=generator)  # mean + std N(0, 1)

    def mode(self, parameters: Tensor) -> Tensor:
        return self._split(parameters)[0]

    def log_prob(self, parameters: Tensor, drawn: Tensor) -> Tensor:
        _check_rows((*parameters.shape[:-1], self.size), drawn.shape)
        mean, log_std = self._split(parameters)
        deviation = (drawn - mean) * torch.exp(-log_std)  # z = (a - mean) / std, [..., D]
        return (-0.5 * (deviation * deviation) - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)  # one number a step

    def entropy(self, parameters: Tensor) -> Tensor:
        _, log_std = self._split(parameters)
        return (log_std + 0.5 + 0.5 * math.log(2 * math.pi)).sum(-1)  # sum log(std sqrt(2 pi e))

    def kl(self, one: Tensor, other: Tensor) -> Tensor:
        (mean, log_std), (other_mean, other_log_std) = self._split(one), self._split(other)
        # (s_p^2 + (m_p - m_q)^2) / s_q^2
        squares = (2 * (log_std - other_log_std)).exp() + ((mean - other_mean) * torch.exp(-other_log_std)).square()
        return (other_log_std - log_std + 0.5 * squares - 0.5).sum(-1)  # log s_q - log s_p + squares / 2 - 1/2

    def excess(self, parameters: Tensor) -> Tensor | None:
        if not any(self.bounded):
            return None
        squares = (self._split(parameters)[0].abs() - MEAN_BOUND).clamp(min=0).square()  # [..., D]
        if all(self.bounded):
            return squares.sum(-1)
        # No mask, which the host would have to send to a GPU each time.
        each = zip(squares.unbind(-1), self.bounded, strict=True)
        return torch.stack([square for square, is_bounded in each if is_bounded]).sum(0)

    def _split(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Means and clamped logarithms of standard deviations, `[..., D]` each."""
        mean, log_std = parameters.chunk(2, -1)
        return mean, log_std.clamp(*self.log_stds)


@dataclass(frozen=True)
class SquashedGaussian(DiagonalGaussian):
    """a = tanh(u) with u of a diagonal Gaussian. The drawn value is u, since atanh(a) is wrong near the bounds.

    Densities are those in (-1, 1), by the change of variables of SAC (Haarnoja et al. 2018, arXiv:1801.01290, appendix C,
    equation 21). The slope of tanh cancels in ratios and divergences, so a divergence is that of the Gaussians.
    """

    stores_drawn = True

    def describe(self) -> str:
        return f"{super().describe()}; take tanh"

    def excess(self, parameters: Tensor) -> Tensor | None:
        return None  # tanh keeps every action within its bounds

    def action(self, drawn: Tensor) -> Tensor:
        return drawn.tanh()

    def log_prob(self, parameters: Tensor, drawn: Tensor) -> Tensor:
        return super().log_prob(parameters, drawn) - _log_slope(drawn).sum(-1)  # log N(u) - sum log(1 - tanh(u)^2)

    def reparametrised(self, parameters: Tensor, normals: Tensor) -> tuple[Tensor, Tensor]:
        """Actions `[..., D]` and their log-densities `[...]` as functions of the parameters, with gradient (SAC, section 4.2).

        normals: of a standard normal distribution, `[..., D]`.
        """
        mean, log_std = self._split(parameters)
        drawn = mean + log_std.exp() * normals  # u, with gradient in mean and log_std
        # The deviation from the mean in standard deviations is the given number, so it needs no division.
        gaussian = -0.5 * normals.square() - log_std - 0.5 * math.log(2 * math.pi)
        return drawn.tanh(), (gaussian - _log_slope(drawn)).sum(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        """The Gaussian's entropy and the expected log-slope, as a weighted sum over fixed nodes.

        There is no closed form. The error is below 1e-5 for standard deviations up to 1.6. Old samples instead of nodes
        would give a gradient that is not that of the entropy.
        """
        mean, log_std = self._split(parameters)
        nodes = torch.linspace(-NODES_END, NODES_END, NODES, device=mean.device, dtype=mean.dtype)  # z [nodes]
        slopes = _log_slope(mean.unsqueeze(-1) + log_std.exp().unsqueeze(-1) * nodes)  # [..., D, nodes]
        return super().entropy(parameters) + (slopes * (-0.5 * nodes.square()).softmax(0)).sum((-2, -1))


@dataclass(frozen=True)
class Beta(Distribution):
    """D independent numbers a = 2y - 1 in (-1, 1) with y of a Beta distribution (Chou, Maturana, Scherer, ICML 2017).

    The parameters are the raw alphas, then the raw betas. alpha = 1 + softplus(raw_alpha), and beta likewise, so each
    density has a single maximum.
    """

    size: int

    @property
    def parameter_count(self) -> int:
        return 2 * self.size

    def describe(self) -> str:
        return (
            f"the first {self.size} numbers are raw alphas, the others raw betas; sample y from Beta(1 + a, 1 + b), "
            f"where a and b are softplus of the raw alpha and beta, at most {BETA_RANGE[1]:g}, and take 2y - 1"
        )

    def sample(self, parameters: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw y = g / (g + h) of two gamma variables, which is exact.

        PyTorch's gamma sampler takes a generator, unlike its Beta distribution. No shape is below 1, so neither is 0.
        """
        gammas = torch._standard_gamma(1 + _less_one(parameters), generator=generator)
        one, other = gammas.chunk(2, -1)  # g, h [..., D]
        return 2 * (one / (one + other)).clamp(BETA_MARGIN, 1 - BETA_MARGIN) - 1

    def mode(self, parameters: Tensor) -> Tensor:
        # alpha - 1 is the softplus itself. Taken from alpha it would be 0 in float32 for a raw alpha below -17.
        one, other = _less_one(parameters).chunk(2, -1)
        return 2 * one / (one + other) - 1

    def log_prob(self, parameters: Tensor, drawn: Tensor) -> Tensor:
        _check_rows((*parameters.shape[:-1], self.size), drawn.shape)
        less_one = _less_one(parameters)
        ends = torch.cat([1 + drawn, 1 - drawn], -1) / 2  # y and 1 - y
        log_ends = ends.clamp(BETA_MARGIN, 1 - BETA_MARGIN).log()
        return (less_one * log_ends).sum(-1) - self._log_normaliser(1 + less_one)  # (alpha - 1) log y + (beta - 1) log(1 - y)

    def entropy(self, parameters: Tensor) -> Tensor:
        less_one = _less_one(parameters)
        whole = (1 + less_one).unflatten(-1, (2, self.size)).sum(-2)  # alpha + beta, [..., D]
        expected: Tensor = (less_one * torch.digamma(1 + less_one)).sum(-1) - ((whole - 2) * torch.digamma(whole)).sum(-1)
        return self._log_normaliser(1 + less_one) - expected

    def kl(self, one: Tensor, other: Tensor) -> Tensor:
        shapes, other_shapes = (1 + _less_one(parameters) for parameters in (one, other))  # [..., 2D] each
        whole = shapes.unflatten(-1, (2, self.size)).sum(-2)
        difference = shapes - other_shapes  # [..., 2D]
        expected: Tensor = (difference * torch.digamma(shapes)).sum(-1)
        expected = expected - (difference.unflatten(-1, (2, self.size)).sum(-2) * torch.digamma(whole)).sum(-1)
        return self._log_normaliser(other_shapes) - self._log_normaliser(shapes) + expected

    def _log_normaliser(self, shapes: Tensor) -> Tensor:
        """Sum over the components of the logarithm of the Beta function and of log 2, the width of (-1, 1)."""
        whole = shapes.unflatten(-1, (2, self.size)).sum(-2)
        # log B(alpha, beta) + log 2
        return torch.lgamma(shapes).sum(-1) - torch.lgamma(whole).sum(-1) + self.size * math.log(2)


def _less_one(parameters: Tensor) -> Tensor:
    """alpha - 1 and beta - 1 of raw parameters. The bounds keep differences of lgamma exact enough, and the mode defined."""
    return functional.softplus(parameters).clamp(*BETA_RANGE)


ACTION_DISTRIBUTIONS = ("auto", "categorical", "gaussian", "squashed_gaussian", "beta")
"""The values of `--action_distribution`."""

_OF_BOX: dict[str, type[DiagonalGaussian] | type[Beta]] = {
    "gaussian": DiagonalGaussian,
    "squashed_gaussian": SquashedGaussian,
    "beta": Beta,
}


def make_distribution(space: ActionSpace, name: str = "auto") -> Distribution:
    """The distribution over the actions of a space. Raises ValueError in one line if `name` does not fit the space.

    name: one of `ACTION_DISTRIBUTIONS`. `auto` is categorical for choices and gaussian for real numbers. Several choices at
    once are `categorical` too.
    """
    fitting = tuple(_OF_BOX) if isinstance(space, Box) else ("categorical",)
    chosen = fitting[0] if name == "auto" else name
    if chosen not in fitting:
        raise ValueError(f"action_distribution: wanted {listed(('auto', *fitting))} for {space.summary()}, got {name}")
    if isinstance(space, Discrete):
        return Categorical(space.count)
    if isinstance(space, MultiDiscrete):
        return MultiCategorical(space.counts)
    if not isinstance(space, Box):
        raise ValueError(f"action_distribution: wanted a space of Discrete, MultiDiscrete or Box, got {space}")
    if chosen != "gaussian" and not space.bounded.all():
        raise ValueError(f"action_distribution: wanted gaussian for actions without two finite bounds, got {name}")
    if chosen == "gaussian":
        return DiagonalGaussian(len(space.low), tuple(space.bounded.tolist()))
    return _OF_BOX[chosen](len(space.low))


def sample_categorical(logits: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw one action a row from softmax(logits `[..., A]`). Returns int64 `[...]`.

    The actions race: action a arrives at E_a / p_a with E_a exponential, and the first to arrive wins with probability p_a.
    `torch.multinomial` draws the same numbers, but it checks its input on the host and so makes the host wait for a GPU.

    Args:
        logits: float32 `[..., A]`.
        generator: on the device of the logits; None takes PyTorch's global one.
    """
    probabilities = logits.softmax(-1)
    arrivals = torch.empty_like(probabilities).exponential_(1.0, generator=generator)  # E_a [..., A]
    return (probabilities / arrivals).argmax(-1)  # argmin E_a / p_a; a probability of 0 never wins


def _log_slope(drawn: Tensor) -> Tensor:
    """log(1 - tanh(u)^2) in a form that neither overflows nor cancels, whatever u is."""
    return 2 * (math.log(2) - drawn - functional.softplus(-2 * drawn))


def _check_rows(wanted: tuple[int, ...], got: tuple[int, ...]) -> None:
    if tuple(wanted) != tuple(got):
        raise ValueError(f"actions: wanted {list(wanted)} as the policies' rows, got {list(got)}")
