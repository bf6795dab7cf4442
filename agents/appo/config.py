"""Settings of the asynchronous agents with a clipped surrogate, and those of APPO."""

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
from agents.surrogate import Clip, LastClip, last_clip
from setting import Setting

Normalise = Annotated[
    bool, Setting("Give the advantages of each minibatch mean 0 and standard deviation 1 before the policy gradient.")
]


@dataclass(frozen=True)
class SurrogateConfig(AgentConfig):
    """Settings of APPO and IMPACT. All losses are means over the used steps."""

    lr: LearningRate = 5e-4
    lr_end_value: LastLearningRate = 0.0
    optimizer: OptimizerName = "adam"
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
    vtrace_lambda: TraceFactor = 1.0
    clip: Clip = 0.2
    clip_end_value: LastClip = -1.0
    epochs: Epochs = 1
    minibatches: Annotated[
        int,
        Setting(
            "Parts of the batch in each epoch, one optimiser step each. They are made of whole trajectories, so there are at "
            "most as many.",
            "a whole number of minibatches from 1 to 65536",
            1,
            65536,
        ),
    ] = 1
    normalise_advantages: Normalise = False
    kl_weight: Annotated[
        float,
        Setting(
            "Weight at the start of the penalty on the divergence from the target network; 0: none.", "a weight >= 0", 0, 1e6
        ),
    ] = 0.0
    target_kl: Annotated[
        float,
        Setting(
            "Divergence from the target network, in nats, that the weight of the penalty follows.",
            "a divergence > 0",
            1e-9,
            1e9,
        ),
    ] = 0.04
    target_update_period: Annotated[
        int,
        Setting(
            "Updates between two copies into the target network; 0: 2 times slots times uses of a circular replay, or 32.",
            "a whole number of updates from 0 to 1000000000",
            0,
            1e9,
        ),
    ] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        last_clip(self.clip, self.clip_end_value)
        if self.kl_weight and self.target_update_period == self.epochs == self.minibatches == 1:
            raise ValueError(
                "target_update_period: wanted 0 or at least 2 updates with kl_weight and one step an update, because there is "
                "no divergence from a copy of the newest weights; got 1"
            )

    @property
    def last_clip(self) -> float:
        """The clip at the end of the run."""
        return last_clip(self.clip, self.clip_end_value)


@dataclass(frozen=True)
class APPOConfig(SurrogateConfig):
    """Settings of APPO, by default near those of Sample Factory."""

    gradient_clip_by_norm_threshold: GradientClip = 4.0
    adam_eps: float = 1e-6
    vtrace_lambda: Annotated[float, Setting("Factor on the traces, of GAE too.", "a number in [0, 1]", 0, 1)] = 0.95
    advantages: Annotated[
        Literal["vtrace", "gae"],
        Setting(
            "How advantages and value targets are estimated: with V-trace's correction, or by GAE as if the policy had acted."
        ),
    ] = "vtrace"
    normalise_advantages: Normalise = True
    value_loss_weight: ValueWeight = 1.0
    entropy_loss_weight: EntropyWeight = 0.003
