"""Recurrent cores: the memory between torso and heads. One class for each value of `--core` except `none`.

The cells are those of PyTorch, with its names and order of gates:

    LSTM    i, f, g, o = W_ih x + b_ih + W_hh h + b_hh       c' = s(f) c + s(i) tanh(g)       h' = s(o) tanh(c')
    GRU     r, z from the same sums, n = tanh(W_in x + b_in + s(r) (W_hn h + b_hn))            h' = (1 - s(z)) n + s(z) h

Sources: Hochreiter and Schmidhuber 1997 (doi:10.1162/neco.1997.9.8.1735) with the forget gate of Gers et al. 2000
(doi:10.1162/089976600300015015); Cho et al. 2014 (arXiv:1406.1078) with the reset gate behind the product.

A core computes in float32 whatever the torso computes in, because rounding errors would add up from row to row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from setting import listed

_FORGET_BIAS = 1.0
NO_CORE = "none"


class Core(nn.Module, ABC):
    """A recurrent layer of H units. Its state is one float32 vector `[K]` per environment.

    Args:
        input_size: F, features of one observation.
        size: H.
        memory: T, steps that a new core remembers (see `initialise`); 0 leaves the usual biases.

    Attributes:
        gates: blocks of H rows in the weights. In block 1 is the gate that keeps the memory (f of an LSTM, z of a GRU).
        vectors: vectors `[H]` of which the state consists; the first is the output h.
        state_size: K = vectors * H.
    """

    gates: ClassVar[int]
    vectors: ClassVar[int]

    def __init__(self, input_size: int, size: int, memory: int = 0) -> None:
        super().__init__()
        self.size = size
        self.memory = memory
        self.state_size = self.vectors * size
        self.weight_ih = nn.Parameter(torch.empty(self.gates * size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(self.gates * size, size))
        self.bias_ih = nn.Parameter(torch.zeros(self.gates * size))
        self.bias_hh = nn.Parameter(torch.zeros(self.gates * size))

    @abstractmethod
    def cell(self, projected: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The next state. projected: W_ih x + b_ih, `[N, gates * H]`. state: `vectors` tensors `[N, H]`, h first."""

    def initialise(self, generator: torch.Generator | None) -> None:
        """Draw an orthogonal matrix for each gate and set the biases to zero.

        With memory T the bias of the keeping gate of each unit is log(u), u uniform in [1, T - 1] (chrono initialisation,
        Tallec and Ollivier 2018, arXiv:1804.11188). So units forget after 2 to T steps, and gradients reach cues T steps back.
        """
        for weight in (self.weight_ih, self.weight_hh):
            for gate in weight.detach().chunk(self.gates):
                nn.init.orthogonal_(gate, generator=generator)  # each gate by itself: [H, F] or [H, H]
        nn.init.zeros_(self.bias_ih)
        nn.init.zeros_(self.bias_hh)
        if self.memory:
            keeping = self.bias_ih.detach()[self.size : 2 * self.size]  # [H], block 1
            keeping.uniform_(1.0, max(self.memory - 1.0, 1.0), generator=generator).log_()  # s(log u) = 1 - 1 / (1 + u)

    def forward(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step of N environments: h `[N, H]` and the next state `[N, K]`, from inputs `[N, F]` and the state `[N, K]`."""
        after = self.cell(self._project(inputs), state.split(self.size, -1))  # vectors [N, H], h first
        return after[0], torch.cat(after, -1)

    def unroll(self, inputs: Tensor, state: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
        """R rows of B columns: every h, `[R, B, H]`, and the state after the last row, `[B, K]`.

        The state becomes zero before row t+1 where `reset[t]` is true, and no gradient passes there. It stays as it is
        after the step that ends an episode: row t+1 then holds that episode's own final observation, and its value needs
        the memory of the episode.

        Args:
            inputs: `[R, B, F]`.
            state: `[B, K]`, before row 0; a constant.
            reset: bool `[R-1, B]`.
        """
        rows = self._project(inputs).unbind(0)  # R tensors [B, gates * H]
        parts: tuple[Tensor, ...] = state.split(self.size, -1)  # vectors [B, H], h first
        hidden = []
        for t, projected in enumerate(rows):
            if t:
                # reset[t - 1] says that observation t is an episode's first.
                parts = tuple(zeroed(part, reset[t - 1]) for part in parts)
            # Row by row, since row t+1 needs the state of row t. The product with the inputs is done for all rows before.
            parts = self.cell(projected, parts)
            hidden.append(parts[0])
        return torch.stack(hidden), torch.cat(parts, -1)

    def _project(self, inputs: Tensor) -> Tensor:
        """The part of the gates that needs no memory, for all rows in one product."""
        return functional.linear(inputs, self.weight_ih, self.bias_ih)


class LSTM(Core):
    """Long short-term memory. The state is h and c."""

    gates = 4
    vectors = 2

    def initialise(self, generator: torch.Generator | None) -> None:
        """As every core, but with a forget bias of 1, so that a new network remembers (Gers et al. 2000; Jozefowicz et al.
        2015). With 0 it forgets half of c at each step, and almost no gradient reaches a cue ten steps back. With memory the
        input gate's bias is that of the forget gate with the other sign, as in the paper."""
        super().initialise(generator)
        let_in, keeping = self.bias_ih.detach().view(self.gates, self.size)[:2]
        if self.memory:
            let_in.copy_(-keeping)  # a unit that keeps much lets little in: s(i) = 1 - s(f)
        else:
            nn.init.constant_(keeping, _FORGET_BIAS)

    def cell(self, projected: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        h, c = state
        i, f, g, o = (projected + functional.linear(h, self.weight_hh, self.bias_hh)).chunk(4, -1)  # [N, H] each
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()  # c' = s(f) c + s(i) tanh(g)
        return o.sigmoid() * c.tanh(), c  # h' = s(o) tanh(c')


class GRU(Core):
    """Gated recurrent unit. The state is h."""

    gates = 3
    vectors = 1

    def cell(self, projected: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (h,) = state
        in_r, in_z, in_n = projected.chunk(3, -1)
        of_r, of_z, of_n = functional.linear(h, self.weight_hh, self.bias_hh).chunk(3, -1)
        z = (in_z + of_z).sigmoid()  # the gate that keeps h
        # The reset gate multiplies behind the product, bias included, as in cuDNN.
        n = (in_n + (in_r + of_r).sigmoid() * of_n).tanh()
        return ((1 - z) * n + z * h,)  # h' = (1 - s(z)) n + s(z) h


class CorePair(nn.Module):
    """Two cores of one kind side by side, so that policy and value share no weight. Each reads its half of the features.

    Its features, and its state, are those of the first core and then those of the second. The arguments are those of
    `make_core`, and the functions those of `Core`; input_size counts the features of both.
    """

    def __init__(self, name: str, input_size: int, size: int, memory: int = 0) -> None:
        super().__init__()
        make = CORES[name]
        self.first, self.second = (make(input_size // 2, size, memory) for _ in range(2))
        self.size = 2 * size
        self.state_size = self.first.state_size + self.second.state_size

    def initialise(self, generator: torch.Generator | None) -> None:
        for core in (self.first, self.second):
            core.initialise(generator)

    def forward(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return _joined(core(features, own) for core, features, own in self._halves(inputs, state))

    def unroll(self, inputs: Tensor, state: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
        return _joined(core.unroll(features, own, reset) for core, features, own in self._halves(inputs, state))

    def _halves(self, inputs: Tensor, state: Tensor) -> Iterator[tuple[Core, Tensor, Tensor]]:
        """Each core with its half of the features and of the state."""
        return zip((self.first, self.second), inputs.chunk(2, -1), state.chunk(2, -1), strict=True)


class HalfOfPair(nn.Module):
    """One core of a pair. It reads its own features, but takes the state of the pair and returns its own part of it.

    index: 0 for the first core, 1 for the second.
    """

    def __init__(self, pair: CorePair, index: int) -> None:
        super().__init__()
        self.core = (pair.first, pair.second)[index]
        self.size = self.core.size
        self.state_size = pair.state_size
        self._index = index

    def unroll(self, inputs: Tensor, state: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
        return self.core.unroll(inputs, state.chunk(2, -1)[self._index], reset)  # [B, K] of the pair -> [B, K / 2]


CORES: dict[str, Callable[[int, int, int], Core]] = {"lstm": LSTM, "gru": GRU}
"""Name on the command line (`--core`) -> class, which is called with the numbers of features, units and remembered steps."""


def core_names() -> tuple[str, ...]:
    """The values of `--core`."""
    return (NO_CORE, *sorted(CORES))


def make_core(name: str, input_size: int, size: int, memory: int = 0, *, pair: bool = False) -> Core | CorePair | None:
    """The core of that name, or a pair of them; None for `none`. Raises ValueError for an unknown name."""
    if name == NO_CORE:
        return None
    if name not in CORES:
        raise ValueError(f"core: wanted {listed(core_names())}, got {name!r}")
    return CorePair(name, input_size, size, memory) if pair else CORES[name](input_size, size, memory)


def _joined(parts: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    hidden, states = zip(*parts, strict=True)
    return torch.cat(hidden, -1), torch.cat(states, -1)  # policy's half first


def zeroed(state: Tensor, first: Tensor) -> Tensor:
    """The state `[N, ...]` with zeros where `first`, bool `[N]`, is true. A NaN of the episode before does not survive it."""
    return state.masked_fill(first.unsqueeze(-1), 0.0)  # not a product: 0 * NaN is NaN; no gradient passes
