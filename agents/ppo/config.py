"""Settings of PPO, by default those of OpenAI baselines and CleanRL for discrete actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from agents.settings import (
    ActionBoundWeight,
    AgentConfig,
    ClipRewards,
    EntropyWeight,
    Epochs,
    ExtrinsicWeight,
    Gamma,
    GradientClip,
    IntrinsicEpisodes,
    IntrinsicGamma,
    IntrinsicKind,
    IntrinsicWeight,
    Lambda,
    LastEntropyWeight,
    LastLearningRate,
    LearningRate,
    Minibatches,
    MinibatchUnit,
    NormaliseRewards,
    OptimizerName,
    PopArtRate,
    PopArtSwitch,
    PredictorShare,
    RewardClipping,
    RmspropEpsilon,
    ValueWeight,
)
from agents.surrogate import Clip, LastClip, last_clip
from setting import Setting


@dataclass(frozen=True)
class PPOConfig(AgentConfig):
    """Settings of PPO. All losses are means over the used steps."""

    lr: LearningRate = 2.5e-4
    lr_end_value: LastLearningRate = 0.0
    optimizer: OptimizerName = "adam"
    rmsprop_eps: RmspropEpsilon = 0.01
    adam_eps: float = 1e-5
    gradient_clip_by_norm_threshold: GradientClip = 0.5
    gamma: Gamma = 0.99
    gae_lambda: Lambda = 0.95
    normalise_rewards: NormaliseRewards = False
    clip_rewards: ClipRewards = False
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
    action_bound_loss_weight: ActionBoundWeight = 0.0
    epochs: Epochs = 4
    minibatches: Minibatches = 4
    minibatch_unit: MinibatchUnit = "auto"
    clip: Clip = 0.2
    clip_end_value: LastClip = -1.0
    policy_objective: Annotated[
        Literal["clip", "kl", "clip_and_kl"],
        Setting("What keeps the new policy near the one that acted: the clipped ratio, an adaptive KL penalty, or both."),
    ] = "clip"
    kl_weight: Annotated[float, Setting("Weight of the KL penalty at the start.", "a weight from 0 to 1e6", 0, 1e6)] = 1.0
    target_kl: Annotated[
        float,
        Setting(
            "Target divergence from the policy that acted, in nats. With policy_objective clip an update stops before a step "
            "whose minibatch exceeds 1.5 times the target (0: never). Otherwise the weight of the KL penalty adapts to it.",
            "a divergence >= 0",
            0,
            1e9,
        ),
    ] = 0.0
    dual_clip: Annotated[
        float,
        Setting("Ratio above which bad actions have no gradient (dual-clip PPO: 3); 0: none.", "0 or a number above 1", 0, 1e9),
    ] = 0.0
    value_clip: Annotated[
        float, Setting("Clip of the change of a value, in units of the value; 0: none.", "a number >= 0", 0, 1e9)
    ] = 0.0
    advantage_normalisation: Annotated[
        Literal["minibatch", "batch", "none"],
        Setting("The steps over which advantages get mean 0 and standard deviation 1."),
    ] = "minibatch"
    recompute_advantages: Annotated[
        bool, Setting("Compute values and advantages again before each epoch, with the newest weights.")
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 < self.dual_clip <= 1:
            raise ValueError(f"dual_clip: wanted 0 or a number above 1, got {self.dual_clip:g}")
        last_clip(self.clip, self.clip_end_value)
        if self.penalises and not self.target_kl:
            raise ValueError(f"target_kl: wanted a divergence > 0 with policy_objective {self.policy_objective}, got 0")

    @property
    def penalises(self) -> bool:
        """Whether the loss has a KL penalty."""
        return self.policy_objective != "clip"

    @property
    def stops_early(self) -> bool:
        """Whether an update may stop before its last step."""
        return self.target_kl > 0 and not self.penalises

    @property
    def last_clip(self) -> float:
        """The clip at the end of the run."""
        return last_clip(self.clip, self.clip_end_value)
