"""R2D2 (Kapturowski et al., ICLR 2019): Q-learning with a memory, on whole sequences of replayed rows.

A sequence is a stored trajectory. Its burn-in rows only rebuild the state of the core from the state that acting has stored, in
the network that learns and in the target network. Windows of n steps start at each later row whose action was used.
`--nostored_state` begins with zeros in place of the stored state, for comparisons.

    y = h(G + D h^-1(Q'(x', argmax_a Q(x', a))))        loss of a sequence = 0.5 sum_t (y_t - Q(x_t, a_t))^2
    priority = eta max_t |delta_t| + (1 - eta) mean_t |delta_t|

The loss of a batch is the mean of w * loss over its sequences. Sequences overlap by their burn-in alone, as in SEED RL
(arXiv:1910.06591): every row is learned from once a pass. The paper lets them overlap by half.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from agents.base import Needs
from agents.graphs import Outcome
from agents.guarded import LearningRate
from agents.learned import LearnedAgent, Loss, Losses, per_step
from agents.losses import used_mean
from agents.networks.base import NetworkConfig
from agents.networks.cores import NO_CORE
from agents.networks.q_network import QOutput, as_choices, best_choices, chosen_values
from agents.off_policy import DEFAULTS, Clip, Gamma, LearningStarts, Steps, UpdatesPerStep
from agents.values.agent import ValueAgent, stored_errors
from agents.values.config import AdamEpsilon, Double, Dueling, Exploration, TargetPeriod, ValueConfig
from agents.values.q_learning import weighted_mean
from agents.values.sequences import ETA, sequence_losses, sequence_priorities
from agents.values.windows import targets_of, windows_of_rows
from replay.batch import Batch, InitialErrors
from setting import Setting

REPLAY = (
    '[{"type": "prioritised", "steps": 1000000, "sample_ratio": 1.0, "alpha": 0.9, "beta": 0.6, "beta_end": 0.6, '
    '"priority_epsilon": 0.001}]'
)


@dataclass(frozen=True)
class R2d2Config(ValueConfig):
    """Settings of R2D2."""

    lr: LearningRate = 1e-4
    gradient_clip_by_norm_threshold: Clip = 40.0
    adam_eps: AdamEpsilon = 1e-3
    gamma: Gamma = 0.997
    n_step: Steps = 5
    double: Double = True
    dueling: Dueling = True
    exploration: Exploration = "ladder"
    target_update_period: TargetPeriod = 2500
    learning_starts: LearningStarts = 10_000
    updates_per_step: UpdatesPerStep = 0.0003
    batches_at_once: int = 1
    eta: Annotated[
        float,
        Setting(
            "Weight of a sequence's largest temporal difference in its priority, against their mean.",
            "a weight in [0, 1]",
            0,
            1,
        ),
    ] = ETA
    value_rescaling: Annotated[
        bool, Setting("Learn h(Q), h(x) = sign(x) (sqrt(|x| + 1) - 1) + 0.001 x, so that rewards need no clipping.")
    ] = True
    stored_state: Annotated[
        bool, Setting("Start a sequence with the core's state that acting has stored; otherwise with zeros.")
    ] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.value_rescaling and self.clip_rewards:
            raise ValueError("clip_rewards: wanted false with --value_rescaling, which takes its place, got true")

    @property
    def needs(self) -> Needs:
        return replace(super().needs, window=0)


class Sequences(NamedTuple):
    """B sequences of T learned rows.

    batch: without rows of burn-in. target: values by the target network, `[T+1, B, P]`.
    """

    batch: Batch
    target: Tensor


class R2d2Agent(ValueAgent, LearnedAgent):
    """Double Q-learning with a recurrent network on sequences."""

    config_class = R2d2Config
    graphed = True
    defaults = {
        **DEFAULTS,
        "batch_size": 64,
        "unroll_length": 80,
        "core": "lstm",
        "core_size": 512,
        "burn_in": 40,
        "replay_parameters": REPLAY,
        "episodic_life": False,  # lost lives do not end an episode, as in the paper
        "checkpoint_period": 100,  # an update comes after some thousand steps
    }

    config: R2d2Config

    @classmethod
    def check(cls, config: R2d2Config, network: NetworkConfig) -> None:
        super().check(config, network)
        if network.settings.core == NO_CORE:
            raise ValueError(f"core: wanted lstm or gru with agent r2d2, got {NO_CORE}; --agent=dqn has no memory")

    @classmethod
    def value_meaning(cls, config: Any) -> str:
        rescaled = "h(x) = sign(x) (sqrt(|x| + 1) - 1) + 0.001 x of the " if config.value_rescaling else ""
        return rescaled + super().value_meaning(config)

    @classmethod
    def initial_errors(cls, config: R2d2Config, network: NetworkConfig) -> InitialErrors:
        burn_in = network.settings.burn_in

        def errors(trajectory: Mapping[str, np.ndarray]) -> np.ndarray:
            of_rows = stored_errors(trajectory, config, burn_in, rescaling=config.value_rescaling)
            known = torch.from_numpy(trajectory["action_used"][burn_in:, None].copy()) & of_rows.isfinite()
            priorities = sequence_priorities(of_rows, known, config.eta)
            return torch.where(known.any(0), priorities, torch.nan).numpy()

        return errors

    def take_steps(self, batch: Batch) -> Outcome:
        inputs = self.finite_inputs(batch)
        if not self.config.stored_state and batch.recurrent_state is not None:
            batch = replace(batch, recurrent_state=torch.zeros_like(batch.recurrent_state))
        learned = self.scaled(batch.without_overlap())
        self.target.network.draw_noise()
        target: QOutput = self.target_passes.without_gradient(batch.observations, batch.recurrent_state, batch.reset)
        self.network.draw_noise()
        leaves, outputs = self._forward(batch)
        # Burn-in rows only make the state. The learned network's pass leaves them out; those of the target's are cut off.
        errors = self.errors(Sequences(learned, target.q[batch.overlap :]), outputs)
        terms, metrics = self.losses(learned, (outputs, errors))
        step = self.take_step(terms, leaves, inputs)
        self.merge_moments(learned, step.sound)
        priorities = sequence_priorities(errors, learned.action_used, self.config.eta)
        scalars = {**per_step(terms, 1), **metrics, **self.gradient_metrics(step.gradient_norm)}
        return Outcome(scalars, step.sound, torch.where(step.sound, priorities, torch.nan))

    def losses(self, batch: Batch, outputs: tuple[QOutput, Tensor]) -> Losses:
        """The loss of one step. outputs: of the network, `[T+1, B, ...]`, and the temporal differences `[T, B]`."""
        online, errors = outputs
        used = batch.action_used
        loss = weighted_mean(sequence_losses(errors, used), batch.weights)
        values = chosen_values(online.q[:-1].detach(), self._choices(batch), self.network.counts).mean(-1)
        metrics = {
            "losses/td_error": used_mean(errors.detach().abs(), used),
            "losses/value_mean": used_mean(values, used),
            **self.acting_metrics(),
        }
        return Losses({"value_loss": Loss(loss, 1.0, "mean")}, metrics)

    def errors(self, sequences: Sequences, outputs: QOutput) -> Tensor:
        """The temporal differences of all rows, `[T, B]`, with gradient. outputs: of the network, `[T+1, B, ...]`.

        Rows without a window have a number without a meaning, which the losses leave out.
        """
        config, batch, counts = self.config, sequences.batch, self.network.counts
        # Row T has values to bootstrap from, but no action: values of actions are those of rows 0 to T-1.
        selecting = outputs.q.detach() if config.double else sequences.target
        values = chosen_values(sequences.target, best_choices(selecting, counts), counts).mean(-1)  # [T+1, B]
        taken = chosen_values(outputs.q[:-1], self._choices(batch), counts).mean(-1)
        return sequence_targets(batch, values, config) - taken

    def _choices(self, batch: Batch) -> Tensor:
        """The actions taken, int64 `[T, B, D]`."""
        return as_choices(batch.actions, self.network.config.action)


def sequence_targets(batch: Batch, values: Tensor, config: R2d2Config) -> Tensor:
    """y for each row, `[T, B]`, without gradient.

    Args:
        batch: B sequences of T learned rows.
        values: `[T+1, B]`, of the best action by the target network, as the network learns them.
        config: the discount, n, and whether values are rescaled.
    """
    windows = windows_of_rows(config.clipped(batch.rewards), batch.terminated, batch.action_used, config.n_step, config.gamma)
    return targets_of(windows, values, rescaling=config.value_rescaling)
