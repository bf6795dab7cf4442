"""The V-trace actor-critic agent (IMPALA, arXiv:1802.01561): importance-corrected targets and the losses that use them.

Two options are for replayed data: CLEAR's cloning losses on replayed columns, and LASER's trust region, which leaves out steps
whose behaviour policy is too far from the current one.

Losses are summed over time and batch, as the paper does: its learning rate, clip norm and epsilon hold for the sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from agents.actor_critic import ActorCriticAgent, ActorCriticConfig
from agents.distributions import Categorical, make_distribution
from agents.learned import Loss, Losses
from agents.losses import entropy_loss, masked_sum, policy_gradient_loss, value_loss
from agents.metrics import ratio_metrics, replay_metrics, value_metrics
from agents.networks.actor_critic import PolicyOutput
from agents.networks.base import NetworkConfig
from agents.networks.policy import drawn_actions
from agents.returns.advantages import normalised
from agents.returns.vtrace import VTraceReturns, vtrace
from agents.rewards import clip_rewards
from agents.vtrace.charts import CHARTS
from agents.vtrace.cloning import policy_cloning_loss, value_cloning_loss
from agents.vtrace.laser import RELEVANCES, relevance_divergence
from replay.batch import Batch
from setting import Setting


@dataclass(frozen=True)
class VTraceConfig(ActorCriticConfig):
    """Settings of the V-trace agent. CLEAR and LASER are for replayed data."""

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
    vtrace_lambda: Annotated[float, Setting("Factor on the traces.", "a number in [0, 1]", 0, 1)] = 1.0
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


class Current(NamedTuple):
    """The current network's results for rows 0 to T-1 of a batch, with gradient.

    policy: `[T, B, P]`. log_probs: `[T, B]` of the actions taken. entropies: `[T, B]`. values: `[T, B]`.
    """

    policy: Tensor
    log_probs: Tensor
    entropies: Tensor
    values: Tensor


class VTraceAgent(ActorCriticAgent):
    """V-trace on a mixture of fresh and replayed trajectories."""

    config_class = VTraceConfig
    graphed = True
    charts = CHARTS

    config: VTraceConfig

    @classmethod
    def scales_rewards(cls, settings: Mapping[str, Any]) -> bool:
        return not settings["use_value_cloning_loss"]  # see `check_learning`

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

    def losses(self, batch: Batch, outputs: PolicyOutput) -> Losses:
        # Row T has an observation and a value to bootstrap from, but no action: policies are compared on rows 0 to T-1.
        policy, values = outputs.policy[:-1], outputs.values
        fixed_values = values.detach()
        log_probs = self._log_probs(policy, batch)
        entropies = self.network.distribution.entropy(policy)
        masks = self._masks(policy.detach(), batch)
        log_rhos = self._log_rhos(log_probs.detach(), batch)
        # Targets and advantages are constants of the update: gradients pass through log_probs, entropies and values alone.
        targets = self._targets(batch, log_rhos, fixed_values, masks)
        current = Current(policy, log_probs, entropies, values[:-1])
        terms = self._terms(batch, current, targets, masks)
        clips = (("rho", self.config.rho_bar), ("c", self.config.c_bar), ("pg_rho", self.config.pg_rho_bar))
        kept = masks.episode & masks.trusted
        metrics = {
            "vtrace/kept_fraction": kept.float().mean(),
            **value_metrics(fixed_values[:-1], targets.vs, kept),
            **ratio_metrics(entropies.detach(), log_rhos, masks.chosen, clips),
            **replay_metrics(batch, masks.chosen, log_rhos, masks.trusted, self.replay_names),
        }
        return Losses(terms, metrics)

    def _log_probs(self, policy: Tensor, batch: Batch) -> Tensor:
        """Log-probabilities `[T, B]` that policies `[T, B, P]` give to the actions taken, one number for all components."""
        return self.network.distribution.log_prob(policy, drawn_actions(batch.actions, batch.acting))

    def _masks(self, policy: Tensor, batch: Batch) -> Masks:
        episode, chosen = ~batch.reset, batch.action_used
        if not self.config.use_kl_mask:
            return Masks(episode, chosen, torch.ones_like(chosen))
        divergence = relevance_divergence(
            self.network.distribution,
            policy,
            batch.acting["behaviour_policy"],
            rho_bar=self.config.rho_bar,
            relevance=self.config.relevance,
        )
        return Masks(episode, chosen, (divergence < self.config.kl_div_threshold) | ~chosen)

    def _log_rhos(self, log_probs: Tensor, batch: Batch) -> Tensor:
        """log pi - log mu of the actions taken, `[T, B]`.

        It is 0 where the environment replaced or ignored the action: neither policy decided, so the ratio is 1.
        """
        behaviour = self._log_probs(batch.acting["behaviour_policy"], batch)
        return torch.where(batch.action_used, log_probs - behaviour, 0.0)

    def _targets(self, batch: Batch, log_rhos: Tensor, values: Tensor, masks: Masks) -> VTraceReturns:
        """values: `[T+1, B]` of the current network; the last row bootstraps."""
        config = self.config
        return vtrace(
            log_rhos=log_rhos,
            # Only a termination has no future. After a time limit the next row holds the final observation, whose value
            # follows.
            discounts=config.gamma * (~batch.terminated).to(values.dtype),
            rewards=clip_rewards(batch.rewards, config.reward_clipping),
            values=values[:-1],
            bootstrap_value=values[-1],
            rho_bar=config.rho_bar,
            c_bar=config.c_bar,
            pg_rho_bar=config.pg_rho_bar,
            lambda_=config.vtrace_lambda,
            mask=masks.episode & masks.trusted,
        )

    def _terms(self, batch: Batch, current: Current, targets: VTraceReturns, masks: Masks) -> dict[str, Loss]:
        """Each term with its weight. A term of your own is one more entry; see docs/extending.md."""
        config, behaviour, values = self.config, batch.acting, current.values
        # Cloning ignores the trust region. With the trust region, entropy is rewarded on fresh columns only (LASER).
        explores = masks.chosen & ~batch.is_replay if config.use_kl_mask else masks.chosen
        learned = masks.chosen & masks.trusted
        # The value passes through rows whose action the environment chose; the policy gradient leaves them out.
        advantages = normalised(targets.pg_advantages, learned) if config.normalise_advantages else targets.pg_advantages
        policy_loss = policy_gradient_loss(current.log_probs, advantages, learned)
        terms = {
            "policy_loss": Loss(policy_loss, config.policy_gradient_loss_weight),
            "value_loss": Loss(value_loss(values, targets.vs, masks.episode & masks.trusted), config.value_loss_weight),
            "entropy_loss": Loss(entropy_loss(current.entropies, explores), config.entropy_loss_weight),
        }
        excess = self.network.distribution.excess(current.policy) if config.action_bound_loss_weight else None
        if excess is not None:
            terms["action_bound_loss"] = Loss(masked_sum(excess, learned), config.action_bound_loss_weight)
        if config.use_policy_cloning_loss:
            divergences = self.network.distribution.kl(behaviour["behaviour_policy"], current.policy)
            cloning = policy_cloning_loss(divergences, batch.is_replay)
            terms["policy_cloning_loss"] = Loss(cloning, config.policy_cloning_loss_weight)
        if config.use_value_cloning_loss:
            cloning = value_cloning_loss(values, behaviour["behaviour_values"], batch.is_replay)
            terms["value_cloning_loss"] = Loss(cloning, config.value_cloning_loss_weight)
        return terms
