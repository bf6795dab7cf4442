"""Settings that several agents have: their types with help and limits, and the checks that all share.

An agent's config lists each of its settings, with its own default: `lr: LearningRate = 6e-4`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from agents.rewards import REWARD_CLIPPING
from setting import Linear, Log, OneOf, Setting, check_fields

# The optimiser

LearningRate = Annotated[
    float,
    Setting(
        "Learning rate at the start; it moves linearly to lr_end_value.",
        "a learning rate in [0, 10]",
        0,
        10,
        search=Log(1e-5, 1e-2),
    ),
]
LastLearningRate = Annotated[float, Setting("Learning rate at the end of the run.", "a learning rate in [0, 10]", 0, 10)]
HeldLearningRate = Annotated[
    float,
    Setting("Learning rate at the end of the run; -1: as at the start.", "-1 or a learning rate in [0, 10]", -1, 10),
]
OptimizerName = Annotated[Literal["adam", "radam", "rmsprop"], Setting("Optimiser of the network's weights.")]
RmspropEpsilon = Annotated[float, Setting("Epsilon of RMSProp, added outside the root.", "a number in (0, 10]", 1e-12, 10)]
AdamEpsilon = Annotated[float, Setting("Epsilon of Adam, added to the root.", "a number in (0, 10]", 1e-12, 10)]
AdamMomentum = Annotated[float, Setting("Decay beta1 of Adam's mean of gradients.", "a number in [0, 1)", 0, 0.999999)]
WeightDecay = Annotated[
    float,
    Setting(
        "Part of each weight, times the learning rate, that a step of Adam takes off (AdamW: 0.01); 0: none.",
        "a number in [0, 10]",
        0,
        10,
    ),
]
GradientClip = Annotated[
    float,
    Setting(
        "Global gradient norm above which gradients are scaled down.",
        "a gradient norm > 0",
        1e-9,
        1e9,
        search=Log(0.1, 100),
    ),
]
ClipOfEachLoss = Annotated[
    float,
    Setting(
        "Gradient norm above which the gradients of a loss, such as the critics', are scaled down; 0: never.",
        "a gradient norm >= 0",
        0,
        1e9,
    ),
]

# Rewards and returns

Gamma = Annotated[
    float,
    Setting("Discount per step.", "a discount in [0, 1]", 0, 1, search=OneOf((0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999))),
]
NormaliseRewards = Annotated[
    bool,
    Setting(
        "Divide rewards by the running standard deviation of their discounted sum and clip them at 10, for learning; "
        "reported returns stay raw. It takes the place of --clip_rewards."
    ),
]
ClipRewards = Annotated[bool, Setting("Clip rewards for learning; reported returns stay raw.")]
RewardClipping = Annotated[str, Setting("How rewards are clipped for learning.", choices=REWARD_CLIPPING)]
PopArtSwitch = Annotated[
    bool,
    Setting(
        "PopArt: normalise values and advantages by running moments of the value targets, so that raw rewards may have any "
        "size. It takes the place of --clip_rewards and --normalise_rewards."
    ),
]
PopArtRate = Annotated[
    float, Setting("PopArt: the part that one value target has of the running moments.", "a number in (0, 1]", 1e-12, 1)
]
Lambda = Annotated[
    float,
    Setting(
        "Decay of the advantages' trace (GAE); 1 takes whole returns, 0 one step and the next value.",
        "a number in [0, 1]",
        0,
        1,
        search=OneOf((0.8, 0.9, 0.92, 0.95, 0.98, 0.99, 1.0)),
    ),
]
TraceFactor = Annotated[float, Setting("Factor on the traces.", "a number in [0, 1]", 0, 1, search=Linear(0.8, 1))]
RetraceLambda = Annotated[
    float,
    Setting(
        "Lambda of Retrace: targets that correct for the policy that acted, by the ratio of both policies; -1: none.",
        "-1 or a number in [0, 1]",
        -1,
        1,
    ),
]

# Losses of actor-critic agents

ValueWeight = Annotated[
    float,
    Setting("Weight of the value loss (half the squared error).", "a weight >= 0", 0, 1e9, search=Linear(0.25, 1)),
]
EntropyWeight = Annotated[
    float,
    Setting("Weight of the entropy bonus at the start of the run.", "a weight >= 0", 0, 1e9, search=Log(1e-5, 0.1)),
]
LastEntropyWeight = Annotated[
    float,
    Setting(
        "Weight of the entropy bonus at the end of the run, to which it falls linearly; -1: as at the start.",
        "-1 or a weight >= 0",
        -1,
        1e9,
    ),
]
ActionBoundWeight = Annotated[
    float,
    Setting(
        "Weight of the penalty on means of Gaussian actions outside their bounds: the squared distance beyond 1.1 times "
        "a bound.",
        "a weight >= 0",
        0,
        1e9,
    ),
]

# Intrinsic rewards

IntrinsicKind = Annotated[
    Literal["none", "rnd", "icm"],
    Setting(
        "Rewards for what is new, beside those of the environment: rnd (random network distillation), icm (intrinsic curiosity "
        "module) or none. They have a value of their own."
    ),
]
IntrinsicGamma = Annotated[
    float,
    Setting(
        "Discount of intrinsic rewards per step.",
        "a discount in [0, 1]",
        0,
        1,
        search=OneOf((0.9, 0.97, 0.99, 0.995)),
    ),
]
IntrinsicWeight = Annotated[
    float, Setting("Weight of the advantages of intrinsic rewards.", "a weight >= 0", 0, 1e6, search=Log(0.01, 10))
]
ExtrinsicWeight = Annotated[
    float, Setting("Weight of the advantages of the environment's rewards beside intrinsic ones.", "a weight >= 0", 0, 1e6)
]
IntrinsicEpisodes = Annotated[
    bool, Setting("End the returns of intrinsic rewards with the episodes. By default they go on into the next one.")
]
PredictorShare = Annotated[
    float,
    Setting(
        "Part of the rows that the module of intrinsic rewards learns from in each epoch, drawn at random (RND: 0.25 for 128 "
        "environments, 1 for 32).",
        "a number in (0, 1]",
        1e-6,
        1,
    ),
]

# Several passes over a batch

Epochs = Annotated[
    int,
    Setting(
        "Times that an update goes through its batch.",
        "a whole number of epochs from 1 to 1000",
        1,
        1000,
        search=Log(1, 20),
    ),
]
Minibatches = Annotated[
    int,
    Setting(
        "Parts of the batch in each epoch, one optimiser step each; at most as many as there are steps or columns.",
        "a whole number of minibatches from 1 to 1000000",
        1,
        1e6,
        search=OneOf((1, 2, 4, 8, 16)),
    ),
]
MinibatchUnit = Annotated[
    Literal["auto", "steps", "columns"],
    Setting("Members of a minibatch: single steps, or whole trajectories. auto: columns with a core, otherwise steps."),
]

# Learning from replayed windows

WindowRows = Annotated[
    int,
    Setting(
        "Rows of a window: rewards that are summed before the value of the observation after them.",
        "a whole number of rows from 1 to 1000",
        1,
        1000,
        search=OneOf((1, 3, 5)),
    ),
]
UpdatesPerStep = Annotated[
    float,
    Setting(
        "Optimiser steps for each step of the environments. Workers and learner wait for each other to keep it.",
        "a number in (0, 1000]",
        1e-6,
        1000,
        search=Log(0.1, 2),
    ),
]
LearningStarts = Annotated[
    int,
    Setting(
        "Steps of the environments before the first update; they are not caught up on later.",
        "a whole number of steps >= 0",
        0,
        1e12,
    ),
]
BatchesAtOnce = Annotated[
    int,
    Setting(
        "Batches that are drawn in one call and copied in one transfer; the agent takes an optimiser step on each.",
        "a whole number of batches from 1 to 1024",
        1,
        1024,
    ),
]
PolyakRate = Annotated[
    float,
    Setting(
        "Rate tau at which a target network follows the learned one: target = (1 - tau) target + tau learned.",
        "a number in (0, 1]",
        1e-9,
        1,
        search=Log(1e-3, 0.1),
    ),
]


@dataclass(frozen=True)
class AgentConfig:
    """The base of every agent's settings: checks, and values that follow from several settings. It has no field."""

    def __post_init__(self) -> None:
        check_fields(self)
        if -1 < (last := getattr(self, "lr_end_value", -1.0)) < 0:
            raise ValueError(f"lr_end_value: wanted -1 or a learning rate in [0, 10], got {last:g}")
        if -1 < (lambda_ := getattr(self, "retrace_lambda", -1.0)) < 0:
            raise ValueError(f"retrace_lambda: wanted -1 or a number in [0, 1], got {lambda_:g}")
        if lambda_ != -1 and getattr(self, "n_step", 2) == 1:
            raise ValueError("n_step: wanted 2 or more with --retrace_lambda, which corrects the rows behind the first, got 1")
        last, first = getattr(self, "entropy_loss_weight_end", -1.0), getattr(self, "entropy_loss_weight", 0.0)
        if last != -1 and not 0 <= last <= first:
            raise ValueError(
                f"entropy_loss_weight_end: wanted -1 or a weight from 0 to entropy_loss_weight {first:g}, got {last:g}"
            )
        for name in ("normalise_rewards", "clip_rewards"):
            if getattr(self, "popart", False) and getattr(self, name, False):
                raise ValueError(f"popart: wanted raw rewards, got {name}; drop one with --no{name} or --nopopart")
        if (decay := self.decoupled_decay) and getattr(self, "optimizer", "") != "adam":
            raise ValueError(f"weight_decay: wanted 0 without --optimizer=adam, got {decay:g}")
        if getattr(self, "normalise_rewards", False) and getattr(self, "clip_rewards", False):
            raise ValueError(
                "normalise_rewards: wanted either it or clip_rewards, got both; drop one with --noclip_rewards or "
                "--nonormalise_rewards"
            )

    @property
    def decoupled_decay(self) -> float:
        """The part of each weight, times the learning rate, that the optimiser takes off beside its step."""
        return float(getattr(self, "weight_decay", 0.0))

    @property
    def reward_clipping(self) -> str | None:
        """A name of `agents.rewards.REWARD_CLIPPING`, or None for rewards that are not clipped."""
        return getattr(self, "reward_clipping_method", None) if getattr(self, "clip_rewards", False) else None
