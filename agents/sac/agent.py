"""Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905), and its form for one choice (Christodoulou, arXiv:1910.07207)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from agents.base import Agent, Needs
from agents.continuous.actors import StochasticActor
from agents.continuous.critics import CHARTS, CRITICS, TARGETS, Dropout, LayerNorm, check_bounded, check_network, make_critics
from agents.continuous.losses import (
    critic_errors,
    critic_loss,
    mean_entropy,
    soft_choice_policy_loss,
    soft_choice_targets,
    soft_policy_loss,
    soft_targets,
    temperature_loss,
)
from agents.distributions import ILLEGAL_LOGIT, SquashedGaussian
from agents.engine.stepper import Stepper
from agents.engine.targets import TargetNetwork
from agents.losses import Losses, Term
from agents.networks.base import NetworkConfig
from agents.returns.nstep import DEFAULTS, Transitions, needs_of_windows, transitions
from agents.settings import (
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
    RewardClipping,
    RmspropEpsilon,
    UpdatesPerStep,
    WindowRows,
)
from agents.unused_settings import OF_CORES, OF_DEVIATIONS, check_distribution
from replay.batch import Batch
from setting import Setting
from wrappers.spaces import Discrete

TEMPERATURE = "temperature"
"""Name of the module in a checkpoint."""
CHOICE_ENTROPY = 0.98
"""Target entropy of one choice, as a part of the largest entropy, the logarithm of the number of legal actions."""
CRITIC_WEIGHT = 0.5
"""Weight of each critic's mean squared error."""


@dataclass(frozen=True)
class SACConfig(AgentConfig):
    """Settings of SAC. Those of Stable-Baselines3 are the defaults. All losses are means over the windows of a batch."""

    lr: LearningRate = 3e-4
    lr_end_value: HeldLearningRate = -1.0
    optimizer: OptimizerName = "adam"
    rmsprop_eps: RmspropEpsilon = 0.01
    adam_eps: float = 1e-8
    gradient_clip_by_norm_threshold: ClipOfEachLoss = 0.0
    gamma: Gamma = 0.99
    n_step: WindowRows = 1
    normalise_rewards: NormaliseRewards = False
    clip_rewards: ClipRewards = False
    reward_clipping_method: RewardClipping = "abs_one_sign"
    updates_per_step: UpdatesPerStep = 1.0
    learning_starts: LearningStarts = 10_000
    batches_at_once: BatchesAtOnce = 8
    target_update_rate: PolyakRate = 0.005
    critic_layer_norm: LayerNorm = False
    critic_dropout: Dropout = 0.0
    learn_temperature: Annotated[
        bool, Setting("Let the temperature alpha follow the entropy of the policy; otherwise it stays at --temperature.")
    ] = True
    temperature: Annotated[
        float, Setting("Weight alpha of the entropy at the start of the run.", "a number in (0, 1000]", 1e-9, 1000)
    ] = 1.0
    target_entropy_scale: Annotated[
        float,
        Setting(
            "Factor of the entropy, in nats, that the temperature aims at: -D for an action of D numbers, 0.98 log A for one "
            "choice of A legal ones.",
            "a number from -100 to 100",
            -100,
            100,
        ),
    ] = 1.0


class Temperature(nn.Module):
    """The temperature alpha, learned as its logarithm."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.full((), math.log(start)))  # alpha itself could become negative

    def forward(self) -> Tensor:
        """alpha, `[]`, without gradient."""
        return self.log_alpha.detach().exp()  # alpha is a constant of the other losses


class SACLossInputs(NamedTuple):
    """The quantities of N transitions that the losses of SAC are made of.

    q: `[2, N]`, Q-values of the actions taken, with gradient. targets: `[N]`. actor_loss: `[]`, with gradient. entropy: `[]`,
    the policy's mean entropy in nats. usual_entropy: in nats, which the temperature aims at unless a setting scales it.
    """

    q: Tensor
    targets: Tensor
    actor_loss: Tensor
    entropy: Tensor
    usual_entropy: Tensor | float


class SACAgent(Agent):
    """Twin critics, a stochastic policy that is rewarded for entropy, and a learned temperature."""

    config_class = SACConfig
    network_class = StochasticActor
    tuned = ("lr", "gamma", "target_update_rate", "updates_per_step")
    compiles = False  # compiled networks took 1.2 times as long
    several_steps = True
    charts = {**CHARTS, "temperature": [r"losses/temperature$"], "entropy, nats": [r"losses/entropy$"]}
    defaults = DEFAULTS
    unused = ("separate_value", *OF_CORES, *OF_DEVIATIONS)

    config: SACConfig
    network: StochasticActor

    def __init__(self, config: SACConfig, network: StochasticActor, *arguments: Any, **options: Any) -> None:
        self.critics = make_critics(2, network, config)  # twins, of which the smaller value counts
        self.target_critics = TargetNetwork(self.critics, rate=config.target_update_rate)
        self.temperature = Temperature(config.temperature).to(network.policy_head.weight.device)
        # The critics' loss alone changes an encoder that they share with the actor.
        self.critic_parameters = [*self.critics.parameters(), *network.encoder_parameters]
        self.actor_parameters = network.actor_parameters
        modules = {CRITICS: self.critics, TEMPERATURE: self.temperature}
        target_networks = {TARGETS: self.target_critics}
        super().__init__(
            config, network, *arguments, modules=modules, target_networks=target_networks, steps_some=True, **options
        )

    @classmethod
    def needs(cls, config: SACConfig) -> Needs:
        return needs_of_windows(config)

    @classmethod
    def check(cls, config: SACConfig, network: NetworkConfig) -> None:
        check_network(network, "sac")
        if isinstance(network.action, Discrete):
            check_distribution(network, "sac", "categorical")
            return
        check_bounded(network, "sac", "one choice, or actions that are real numbers between finite bounds,")
        check_distribution(network, "sac", "squashed_gaussian")

    @classmethod
    def graphed(cls, config: SACConfig) -> Literal["update"]:
        return "update"

    def load_state_dict(self, state: dict[str, Any], *, load_optimizer: bool) -> None:
        super().load_state_dict(state, load_optimizer=load_optimizer)
        if not self.config.learn_temperature:  # then it is a setting, which a resumed run may change
            self.temperature.log_alpha.data.fill_(math.log(self.config.temperature))

    def update(self, batch: Batch, step: Stepper) -> None:
        self.network.acts_randomly.zero_()  # the first update comes when learning starts
        for part in transitions(batch, self.config.gamma).split(self.config.batches_at_once):
            step.take_rows(self.losses, part, *self._normals(part), draws=self.config.critic_dropout > 0)

    def losses(self, part: Transitions, *normals: Tensor) -> Losses:
        """The losses of N transitions, as means over them. normals: `[N, 2, D]`, which draw the policy's actions."""
        alpha = self.temperature()  # that before this step, in all losses
        # Of the two sets of normals [N, D] one draws a_pi at x_t, and the other a' at x'.
        found = self._numbers(part, alpha, *normals[0].unbind(1)) if normals else self._choice(part, alpha)
        loss = CRITIC_WEIGHT * critic_loss(found.q, found.targets, part.weights)  # 0.5 sum_k mean w (Q_k - y)^2
        terms = {
            "critic_loss": Term(loss, parameters=self.critic_parameters),
            "actor_loss": Term(found.actor_loss, parameters=self.actor_parameters),
        }
        if self.config.learn_temperature:
            wanted = self.config.target_entropy_scale * found.usual_entropy  # H*
            loss = temperature_loss(self.temperature.log_alpha, found.entropy, wanted)  # log alpha (H(pi) - H*)
            terms["temperature_loss"] = Term(loss, parameters=[self.temperature.log_alpha])
        metrics = {
            "losses/q": found.q.detach().mean(),
            "losses/target": found.targets.mean(),
            "losses/entropy": found.entropy,
            "losses/temperature": alpha,
        }
        return Losses(terms, metrics, critic_errors(found.q, found.targets))

    def _normals(self, part: Transitions) -> tuple[Tensor, ...]:
        """Standard normal numbers `[N, 2, D]`. Expectations over all actions of one choice need none."""
        if isinstance(self.network.config.action, Discrete):
            return ()
        # Drawn here and not in the losses, which several threads compute: the numbers would depend on their order.
        return (torch.randn((len(part.actions), 2, *part.actions.shape[1:]), device=part.actions.device),)

    def _numbers(self, part: Transitions, alpha: Tensor, normals: Tensor, next_normals: Tensor) -> SACLossInputs:
        """For actions of D real numbers. normals, next_normals: `[N, D]`, which draw the policy's actions."""
        network, distribution = self.network, self.network.distribution
        assert isinstance(distribution, SquashedGaussian)
        encoded = network.encode(part.observations)  # [N, F]
        with torch.no_grad():
            next_encoded = network.encode(part.next_observations)
            next_policy = network.policy(part.next_observations, next_encoded)  # [N, 2 D]
            # New actions of the present policy, not the stored ones.
            # a' [N, D], log pi(a'|x') [N]
            next_actions, next_log_probs = distribution.reparametrised(next_policy, next_normals)
            next_q = self.target_critics.network(next_encoded, next_actions)  # Q'_k(x', a') [2, N]
            targets = soft_targets(part.returns, part.discounts, next_q, next_log_probs, alpha)  # y [N]
        q = self.critics(encoded, part.actions)  # Q_k(x, a) [2, N], whose gradient reaches a shared encoder
        # The actor's loss passes through the critics to the actions. It changes neither the critics nor a shared encoder.
        actions, log_probs = distribution.reparametrised(network.policy(part.observations, encoded), normals)  # [N, D], [N]
        actor_loss = soft_policy_loss(self.critics(encoded.detach(), actions), log_probs, alpha)
        return SACLossInputs(q, targets, actor_loss, -log_probs.detach().mean(), -float(actions.shape[-1]))

    def _choice(self, part: Transitions, alpha: Tensor) -> SACLossInputs:
        """For one choice. An illegal action has probability 0, so its value counts nowhere."""
        network = self.network
        encoded = network.encode(part.observations)  # [N, F]
        with torch.no_grad():
            next_encoded = network.encode(part.next_observations)
            next_logits = network.policy(part.next_observations, next_encoded)  # [N, A]
            next_q = self.target_critics.network(next_encoded)  # [2, N, A], all values in one pass
            targets = soft_choice_targets(part.returns, part.discounts, next_q, next_logits, alpha)  # y [N]
        q = self.critics(encoded)  # [2, N, A]
        logits = network.policy(part.observations, encoded)  # [N, A]
        loss = soft_choice_policy_loss(q.detach(), logits, alpha)  # the policy's loss must not teach the critics
        index = part.actions.long().expand(len(q), -1).unsqueeze(-1)  # [2, N, 1]: both critics learn of the action taken
        # The largest entropy of a state is the logarithm of its LEGAL actions: a target above it would let alpha grow for ever.
        legal = (logits.detach() > ILLEGAL_LOGIT / 2).sum(-1)  # [N]
        usual_entropy = CHOICE_ENTROPY * legal.log().mean()  # mean 0.98 log A
        return SACLossInputs(q.gather(-1, index).squeeze(-1), targets, loss, mean_entropy(logits), usual_entropy)
