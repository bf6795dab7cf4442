"""The V-trace actor-critic agent (IMPALA, arXiv:1802.01561): importance-corrected targets and the losses that use them.

Two options are for replayed data: CLEAR's cloning losses on replayed columns, and LASER's trust region, which leaves out steps
whose behaviour policy is too far from the current one.

Losses are summed over time and batch, as the paper does: its learning rate, clip norm and epsilon hold for the sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from agents.base import Agent
from agents.distributions import Categorical, make_distribution
from agents.engine.stepper import Stepper
from agents.intrinsic.rewards import StreamEstimates
from agents.intrinsic.streams import IntrinsicStream
from agents.losses import Losses, Term, entropy_loss, masked_sum, policy_gradient_loss, value_loss
from agents.metrics import ratio_metrics, replay_metrics, value_metrics
from agents.networks.actor_critic import ActorCritic, PolicyOutput, drawn_actions
from agents.networks.base import NetworkConfig
from agents.returns.advantages import normalised
from agents.returns.vtrace import VTraceReturns, vtrace
from agents.settings import (
    ActionBoundWeight,
    AgentConfig,
    ClipRewards,
    EntropyWeight,
    ExtrinsicWeight,
    Gamma,
    GradientClip,
    IntrinsicEpisodes,
    IntrinsicGamma,
    IntrinsicKind,
    IntrinsicWeight,
    LastEntropyWeight,
    LastLearningRate,
    LearningRate,
    NormaliseRewards,
    OptimizerName,
    PopArtRate,
    PopArtSwitch,
    PredictorShare,
    RewardClipping,
    RmspropEpsilon,
    TraceFactor,
    ValueWeight,
)
from agents.vtrace.cloning import policy_cloning_loss, value_cloning_loss
from agents.vtrace.laser import RELEVANCES, relevance_divergence
from replay.batch import Batch
from setting import Setting

CHARTS: dict[str, list[str]] = {
    "losses, mean per step": [r"losses/.*_loss$"],
    "entropy, nats": [r"losses/entropy$"],
    "explained variance of the value": [r"losses/explained_variance$"],
    "importance ratios": [r"vtrace/.*"],
    "steps that the trust region rejects, fraction": [r"replay/.*/rejected_fraction$"],
    "effective sample size, fraction": [r"replay/.*/effective_sample_size$"],
}
"""Title of a TensorBoard chart -> its metrics, as regular expressions matched from the start of a name."""


@dataclass(frozen=True)
class VTraceConfig(AgentConfig):
    """Settings of the V-trace agent. CLEAR and LASER are for replayed data."""

    lr: LearningRate = 6e-4
    lr_end_value: LastLearningRate = 0.0
    optimizer: OptimizerName = "rmsprop"
    rmsprop_eps: RmspropEpsilon = 0.01
    adam_eps: float = 1e-8
    gradient_clip_by_norm_threshold: GradientClip = 40.0
    gamma: Gamma = 0.99
    normalise_rewards: NormaliseRewards = False
    clip_rewards: ClipRewards = True
    reward_clipping_method: RewardClipping = "abs_one_sign"
    popart: PopArtSwitch = False
    popart_rate: PopArtRate = 3e-4
    intrinsic: IntrinsicKind = "none"
    intrinsic_gamma: IntrinsicGamma = 0.99
    intrinsic_weight: IntrinsicWeight = 1.0
    extrinsic_weight: ExtrinsicWeight = 2.0
    intrinsic_episodic: IntrinsicEpisodes = False
    predictor_share: PredictorShare = 1.0
    value_loss_weight: ValueWeight = 0.5
    entropy_loss_weight: EntropyWeight = 0.01
    entropy_loss_weight_end: LastEntropyWeight = -1.0
    action_bound_loss_weight: ActionBoundWeight = 1.0
    rho_bar: Annotated[
        float,
        Setting(
            "Clip of the importance ratio in the temporal differences (which policy is evaluated).",
            "an importance ratio > 0",
            1e-9,
            1e9,
        ),
    ] = 1.0
    c_bar: Annotated[
        float,
        Setting(
            "Clip of the importance ratio in the traces (speed against variance); at most rho_bar.",
            "an importance ratio > 0",
            1e-9,
            1e9,
        ),
    ] = 1.0
    pg_rho_bar: Annotated[
        float, Setting("Clip of the importance ratio in the policy gradient.", "an importance ratio > 0", 1e-9, 1e9)
    ] = 1.0
    vtrace_lambda: TraceFactor = 1.0
    policy_gradient_loss_weight: Annotated[float, Setting("Weight of the policy-gradient loss.", "a weight >= 0", 0, 1e9)] = 1.0
    normalise_advantages: Annotated[
        bool,
        Setting("Give the advantages of each batch mean 0 and standard deviation 1 before the policy gradient."),
    ] = False
    use_policy_cloning_loss: Annotated[
        bool, Setting("CLEAR: keep the policy close to the behaviour policy on replayed trajectories.")
    ] = False
    use_value_cloning_loss: Annotated[
        bool, Setting("CLEAR: keep the value close to the behaviour value on replayed trajectories.")
    ] = False
    policy_cloning_loss_weight: Annotated[
        float, Setting("CLEAR: weight of the policy-cloning loss, KL(behaviour || current).", "a weight >= 0", 0, 1e9)
    ] = 0.01
    value_cloning_loss_weight: Annotated[
        float, Setting("CLEAR: weight of the value-cloning loss, the squared difference.", "a weight >= 0", 0, 1e9)
    ] = 0.005
    use_kl_mask: Annotated[
        bool,
        Setting("LASER: leave out steps whose behaviour policy is too far from the current one; entropy on fresh data only."),
    ] = False
    kl_div_threshold: Annotated[
        float, Setting("LASER: divergence above which a step is left out.", "a divergence in nats > 0", 1e-9, 1e9)
    ] = 0.3
    relevance: Annotated[
        str,
        Setting("LASER: divergence from the implied policy (the paper's) or from the behaviour policy.", choices=RELEVANCES),
    ] = "implied"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rho_bar < self.c_bar:
            raise ValueError(
                f"wanted the V-trace clip rho_bar >= c_bar (IMPALA, section 4.1), got rho_bar {self.rho_bar:g} "
                f"and c_bar {self.c_bar:g}"
            )


class Masks(NamedTuple):
    """The steps that count, bool `[T, B]` each.

    The step of an autoreset row belongs to no episode, so only the cloning losses include it. In a row whose action the
    environment replaced (FIRE after a lost life) the policy made no choice. Such a row has no policy gradient and no entropy,
    but value and trace pass through it.

    episode: rows that belong to an episode.
    chosen: rows whose action the policy chose.
    trusted: rows that the trust region keeps. It judges the policy's choices, so a row without one is kept.
    """

    episode: Tensor
    chosen: Tensor
    trusted: Tensor


class VTraceAgent(Agent):
    """V-trace on a mixture of fresh and replayed trajectories."""

    config_class = VTraceConfig
    network_class = ActorCritic
    tuned = ("lr", "entropy_loss_weight", "gamma", "unroll_length")
    charts = CHARTS

    config: VTraceConfig
    network: ActorCritic

    @classmethod
    def scales_rewards(cls, settings: Mapping[str, Any]) -> bool:
        return not settings["use_value_cloning_loss"]  # see `check_learning`

    @classmethod
    def graphed(cls, config: VTraceConfig) -> Literal["update"]:
        return "update"

    @classmethod
    def check(cls, config: VTraceConfig, network: NetworkConfig) -> None:
        distribution = make_distribution(network.action, network.settings.action_distribution)
        if config.use_kl_mask and config.relevance == "implied" and not isinstance(distribution, Categorical):
            raise ValueError(
                f"relevance: wanted behaviour for {network.action.summary()}, got implied, which sums over all actions"
            )

    @classmethod
    def check_learning(cls, config: VTraceConfig) -> None:
        # Stored values keep the scale of the rewards at the time of acting, which no field of a row tells.
        if config.use_value_cloning_loss and config.normalise_rewards:
            raise ValueError(
                "use_value_cloning_loss: wanted rewards of a fixed scale, because replayed values keep their scale, got "
                "normalise_rewards; drop one with --nouse_value_cloning_loss or --nonormalise_rewards"
            )

    def update(self, batch: Batch, step: Stepper) -> None:
        outputs = step.forward(batch)
        step.take(*self.losses(batch, outputs))

    def losses(self, batch: Batch, outputs: PolicyOutput) -> Losses:
        """The terms of the loss. outputs: of the network for all T+1 rows: policy `[T+1, B, P]` and values `[T+1, B]`."""
        # mu is the policy with the weights that acted. The row stores it, because the learner no longer has these weights.
        distribution, mu = self.network.distribution, batch.acting["behaviour_policy"]  # mu [T, B, P]
        # Row T has an observation and a value to bootstrap from, but no action: policies are compared on rows 0 to T-1.
        # [T, B, P], [T, B] and [T, B, *action_shape]
        policy, values, drawn = outputs.policy[:-1], outputs.values[:-1], drawn_actions(batch.actions, batch.acting)
        log_probs = distribution.log_prob(policy, drawn)  # [T, B], log pi(a_t|x_t)
        # log pi - log mu [T, B] is 0 where the environment replaced or ignored the action: neither policy decided.
        log_rhos = torch.where(batch.action_used, log_probs.detach() - distribution.log_prob(mu, drawn), 0.0)
        masks = self._masks(policy.detach(), batch)
        kept = masks.episode & masks.trusted  # [T, B], m_t of the value and the trace
        # Targets and advantages are constants of the update: gradients pass through log_probs, entropies and values alone.
        targets = self._targets(batch, log_rhos, outputs.values.detach(), kept, self.config.gamma)
        entropies = distribution.entropy(policy)  # [T, B]
        # With the trust region, entropy is rewarded on fresh columns only (LASER).
        explores = masks.chosen & ~batch.is_replay if self.config.use_kl_mask else masks.chosen  # [T, B]
        learned = masks.chosen & masks.trusted  # [T, B], p_t of the policy gradient
        # The value passes through rows whose action the environment chose; the policy gradient leaves them out.
        # V(x_t), v_t and A_t [T, B], as they are or by PopArt. A_t is already times min(pg_rho_bar, R_t).
        tasks = self.network.task_of_columns(batch.observations) if self.stepper.popart else None  # [B]
        compared_values, compared_targets, advantages = self.stepper.units.in_losses(
            values, targets.vs, targets.pg_advantages, kept, tasks
        )
        of_intrinsic = {}
        if intrinsic := self.stepper.intrinsic:
            advantages, intrinsic_targets = intrinsic.combined(
                batch, outputs, advantages, lambda stream: self._intrinsic(stream, log_rhos, masks.trusted)
            )
            of_intrinsic = intrinsic.value_terms(outputs, intrinsic_targets, learned, self.config.value_loss_weight, sums=True)
        if self.config.normalise_advantages:
            advantages = normalised(advantages, learned)
        config = self.config
        terms = {
            # L = w_pg * -sum p_t A_t log pi  +  w_v * 0.5 sum m_t (v_t - V)^2  -  w_ent * sum p_t H
            "policy_loss": Term(
                policy_gradient_loss(log_probs, advantages, learned), config.policy_gradient_loss_weight, "sum"
            ),
            "value_loss": Term(value_loss(compared_values, compared_targets, kept), config.value_loss_weight, "sum"),
            "entropy_loss": Term(entropy_loss(entropies, explores), self.stepper.entropy_weight.now, "sum"),
            **self._further_terms(batch, policy, values, learned),
            **of_intrinsic,
        }
        clips = (("rho", config.rho_bar), ("c", config.c_bar), ("pg_rho", config.pg_rho_bar))
        metrics = {
            "vtrace/kept_fraction": kept.float().mean(),
            **value_metrics(values.detach(), targets.vs, kept),
            **ratio_metrics(entropies.detach(), log_rhos, masks.chosen, clips),
            **replay_metrics(batch, masks.chosen, log_rhos, masks.trusted, self.replay_names),
        }
        return Losses(terms, metrics)

    def _masks(self, policy: Tensor, batch: Batch) -> Masks:
        """The steps that count. policy: `[T, B, P]`, constants."""
        episode, chosen = ~batch.reset, batch.action_used  # [T, B] each
        if not self.config.use_kl_mask:
            return Masks(episode, chosen, torch.ones_like(chosen))
        # beta(x_t) of LASER, [T, B] in nats.
        divergence = relevance_divergence(
            self.network.distribution,
            policy,
            batch.acting["behaviour_policy"],
            rho_bar=self.config.rho_bar,
            relevance=self.config.relevance,
        )
        # In a FIRE row the policy made no choice, so its divergence must not cut the traces of the rows before it.
        return Masks(episode, chosen, (divergence < self.config.kl_div_threshold) | ~chosen)

    def _targets(self, batch: Batch, log_rhos: Tensor, values: Tensor, kept: Tensor, gamma: float) -> VTraceReturns:
        """values: `[T+1, B]` of the current network; the last row bootstraps. kept: bool `[T, B]`, where traces pass."""
        config = self.config
        return vtrace(
            log_rhos=log_rhos,
            # Only a termination has no future. After a time limit the next row holds the final observation, whose value
            # follows.
            discounts=gamma * (~batch.terminated).to(values.dtype),
            rewards=batch.rewards,
            values=values[:-1],  # [T, B], V(x_0) to V(x_{T-1})
            bootstrap_value=values[-1],  # [B], V(x_T)
            rho_bar=config.rho_bar,
            c_bar=config.c_bar,
            pg_rho_bar=config.pg_rho_bar,
            lambda_=config.vtrace_lambda,
            mask=kept,
        )

    def _intrinsic(self, stream: IntrinsicStream, log_rhos: Tensor, trusted: Tensor) -> StreamEstimates:
        """The same targets for intrinsic rewards, of steps whose action the policy chose. log_rhos, trusted: `[T, B]`."""
        kept = stream.batch.action_used & stream.rows(trusted)
        found = self._targets(stream.batch, stream.rows(log_rhos), stream.values, kept, stream.gamma)
        return StreamEstimates(found.pg_advantages, found.vs)

    def _further_terms(self, batch: Batch, policy: Tensor, values: Tensor, learned: Tensor) -> dict[str, Term]:
        """Terms that some runs have. A term of your own is one more entry; see docs/extending.md.

        policy, values: of rows 0 to T-1, with gradient. learned: bool `[T, B]`, the steps of the policy gradient.
        """
        config, distribution, terms = self.config, self.network.distribution, {}
        # sum_i max(|mean_i| - 1.1, 0)^2 [T, B]
        excess = distribution.excess(policy) if config.action_bound_loss_weight else None
        if excess is not None:
            terms["action_bound_loss"] = Term(masked_sum(excess, learned), config.action_bound_loss_weight, "sum")
        # Cloning keeps every row of replayed columns, whatever the trust region says (CLEAR).
        if config.use_policy_cloning_loss:
            # mu stands first: KL(mu || pi) is large where pi has dropped an action that mu took.
            loss = policy_cloning_loss(distribution.kl(batch.acting["behaviour_policy"], policy), batch.is_replay)
            terms["policy_cloning_loss"] = Term(loss, config.policy_cloning_loss_weight, "sum")
        if config.use_value_cloning_loss:
            units, tasks, stored = (
                self.stepper.units,
                self.network.task_of_columns(batch.observations),
                batch.acting["behaviour_values"],
            )
            loss = value_cloning_loss(units.normalised(values, tasks), units.normalised(stored, tasks), batch.is_replay)
            terms["value_cloning_loss"] = Term(loss, config.value_cloning_loss_weight, "sum")
        return terms
