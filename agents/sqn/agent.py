"""SQN, the soft Q network: twin Q-learning for the softmax policy of the values themselves, on windows of replayed steps.

    pi = softmax(min(Q_1, Q_2) / alpha) acts        V(x) = alpha log sum_a exp(min(Q'_1, Q'_2)(x, a) / alpha)
    y = G + D V(x')                                 loss = sum_k mean w (Q_k(x, a) - y)^2 / 2

Soft Q-learning (Haarnoja et al. 2017, arXiv:1702.08165) for choices, where pi needs no network of its own, with SAC's twin
critics. Evaluations take the best action.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from agents.acting import BEHAVIOUR_LOG_PROB
from agents.base import Agent, Needs
from agents.engine.stepper import Stepper
from agents.engine.targets import TargetNetwork
from agents.losses import Losses, Term
from agents.networks.base import NetworkConfig
from agents.networks.cores import NO_CORE
from agents.networks.q_network import ILLEGAL_VALUE, as_choices, choice_counts, chosen_values
from agents.returns.nstep import DEFAULTS, Transitions, needs_of_windows, transitions
from agents.returns.retrace import retrace, trace_coefficients
from agents.settings import (
    AdamEpsilon,
    AgentConfig,
    BatchesAtOnce,
    ClipOfEachLoss,
    ClipRewards,
    Gamma,
    HeldLearningRate,
    LearningRate,
    LearningStarts,
    NormaliseRewards,
    OptimizerName,
    PolyakRate,
    RetraceLambda,
    RewardClipping,
    RmspropEpsilon,
    UpdatesPerStep,
    WindowRows,
)
from agents.sqn.network import SoftQNetwork, SoftQOutput
from agents.unused_settings import OF_CORES, OF_DEVIATIONS, check_distribution, check_unused
from agents.values.acting import TARGET
from agents.values.q_learning import q_targets, weighted_mean
from agents.values.soft import expected_soft_values, soft_values
from replay.batch import Batch
from setting import Setting

CHOICE_ENTROPY = 0.98
"""Target entropy of a choice, as a part of the largest entropy, the logarithm of the number of legal values."""


@dataclass(frozen=True)
class SQNConfig(AgentConfig):
    """Settings of SQN. All losses are means over the windows of a batch."""

    lr: LearningRate = 1e-3
    lr_end_value: HeldLearningRate = -1.0
    optimizer: OptimizerName = "adam"
    rmsprop_eps: RmspropEpsilon = 0.01
    adam_eps: AdamEpsilon = 1e-8
    gradient_clip_by_norm_threshold: ClipOfEachLoss = 0.0
    gamma: Gamma = 0.99
    n_step: WindowRows = 1
    retrace_lambda: RetraceLambda = -1.0
    normalise_rewards: NormaliseRewards = False
    clip_rewards: ClipRewards = False
    reward_clipping_method: RewardClipping = "abs_one_sign"
    updates_per_step: UpdatesPerStep = 0.5
    learning_starts: LearningStarts = 1000
    batches_at_once: BatchesAtOnce = 8
    target_update_rate: PolyakRate = 0.005
    learn_temperature: Annotated[
        bool, Setting("Let the temperature alpha follow the entropy of the policy; otherwise it stays at --temperature.")
    ] = False
    temperature: Annotated[
        float, Setting("Temperature alpha of the policy at the start of the run.", "a number in (0, 1000]", 1e-6, 1000)
    ] = 0.1
    target_entropy_scale: Annotated[
        float,
        Setting(
            "Factor of the entropy that the temperature aims at: 0.98 log A for a choice of A legal values.",
            "a number from 0 to 1",
            0,
            1,
        ),
    ] = 1.0


class SQNAgent(Agent):
    """Soft Q-learning on windows. Each of the batches that are drawn at once gives one optimiser step."""

    config_class = SQNConfig
    network_class = SoftQNetwork
    compiles = False
    several_steps = True
    charts: ClassVar[dict[str, list[str]]] = {
        "loss": [r"losses/value_loss$"],
        "values of actions taken": [r"losses/value_mean$"],
        "temporal difference, absolute": [r"losses/td_error$"],
        "temperature": [r"losses/temperature$"],
        "entropy, nats": [r"losses/entropy$"],
    }
    # Each Q-function has a torso of its own, or both would err alike.
    defaults: ClassVar[dict[str, Any]] = {**DEFAULTS, "batch_size": 128, "separate_value": True, "greedy": True}
    unused = (*OF_DEVIATIONS, *OF_CORES)
    tuned = ("lr", "gamma", "target_update_rate", "updates_per_step")

    config: SQNConfig
    network: SoftQNetwork

    def __init__(self, config: SQNConfig, network: SoftQNetwork, *arguments: Any, **options: Any) -> None:
        self.target = TargetNetwork(network, rate=config.target_update_rate)
        super().__init__(config, network, *arguments, target_networks={TARGET: self.target}, steps_some=True, **options)

    @classmethod
    def needs(cls, config: SQNConfig) -> Needs:
        return needs_of_windows(config)

    @classmethod
    def check(cls, config: SQNConfig, network: NetworkConfig) -> None:
        choice_counts(network.action)  # raises ValueError for real numbers
        check_distribution(network, "sqn", "categorical")
        check_unused(network, "sqn", OF_DEVIATIONS)
        if network.settings.core != NO_CORE:
            raise ValueError(f"core: wanted {NO_CORE} with agent sqn, got {network.settings.core}; --agent=r2d2 has a memory")

    @classmethod
    def graphed(cls, config: SQNConfig) -> Literal["update"]:
        return "update"

    def load_state_dict(self, state: dict[str, Any], *, load_optimizer: bool) -> None:
        super().load_state_dict(state, load_optimizer=load_optimizer)
        if not self.config.learn_temperature:  # then it is a setting, which a resumed run may change
            self.network.log_alpha.data.fill_(math.log(self.config.temperature))

    def update(self, batch: Batch, step: Stepper) -> None:
        parts, columns = self.config.batches_at_once, torch.arange(batch.rewards.shape[1], device=batch.rewards.device)
        for index, part in enumerate(transitions(batch, self.config.gamma).split(parts)):
            if self.config.retrace_lambda == -1:
                targets = self.targets(part, step)  # y [N], constants of the step
            else:
                targets = self.traced_targets(batch.take_columns(columns[index::parts]), step)
            step.take_rows(self.losses, part, targets)

    def targets(self, part: Transitions, step: Stepper) -> Tensor:
        """y = G + D V(x') of N transitions, `[N]`."""
        following: SoftQOutput = step.passes.without_gradient(part.next_observations, network=self.target.network)
        values = soft_values(following.q, self.network.temperature, self.network.counts)
        return q_targets(part.returns, part.discounts, values)

    def traced_targets(self, windows: Batch, step: Stepper) -> Tensor:
        """Retrace's y of the first row of N windows, `[N]`. pi is the present softmax policy, and Q' the target network's."""
        network, config = self.network, self.config
        rows = windows.observations.shape[:2]  # n + 1, N
        observations = windows.observations.flatten(0, 1)
        lagged: SoftQOutput = step.passes.without_gradient(observations, network=self.target.network)
        present: SoftQOutput = step.passes.without_gradient(observations)
        q, policy = lagged.q.unflatten(0, rows), present.policy.unflatten(0, rows)  # [n+1, N, P] each
        log_pi = network.distribution.log_prob(policy[:-1], windows.actions)  # [n, N]
        return retrace(
            rewards=windows.rewards,
            discounts=config.gamma * (~windows.terminated).to(q.dtype),
            values=expected_soft_values(q, policy, network.temperature, network.counts),
            taken=chosen_values(q[:-1], self._choices(windows.actions), network.counts).mean(-1),
            traces=trace_coefficients(log_pi, windows.acting[BEHAVIOUR_LOG_PROB], config.retrace_lambda),
            mask=windows.action_used,
        )[0]

    def losses(self, part: Transitions, targets: Tensor) -> Losses:
        """The losses of N transitions, as means over them. targets: y, `[N]`."""
        network, config = self.network, self.config
        outputs: SoftQOutput = network(part.observations)
        choices = self._choices(part.actions).unsqueeze(1).expand(-1, 2, -1)  # [N, 2, D]: both learn of the action taken
        values = chosen_values(outputs.twins, choices, network.counts)  # Q_k(x, a), [N, 2, D]
        errors = targets.view(-1, 1, 1) - values  # each component learns the value of the whole action
        loss = weighted_mean(0.5 * errors.square().mean(-1).sum(1), part.weights)  # sum_k mean w (Q_k - y)^2 / 2
        terms = {"value_loss": Term(loss, parameters=network.critic_parameters)}
        entropy = (network.distribution.entropy(outputs.policy.detach()) / len(network.counts)).mean()  # of a component
        if config.learn_temperature:
            legal = [(part != ILLEGAL_VALUE).sum(-1) for part in outputs.q.detach().split(list(network.counts), -1)]
            wanted = config.target_entropy_scale * CHOICE_ENTROPY * torch.stack(legal).log().mean()  # H*
            # log alpha (H(pi) - H*), as SAC's: an entropy below its target lets the temperature grow.
            terms["temperature_loss"] = Term(network.log_alpha * (entropy - wanted), parameters=[network.log_alpha])
        sizes = errors.detach().abs().mean((1, 2))  # [N]
        metrics = {
            "losses/td_error": sizes.mean(),
            "losses/value_mean": values.detach().mean(),
            "losses/entropy": entropy,
            "losses/temperature": network.temperature,
        }
        return Losses(terms, metrics, sizes)

    def _choices(self, actions: Tensor) -> Tensor:
        """Actions as choices, int64 `[..., D]`."""
        return as_choices(actions, self.network.config.action)
