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
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from agents.base import Agent, Needs
from agents.engine.stepper import Stepper
from agents.engine.targets import TargetNetwork
from agents.losses import Losses, Term, used_mean
from agents.networks.base import NetworkConfig
from agents.networks.cores import NO_CORE
from agents.networks.q_network import (
    EXPECTATION,
    QNetwork,
    QOutput,
    ReturnDistribution,
    as_choices,
    best_choices,
    chosen_values,
)
from agents.returns.nstep import DEFAULTS, needs_of_windows
from agents.settings import (
    AdamEpsilon,
    AgentConfig,
    ClipOfEachLoss,
    ClipRewards,
    Gamma,
    HeldLearningRate,
    LearningRate,
    LearningStarts,
    NormaliseRewards,
    OptimizerName,
    RewardClipping,
    RmspropEpsilon,
    UpdatesPerStep,
    WindowRows,
)
from agents.unused_settings import OF_POLICIES
from agents.values.acting import (
    CHARTS,
    TARGET,
    VALUE_MEANING,
    check_choices,
    check_exploration,
    epsilon_metrics,
    move_epsilon,
    stored_errors,
)
from agents.values.q_learning import weighted_mean
from agents.values.sequences import ETA, sequence_losses, sequence_priorities
from agents.values.settings import (
    Double,
    Dueling,
    Epsilon,
    EpsilonEnd,
    EpsilonFraction,
    EpsilonStart,
    EpsilonZeta,
    Exploration,
    Noisy,
    TargetPeriod,
    TargetRate,
)
from agents.values.windows import targets_of, windows_of_rows
from replay.batch import Batch, InitialErrors
from setting import Setting

REPLAY = (
    '[{"type": "prioritised", "steps": 1000000, "sample_ratio": 1.0, "alpha": 0.9, "beta": 0.6, "beta_end": 0.6, '
    '"priority_epsilon": 0.001}]'
)


@dataclass(frozen=True)
class R2d2Config(AgentConfig):
    """Settings of R2D2."""

    lr: LearningRate = 1e-4
    lr_end_value: HeldLearningRate = -1.0
    optimizer: OptimizerName = "adam"
    rmsprop_eps: RmspropEpsilon = 0.01
    adam_eps: AdamEpsilon = 1e-3
    gradient_clip_by_norm_threshold: ClipOfEachLoss = 40.0
    gamma: Gamma = 0.997
    n_step: WindowRows = 5
    normalise_rewards: NormaliseRewards = False
    clip_rewards: ClipRewards = False
    reward_clipping_method: RewardClipping = "abs_one_sign"
    updates_per_step: UpdatesPerStep = 0.0003
    learning_starts: LearningStarts = 10_000
    batches_at_once: int = 1
    double: Double = True
    dueling: Dueling = True
    noisy: Noisy = False
    exploration: Exploration = "ladder"
    epsilon_start: EpsilonStart = 1.0
    epsilon_end: EpsilonEnd = 0.05
    epsilon_fraction: EpsilonFraction = 0.1
    epsilon_zeta: EpsilonZeta = 0.0
    epsilon: Epsilon = 0.0
    target_update_period: TargetPeriod = 2500
    target_update_rate: TargetRate = 1.0
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
        check_exploration(self)
        if self.value_rescaling and self.clip_rewards:
            raise ValueError("clip_rewards: wanted false with --value_rescaling, which takes its place, got true")

    @property
    def distribution(self) -> ReturnDistribution:
        """The heads learn the expected return."""
        return EXPECTATION


class R2d2Agent(Agent):
    """Double Q-learning with a recurrent network on sequences."""

    config_class = R2d2Config
    network_class = QNetwork
    tuned = ("lr", "gamma", "n_step", "target_update_period")
    charts = CHARTS
    unused = OF_POLICIES
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
    network: QNetwork

    def __init__(self, config: R2d2Config, network: QNetwork, *arguments: Any, **options: Any) -> None:
        self.target = TargetNetwork(network, config.target_update_period, config.target_update_rate)
        super().__init__(config, network, *arguments, target_networks={TARGET: self.target}, **options)

    @classmethod
    def needs(cls, config: R2d2Config) -> Needs:
        return replace(needs_of_windows(config), window=0)  # a batch has whole trajectories

    @classmethod
    def graphed(cls, config: R2d2Config) -> Literal["update"]:
        return "update"

    @classmethod
    def check(cls, config: R2d2Config, network: NetworkConfig) -> None:
        check_choices(network, cls.name())
        if network.settings.core == NO_CORE:
            raise ValueError(f"core: wanted lstm or gru with agent r2d2, got {NO_CORE}; --agent=dqn has no memory")

    @classmethod
    def value_meaning(cls, config: R2d2Config) -> str:
        rescaled = "h(x) = sign(x) (sqrt(|x| + 1) - 1) + 0.001 x of the " if config.value_rescaling else ""
        return rescaled + VALUE_MEANING

    @classmethod
    def initial_errors(cls, config: R2d2Config, network: NetworkConfig) -> InitialErrors:
        burn_in = network.settings.burn_in

        def errors(trajectory: Mapping[str, np.ndarray]) -> np.ndarray:
            of_rows = stored_errors(trajectory, config, burn_in, rescaling=config.value_rescaling)  # [T, 1]
            known = torch.from_numpy(trajectory["action_used"][burn_in:, None].copy()) & of_rows.isfinite()  # [T, 1]
            priorities = sequence_priorities(of_rows, known, config.eta)  # [1]
            # NaN: no row has a known error, so the replay gives its largest priority.
            return torch.where(known.any(0), priorities, torch.nan).numpy()

        return errors

    def update(self, batch: Batch, step: Stepper) -> None:
        if not self.config.stored_state:
            whole = batch.whole or batch
            assert whole.recurrent_state is not None
            batch = replace(batch, whole=replace(whole, recurrent_state=torch.zeros_like(whole.recurrent_state)))
        self.target.network.draw_noise()  # each network has noise of its own, which stays for the whole sequence
        # Both networks unroll from the stored state, which is that of the network that acted, through the burn-in rows.
        target: QOutput = step.without_gradient(batch, self.target.network)  # q [T+1, B, P]
        self.network.draw_noise()
        # Burn-in rows only make the state of both networks' cores.
        step.take(*self.losses(batch, step.forward(batch), target.q))
        move_epsilon(self.config, self.network, step)

    def losses(self, batch: Batch, outputs: QOutput, target: Tensor) -> Losses:
        """The loss of one step. outputs: of the network, `[T+1, B, P]`. target: values by the target network, `[T+1, B, P]`."""
        used, counts = batch.action_used, self.network.counts
        errors = self.errors(batch, outputs, target)  # [T, B]
        loss = weighted_mean(sequence_losses(errors, used), batch.weights)  # w [B] times losses [B]
        values = chosen_values(outputs.q[:-1].detach(), self._choices(batch), counts).mean(-1)  # [T, B]
        metrics = {
            "losses/td_error": used_mean(errors.detach().abs(), used),
            "losses/value_mean": used_mean(values, used),
            **epsilon_metrics(self.config, self.network),
        }
        return Losses({"value_loss": Term(loss)}, metrics, sequence_priorities(errors, used, self.config.eta))

    def errors(self, batch: Batch, outputs: QOutput, target: Tensor) -> Tensor:
        """The temporal differences of all rows, `[T, B]`, with gradient. Arguments as for `losses`.

        Rows without a window have a number without a meaning, which the losses leave out.
        """
        config, counts = self.config, self.network.counts
        # Row T has values to bootstrap from, but no action: values of actions are those of rows 0 to T-1.
        selecting = outputs.q.detach() if config.double else target  # [T+1, B, P]
        values = chosen_values(target, best_choices(selecting, counts), counts).mean(-1)  # [T+1, B]
        taken = chosen_values(outputs.q[:-1], self._choices(batch), counts).mean(-1)  # [T, B]
        return sequence_targets(batch, values, config) - taken  # delta_t = y_t - Q(x_t, a_t)

    def _choices(self, batch: Batch) -> Tensor:
        """The actions taken, int64 `[T, B, D]`."""
        return as_choices(batch.actions, self.network.config.action)


def sequence_targets(batch: Batch, values: Tensor, config: R2d2Config) -> Tensor:
    """y for each row, `[T, B]`, without gradient.

    Args:
        batch: B sequences of T learned rows, with the rewards that are learned from.
        values: `[T+1, B]`, of the best action by the target network, as the network learns them.
        config: the discount, n, and whether values are rescaled.
    """
    # G, D and m of each row, [T, B]
    windows = windows_of_rows(batch.rewards, batch.terminated, batch.action_used, config.n_step, config.gamma)
    return targets_of(windows, values, rescaling=config.value_rescaling)
