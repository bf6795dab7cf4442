"""The V-trace actor-critic agent (IMPALA, arXiv 1802.01561): targets, losses and one optimiser step.

Options for replayed data: CLEAR's cloning losses on replayed columns, and LASER's trust region, which leaves out steps whose
behaviour policy is too far from the current one.

Losses are summed over time and batch, as in the paper's settings: learning rate, clip norm and epsilon belong to the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from agents.base import Agent
from agents.guard import Guard
from agents.losses import action_log_probs, entropy_loss, policy_gradient_loss, value_loss
from agents.metrics import ratio_metrics, replay_metrics, value_metrics
from agents.networks.actor_critic import ActorCritic
from agents.passes import NetworkPasses
from agents.returns.vtrace import VTraceReturns, vtrace
from agents.rewards import REWARD_CLIPPING, clip_rewards
from agents.vtrace.cloning import policy_cloning_loss, value_cloning_loss
from agents.vtrace.laser import RELEVANCES, relevance_divergence
from replay.trajectory import Batch
from setting import Setting, check_fields

RMSPROP_DECAY = 0.99


@dataclass(frozen=True)
class VTraceConfig:
    """Settings of the V-trace agent. Losses are summed over the batch. CLEAR and LASER are for replayed data."""

    lr: Annotated[
        float,
        Setting(
            "Learning rate at the start; it falls linearly over the run's fresh frames.", "a learning rate in [0, 10]", 0, 10
        ),
    ] = 6e-4
    lr_end_value: Annotated[float, Setting("Learning rate at the end of the run.", "a learning rate in [0, 10]", 0, 10)] = 0.0
    optimizer: Annotated[Literal["adam", "rmsprop"], Setting("Optimiser of the network's weights.")] = "rmsprop"
    rmsprop_eps: Annotated[float, Setting("Epsilon of RMSProp, added outside the root.", "a number in (0, 10]", 1e-12, 10)] = (
        0.01
    )
    adam_eps: float = 1e-8
    gradient_clip_by_norm_threshold: Annotated[
        float, Setting("Global gradient norm above which gradients are scaled down.", "a gradient norm > 0", 1e-9, 1e9)
    ] = 40.0
    gamma: Annotated[float, Setting("Discount per step.", "a discount in [0, 1]", 0, 1)] = 0.99
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
    value_loss_weight: Annotated[
        float, Setting("Weight of the value loss (half the squared error).", "a weight >= 0", 0, 1e9)
    ] = 0.5
    entropy_loss_weight: Annotated[float, Setting("Weight of the entropy bonus.", "a weight >= 0", 0, 1e9)] = 0.01
    clip_rewards: Annotated[bool, Setting("Clip rewards for learning; reported returns stay raw.")] = True
    reward_clipping_method: Annotated[str, Setting("How rewards are clipped for learning.", choices=REWARD_CLIPPING)] = (
        "abs_one_sign"
    )
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
        check_fields(self)
        if self.rho_bar < self.c_bar:
            raise ValueError(
                f"wanted the V-trace clip rho_bar >= c_bar (IMPALA, section 4.1), got rho_bar {self.rho_bar:g} "
                f"and c_bar {self.c_bar:g}"
            )

    @property
    def reward_clipping(self) -> str | None:
        """A name of `agents.rewards.REWARD_CLIPPING`, or None for raw rewards."""
        return self.reward_clipping_method if self.clip_rewards else None


def make_optimizer(config: VTraceConfig, network: ActorCritic) -> torch.optim.Optimizer:
    """The optimiser by its name; the learning rate is set anew at every update."""
    if config.optimizer == "rmsprop":
        return torch.optim.RMSprop(network.parameters(), lr=0.0, alpha=RMSPROP_DECAY, eps=config.rmsprop_eps, foreach=True)
    if config.optimizer == "adam":
        fused = next(network.parameters()).device.type == "cpu"  # PyTorch has it for Adam alone; twice as fast there
        return torch.optim.Adam(network.parameters(), lr=0.0, eps=config.adam_eps, fused=fused, foreach=not fused)
    raise ValueError(f"optimizer: wanted rmsprop or adam, got {config.optimizer!r}")


class VTraceAgent(Agent):
    """V-trace on a mixture of fresh and replayed trajectories. threads: how many share the network's passes. compiled: those
    passes go through torch.compile.
    """

    config_class = VTraceConfig

    def __init__(
        self,
        config: VTraceConfig,
        network: ActorCritic,
        replay_names: Sequence[str] = (),
        *,
        threads: int = 1,
        compiled: bool = False,
    ) -> None:
        self.config = config
        self.replay_names = tuple(replay_names)
        self._clips = (("rho", config.rho_bar), ("c", config.c_bar), ("pg_rho", config.pg_rho_bar))
        self.network = network
        self.passes = NetworkPasses(network, threads, compiled=compiled)
        self.optimizer = make_optimizer(config, network)
        self.guard = Guard(self.optimizer, next(network.parameters()).device)

    def update(self, batch: Batch, learning_rate: float) -> dict[str, Tensor]:
        config = self.config
        rows, columns = batch.observations.shape[:2]
        outputs = self.passes.forward(batch.observations.flatten(0, 1))
        logits, values = outputs.logits.unflatten(0, (rows, columns))[:-1], outputs.values.unflatten(0, (rows, columns))
        relevant = self._relevant(logits.detach(), batch)
        mask = batch.action_used & relevant
        log_rhos = action_log_probs(logits.detach(), batch.actions) - action_log_probs(batch.behaviour_logits, batch.actions)
        targets = vtrace(
            log_rhos=log_rhos,
            discounts=config.gamma * (~batch.terminated).to(values.dtype),
            rewards=clip_rewards(batch.rewards, config.reward_clipping),
            values=values[:-1].detach(),
            bootstrap_value=values[-1].detach(),
            rho_bar=config.rho_bar,
            c_bar=config.c_bar,
            pg_rho_bar=config.pg_rho_bar,
            lambda_=config.vtrace_lambda,
            mask=mask,
        )
        losses = self._losses(batch, logits, values[:-1], targets, mask)
        total = torch.stack([weight * loss for weight, loss in losses.values()]).sum()
        total.backward()
        self.passes.backward(outputs)
        gradient_norm = torch.nn.utils.clip_grad_norm_(
            self.network.parameters(), config.gradient_clip_by_norm_threshold, foreach=True
        )
        parts = {name: loss for name, (_, loss) in losses.items()}
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.guard.step({**_float_inputs(batch), **parts, "gradient": gradient_norm}, self._step)
        return {
            **{f"losses/{name}": loss.detach() / batch.actions.numel() for name, (_, loss) in losses.items()},
            "losses/total_loss": total.detach() / batch.actions.numel(),
            "losses/gradient_norm": gradient_norm,
            "losses/gradient_clipped": (gradient_norm > config.gradient_clip_by_norm_threshold).float(),
            "vtrace/used_fraction": mask.float().mean(),
            **value_metrics(values[:-1].detach(), targets, mask),
            **ratio_metrics(logits.detach(), log_rhos, batch.action_used, self._clips),
            **replay_metrics(batch, log_rhos, relevant, self.replay_names),
        }

    def _relevant(self, logits: Tensor, batch: Batch) -> Tensor:
        """Which steps LASER's trust region lets pass, bool `[T, B]`; all of them where it is not in use."""
        if not self.config.use_kl_mask:
            return torch.ones_like(batch.action_used)
        divergence = relevance_divergence(
            logits, batch.behaviour_logits, rho_bar=self.config.rho_bar, relevance=self.config.relevance
        )
        return divergence < self.config.kl_div_threshold

    def _losses(
        self, batch: Batch, logits: Tensor, values: Tensor, targets: VTraceReturns, mask: Tensor
    ) -> dict[str, tuple[float, Tensor]]:
        """Each loss with its weight. Cloning ignores the trust region; with it, entropy is a matter of fresh columns only."""
        config = self.config
        entropy_weights = batch.action_used & ~batch.is_replay if config.use_kl_mask else batch.action_used
        losses = {
            "policy_loss": (
                config.policy_gradient_loss_weight,
                policy_gradient_loss(logits, batch.actions, targets.pg_advantages, mask),
            ),
            "value_loss": (config.value_loss_weight, value_loss(values, targets.vs, mask)),
            "entropy_loss": (config.entropy_loss_weight, entropy_loss(logits, entropy_weights)),
        }
        if config.use_policy_cloning_loss:
            cloning = policy_cloning_loss(logits, batch.behaviour_logits, batch.is_replay)
            losses["policy_cloning_loss"] = (config.policy_cloning_loss_weight, cloning)
        if config.use_value_cloning_loss:
            cloning = value_cloning_loss(values, batch.behaviour_values, batch.is_replay)
            losses["value_cloning_loss"] = (config.value_cloning_loss_weight, cloning)
        return losses

    def _step(self) -> None:
        if self.config.optimizer == "rmsprop" and not self.optimizer.state:
            self._start_mean_squares()
        self.optimizer.step()

    def _start_mean_squares(self) -> None:
        """Start RMSProp's running mean of squared gradients at the first squared gradient instead of at zero.

        From zero the first step is 1/sqrt(1 - 0.99) = 10 times the learning rate in every weight, whatever the gradient: seen
        to leave a convolutional network with a constant value for good.
        """
        for parameter in self.network.parameters():
            assert parameter.grad is not None
            self.optimizer.state[parameter] = {"step": torch.zeros(()), "square_avg": parameter.grad.square()}

    def take_verdicts(self, *, everything: bool = False) -> list[str | None]:
        return self.guard.take_verdicts(everything=everything)

    def state_dict(self) -> dict[str, Any]:
        self.guard.settle()
        return {"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}

    def check_state_dict(self, state: dict[str, Any], *, load_optimizer: bool) -> None:
        shapes = [
            {name: (v.shape, v.dtype) for name, v in one.items()} for one in (self.network.state_dict(), state["network"])
        ]
        if shapes[0] != shapes[1]:
            raise ValueError("wanted weights of this network, got those of another")
        if load_optimizer:
            self._check_moments(state["optimizer"]["state"])

    def _check_moments(self, moments: dict[int, dict[str, Any]]) -> None:
        """Of every parameter or, before the first update, of none; the optimiser itself looks at nothing."""
        names = {"rmsprop": {"step", "square_avg"}, "adam": {"step", "exp_avg", "exp_avg_sq"}}[self.config.optimizer]
        parameters = dict(enumerate(self.network.parameters()))
        if moments and moments.keys() != parameters.keys():
            raise ValueError(f"wanted moments of {len(parameters)} parameters, got {len(moments)}")
        for index, kept in moments.items():
            if kept.keys() != names:
                raise ValueError(f"wanted {', '.join(sorted(names))} of each parameter, got {', '.join(sorted(kept))}")
            for name, value in kept.items():
                shape = () if name == "step" else parameters[index].shape
                if not isinstance(value, Tensor) or value.shape != shape or value.dtype != torch.float32:
                    raise ValueError(f"wanted {name} as float32 {list(shape)} for parameter {index}, got another")

    def load_state_dict(self, state: dict[str, Any], *, load_optimizer: bool) -> None:
        """Moments come from `state`, the optimiser's settings from the config."""
        self.guard.settle()
        self.network.load_state_dict(state["network"])
        if load_optimizer:
            self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state["optimizer"]["state"]})
            self._lay_out_moments()

    def _lay_out_moments(self) -> None:
        """In memory as their weights lie on this device, or each step would take one tensor after another."""
        for parameter, moments in self.optimizer.state.items():
            for name, moment in moments.items():
                if moment.shape == parameter.shape and moment.stride() != parameter.stride():
                    moments[name] = torch.empty_like(parameter).copy_(moment)


def _float_inputs(batch: Batch) -> dict[str, Tensor]:
    """What a batch brings that may hold numbers that are not finite."""
    observations = {"observations": batch.observations} if batch.observations.is_floating_point() else {}
    behaviour = {"behaviour_logits": batch.behaviour_logits, "behaviour_values": batch.behaviour_values}
    return {**observations, "rewards": batch.rewards, **behaviour}
