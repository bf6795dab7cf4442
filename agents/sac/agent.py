"""Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905), and its form for one choice (Christodoulou, arXiv:1910.07207).

y = G + D (min_k Q'_k(x', a') - alpha log pi(a'|x'))      critics: 0.5 mean (Q_k - y)^2, summed over k
actor: mean (alpha log pi - min_k Q_k(x, a_pi))           temperature: log alpha (H(pi) - H*)

Settings make it TQC (quantiles, the largest of which targets leave out), REDQ (the minimum over a few of many critics) or DroQ
(dropout and layer normalisation), with several updates a step.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from agents.acting import BEHAVIOUR_LOG_PROB
from agents.base import Agent, Needs
from agents.continuous.actors import StochasticActor
from agents.continuous.critics import (
    BOUNDED,
    CHARTS,
    CRITICS,
    STEPS,
    TARGETS,
    CriticCount,
    CriticQuantiles,
    CriticSizes,
    CriticSubset,
    Dropout,
    DroppedQuantiles,
    LayerNorm,
    check_bounded,
    check_critics,
    check_network,
    make_critics,
)
from agents.continuous.losses import (
    critic_errors,
    critic_loss,
    drawn_critics,
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
from agents.returns.retrace import retrace, trace_coefficients
from agents.settings import (
    AdamMomentum,
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
    WeightDecay,
    WindowRows,
)
from agents.unused_settings import OF_CORES, OF_DEVIATIONS, check_distribution
from agents.values.q_learning import value_of
from agents.values.soft import expected_soft_values
from replay.batch import Batch
from setting import Setting
from wrappers.spaces import Discrete

TEMPERATURE = "temperature"
"""Name of the module in a checkpoint."""
CHOICE_ENTROPY = 0.98
"""Target entropy of one choice, as a part of the largest entropy, the logarithm of the number of legal actions."""
CRITIC_WEIGHT = 0.5
"""Weight of each critic's mean squared error."""

ActorDelay = Annotated[
    int,
    Setting(
        "Steps of the critics for each step of actor and temperature (REDQ 20, CrossQ 3).",
        "a whole number of steps from 1 to 1000",
        1,
        1000,
    ),
]


@dataclass(frozen=True)
class SoftConfig(AgentConfig):
    """The settings that SAC, TQC and CrossQ share. All losses are means over the windows of a batch."""

    lr: LearningRate = 3e-4
    lr_end_value: HeldLearningRate = -1.0
    optimizer: OptimizerName = "adam"
    rmsprop_eps: RmspropEpsilon = 0.01
    adam_eps: float = 1e-8
    adam_beta1: AdamMomentum = 0.9
    weight_decay: WeightDecay = 0.0
    gradient_clip_by_norm_threshold: ClipOfEachLoss = 0.0
    gamma: Gamma = 0.99
    n_step: WindowRows = 1
    normalise_rewards: NormaliseRewards = False
    clip_rewards: ClipRewards = False
    reward_clipping_method: RewardClipping = "abs_one_sign"
    updates_per_step: UpdatesPerStep = 1.0
    learning_starts: LearningStarts = 10_000
    batches_at_once: BatchesAtOnce = 8
    critics: CriticCount = 2
    critic_subset: CriticSubset = 0
    critic_quantiles: CriticQuantiles = 0
    dropped_quantiles: DroppedQuantiles = 0
    critic_hidden_sizes: CriticSizes = "same"
    critic_dropout: Dropout = 0.0
    delay: ActorDelay = 1
    actor_value: Annotated[
        Literal["min", "mean"], Setting("Value of the critics that the actor maximises: the smallest, or the mean (REDQ).")
    ] = "min"
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

    def __post_init__(self) -> None:
        super().__post_init__()
        check_critics(self)
        if self.critic_subset > self.critics:
            raise ValueError(f"critic_subset: wanted at most the {self.critics} of --critics, got {self.critic_subset}")


@dataclass(frozen=True)
class SACConfig(SoftConfig):
    """Settings of SAC. Those of Stable-Baselines3 are the defaults."""

    target_update_rate: PolyakRate = 0.005
    critic_layer_norm: LayerNorm = False
    retrace_lambda: RetraceLambda = -1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.retrace_lambda != -1 and self.critic_subset:
            raise ValueError(f"critic_subset: wanted 0 with --retrace_lambda, got {self.critic_subset}")


class Temperature(nn.Module):
    """The temperature alpha, learned as its logarithm."""

    decays = False  # weight decay would pull alpha towards 1

    def __init__(self, start: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.full((), math.log(start)))  # alpha itself could become negative

    def forward(self) -> Tensor:
        """alpha, `[]`, without gradient."""
        return self.log_alpha.detach().exp()  # alpha is a constant of the other losses


class PolicyLoss(NamedTuple):
    """loss: `[]`, the actor's, with gradient. entropy: `[]`, the policy's mean entropy in nats. usual_entropy: in nats, which
    the temperature aims at unless a setting scales it."""

    loss: Tensor
    entropy: Tensor
    usual_entropy: Tensor | float


class SACAgent(Agent):
    """Several critics, a stochastic policy that is rewarded for entropy, and a learned temperature."""

    config_class: ClassVar[type] = SACConfig
    network_class = StochasticActor
    tuned: ClassVar[tuple[str, ...]] = ("lr", "gamma", "target_update_rate", "updates_per_step")
    compiles = False  # compiled networks took 1.2 times as long
    several_steps = True
    charts = {**CHARTS, "temperature": [r"losses/temperature$"], "entropy, nats": [r"losses/entropy$"]}
    defaults = DEFAULTS
    unused = ("separate_value", *OF_CORES, *OF_DEVIATIONS)

    config: Any
    network: StochasticActor

    def __init__(self, config: SoftConfig, network: StochasticActor, *arguments: Any, **options: Any) -> None:
        self.chooses = isinstance(network.config.action, Discrete)  # one choice; otherwise D real numbers
        self.critics = make_critics(network, config)
        self.temperature = Temperature(config.temperature).to(network.policy_head.weight.device)
        # The critics' loss alone changes an encoder that they share with the actor.
        self.critic_parameters = [*self.critics.parameters(), *network.encoder_parameters]
        self.actor_parameters = network.actor_parameters
        self.asked = torch.zeros((), dtype=torch.int64)  # steps of the critics, also refused ones: the host waits for no GPU
        options |= {"modules": {CRITICS: self.critics, TEMPERATURE: self.temperature}}
        options |= {"extra_state": {STEPS: {"count": self.asked}}, "asked": self.asked, "steps_some": True}
        super().__init__(config, network, *arguments, target_networks=self.make_targets(config), **options)

    def make_targets(self, config: Any) -> dict[str, TargetNetwork]:
        """The critics of the targets, by name."""
        self.target_critics = TargetNetwork(self.critics, rate=config.target_update_rate)
        return {TARGETS: self.target_critics}

    @classmethod
    def needs(cls, config: SoftConfig) -> Needs:
        return needs_of_windows(config)

    @classmethod
    def check(cls, config: SoftConfig, network: NetworkConfig) -> None:
        check_network(network, cls.name(), config)
        if isinstance(network.action, Discrete) and not config.critic_quantiles:
            check_distribution(network, cls.name(), "categorical")
            return
        if (given := getattr(config, "retrace_lambda", -1.0)) != -1:
            raise ValueError(f"retrace_lambda: wanted -1 for {network.action.summary()}, got {given:g}")
        # Quantiles of every action would have to be dropped action by action.
        check_bounded(network, cls.name(), BOUNDED if config.critic_quantiles else f"one choice, or {BOUNDED},")
        check_distribution(network, cls.name(), "squashed_gaussian")

    @classmethod
    def graphed(cls, config: SoftConfig) -> Literal["update"]:
        return "update"

    @property
    def variant(self) -> Hashable:
        return int(self.asked) % int(self.config.delay)

    def load_state_dict(self, state: dict[str, Any], *, load_optimizer: bool) -> None:
        super().load_state_dict(state, load_optimizer=load_optimizer)
        if not self.config.learn_temperature:  # then it is a setting, which a resumed run may change
            self.temperature.log_alpha.data.fill_(math.log(self.config.temperature))

    def update(self, batch: Batch, step: Stepper) -> None:
        config = self.config
        self.network.acts_randomly.zero_()  # the first update comes when learning starts
        parts = transitions(batch, config.gamma).split(config.batches_at_once)
        columns = torch.arange(batch.rewards.shape[1], device=batch.rewards.device)
        retraces = getattr(config, "retrace_lambda", -1.0) != -1
        before = int(self.asked)
        for number, part in enumerate(parts, before + 1):  # steps count from 1
            losses = partial(self.losses, actor_learns=number % config.delay == 0)
            first = number - 1 - before
            traced = (self.traced_targets(batch.take_columns(columns[first :: config.batches_at_once])),) if retraces else ()
            step.take_rows(losses, part, *self.drawn(part), *traced, draws=config.critic_dropout > 0)

    def losses(self, part: Transitions, normals: Tensor, ranks: Tensor, *traced: Tensor, actor_learns: bool = True) -> Losses:
        """The losses of N transitions, as means over them. normals, ranks: see `drawn`. traced: Retrace's y `[N]`, if any."""
        alpha = self.temperature()  # that before this step, in all losses
        encoded = self.network.encode(part.observations)  # [N, F]
        # Q_k(x, a) [k, N] and y [N]; of quantiles [k, N, K] and [N, J].
        q, targets = (self.targets_of_choice if self.chooses else self.targets_of_numbers)(
            part, alpha, encoded, normals[:, 1], ranks
        )
        targets = traced[0] if traced else targets
        weight = 1.0 if self.config.critic_quantiles else CRITIC_WEIGHT
        loss = weight * critic_loss(q, targets, part.weights)  # 0.5 sum_k mean w (Q_k - y)^2
        terms = {"critic_loss": Term(loss, parameters=self.critic_parameters)}
        metrics = {"losses/q": q.detach().mean(), "losses/target": targets.mean(), "losses/temperature": alpha}
        if actor_learns:
            found = (self.policy_of_choice if self.chooses else self.policy_of_numbers)(part, alpha, encoded, normals[:, 0])
            terms["actor_loss"] = Term(found.loss, parameters=self.actor_parameters)
            metrics["losses/entropy"] = found.entropy
            if self.config.learn_temperature:
                wanted = self.config.target_entropy_scale * found.usual_entropy  # H*
                loss = temperature_loss(self.temperature.log_alpha, found.entropy, wanted)  # log alpha (H(pi) - H*)
                terms["temperature_loss"] = Term(loss, parameters=[self.temperature.log_alpha])
        else:  # a metric has a value in every step; NaN where there is nothing to measure
            names = ["losses/actor_loss", "losses/entropy", *["losses/temperature_loss"] * self.config.learn_temperature]
            metrics |= dict.fromkeys(names, torch.full_like(alpha, math.nan))
        return Losses(terms, metrics, critic_errors(q, targets))

    def drawn(self, part: Transitions) -> tuple[Tensor, Tensor]:
        """Random numbers for N rows: standard normal ones `[N, 2, D]` for the policy's actions, and `[N, k]` for the critics.

        Expectations over all actions of one choice need no normals. The second are the same for all rows, so that each step
        has the same critics in all its targets; none without a subset.
        """
        # Drawn here and not in the losses, which several threads compute: the numbers would depend on their order.
        rows, device = len(part.actions), part.actions.device
        normals = torch.randn((rows, 2, 0 if self.chooses else part.actions.shape[1]), device=device)
        return normals, torch.rand(self.config.critics if self.config.critic_subset else 0, device=device).expand(rows, -1)

    def values(
        self, encoded: Tensor, actions: Tensor | None, next_encoded: Tensor, next_actions: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Q_k(x, a) with gradient, and Q'_k(x', a') without, `[k, N]` each. Without actions of all actions, `[k, N, A]`.

        encoded, next_encoded: of x and x', `[N, F]`. actions, next_actions: `[N, D]`.
        """
        with torch.no_grad():
            next_q = self.target_critics.network(next_encoded, next_actions)
        return self.critics(encoded, actions), next_q  # the gradient of Q reaches a shared encoder

    def targets_of_numbers(
        self, part: Transitions, alpha: Tensor, encoded: Tensor, normals: Tensor, ranks: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Q-values of the actions taken, and their targets. normals: `[N, D]`, which draw the actions a'."""
        network, config, distribution = self.network, self.config, self.network.distribution
        assert isinstance(distribution, SquashedGaussian)
        with torch.no_grad():
            next_encoded = network.encode(part.next_observations)
            next_policy = network.policy(part.next_observations, next_encoded)  # [N, 2 D]
            # New actions of the present policy, not the stored ones.
            next_actions, next_log_probs = distribution.reparametrised(next_policy, normals)  # a' [N, D], log pi(a'|x') [N]
        q, next_q = self.values(encoded, part.actions, next_encoded, next_actions)
        if config.critic_subset:
            next_q = drawn_critics(next_q, ranks, config.critic_subset)
        return q, soft_targets(part.returns, part.discounts, next_q, next_log_probs, alpha, config.dropped_quantiles)

    def policy_of_numbers(self, part: Transitions, alpha: Tensor, encoded: Tensor, normals: Tensor) -> PolicyLoss:
        """The actor's loss passes through the critics to the actions. It changes neither the critics nor a shared encoder."""
        distribution = self.network.distribution
        assert isinstance(distribution, SquashedGaussian)
        # a_pi [N, D], log pi(a_pi|x) [N]
        actions, log_probs = distribution.reparametrised(self.network.policy(part.observations, encoded), normals)
        q = self.critics(encoded.detach(), actions)
        loss = soft_policy_loss(q, log_probs, alpha, mean=self.config.actor_value == "mean")
        return PolicyLoss(loss, -log_probs.detach().mean(), -float(actions.shape[-1]))

    def targets_of_choice(
        self, part: Transitions, alpha: Tensor, encoded: Tensor, normals: Tensor, ranks: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As `targets_of_numbers`, for one choice. An illegal action has probability 0, so its value counts nowhere."""
        with torch.no_grad():
            next_encoded = self.network.encode(part.next_observations)
            next_logits = self.network.policy(part.next_observations, next_encoded)  # [N, A]
        q, next_q = self.values(encoded, None, next_encoded, None)  # [k, N, A] each, all values in one pass
        if self.config.critic_subset:
            next_q = drawn_critics(next_q, ranks, self.config.critic_subset)
        index = part.actions.long().expand(len(q), -1).unsqueeze(-1)  # [k, N, 1]: all critics learn of the action taken
        return q.gather(-1, index).squeeze(-1), soft_choice_targets(part.returns, part.discounts, next_q, next_logits, alpha)

    @torch.no_grad()
    def traced_targets(self, windows: Batch) -> Tensor:
        """Retrace's y of the first row of N windows of one choice, `[N]`: pi is the present policy, mu the one that acted."""
        network, config = self.network, self.config
        rows, observations = windows.observations.shape[:2], windows.observations.flatten(0, 1)  # n+1 and N
        encoded = network.encode(observations)
        policy = network.policy(observations, encoded).unflatten(0, rows)  # logits [n+1, N, A]
        q = self.target_critics.network(encoded).amin(0).unflatten(0, rows)  # min_k Q'_k [n+1, N, A]
        log_pi = network.distribution.log_prob(policy[:-1], windows.actions)  # [n, N]
        return retrace(
            rewards=windows.rewards,
            discounts=config.gamma * (~windows.terminated).to(q.dtype),
            values=expected_soft_values(q, policy, self.temperature(), (q.shape[-1],)),
            taken=value_of(q[:-1], windows.actions.long()),
            traces=trace_coefficients(log_pi, windows.acting[BEHAVIOUR_LOG_PROB], config.retrace_lambda),
            mask=windows.action_used,
        )[0]

    def policy_of_choice(self, part: Transitions, alpha: Tensor, encoded: Tensor, normals: Tensor) -> PolicyLoss:
        """As `policy_of_numbers`, for one choice, whose loss is an exact expectation."""
        logits = self.network.policy(part.observations, encoded)  # [N, A]
        with torch.no_grad():  # the policy's loss must not teach the critics
            q = self.critics(encoded)  # [k, N, A]
        loss = soft_choice_policy_loss(q, logits, alpha, mean=self.config.actor_value == "mean")
        # The largest entropy of a state is the logarithm of its LEGAL actions: a target above it would let alpha grow for ever.
        legal = (logits.detach() > ILLEGAL_LOGIT / 2).sum(-1)  # [N]
        return PolicyLoss(loss, mean_entropy(logits), CHOICE_ENTROPY * legal.log().mean())  # mean 0.98 log A
