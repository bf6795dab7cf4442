"""Every command-line flag: help with its unit, a validator, and its default from the table of settings.

`define_flags` registers them; nothing happens at import. Only this file and main.py see FLAGS.
"""

from __future__ import annotations

import re
from typing import Any

from absl import flags

from learner.settings.config import AUTO, BOUNDS, CHOICES, DEFAULTS, Settings, check_setting

WHOLE_NUMBER = re.compile(r"\s*-?[0-9]{1,18}\s*")
OP_MODES = ("train", "train_w_load", "test", "export")

HELP = {
    "preset": "Settings by name, a file each in presets/: atari (IMPALA), atari_replay (LASER), pong_fast, quick (a minute). "
    "Flags come before it.",
    "env": "Environment id, such as PongNoFrameskip-v4, ALE/Breakout-v5 or Catch-v0.",
    "environment_max_steps": "Length of the run in agent steps (one action each; the program prints frames beside).",
    "seed": "Seed of everything random in the run.",
    "reproducible": "One process and a fixed order: the same seed gives the same bits. Slower.",
    "device": "Where the learner computes: auto takes the GPU where there is one.",
    "learner_threads": "CPU threads of the learner, or auto.",
    "precision": "What the hidden layers compute in: auto takes bfloat16 where the hardware multiplies it, else float32 "
    "(on a GPU with matrix products in TF32).",
    "compile": "Let torch.compile fuse the network's operations, in updates and a central policy; the first ones then take a "
    "minute. Needs a C compiler on a GPU, a C++ compiler on a CPU.",
    "worker_kind": "Who acts: cpu (each worker its own copy of the policy), central (one policy on the learner's device "
    "for all workers), serial (in the learner's process), or auto.",
    "worker_count": "Worker processes, or auto.",
    "envs_per_worker": "Environments of one worker, or auto; it steps them together, those of a central policy in two halves.",
    "worker_timeout": "Seconds without a step after which a worker counts as hanging and is started again.",
    "max_worker_restarts": "Restarts of failed workers within an hour, all together; one failure more ends the run.",
    "prepared_batches": "Most batches that are prepared ahead in the background; as few as keep the learner busy are. "
    "0 prepares each in the learner's own thread.",
    "preflight": "Measure for two seconds before training what a step costs here: it settles worker_count, envs_per_worker and "
    "learner_threads where they are auto, and the speed to expect is printed.",
    "batch_size": "Trajectories in one update, or auto.",
    "unroll_length": "Steps in one trajectory.",
    "replay_parameters": "JSON list of replays: type (queue, standard, elite, attentive, custom), capacity (trajectories) "
    "or memory (a size such as 8GB), sample_ratio (sum 1), and what the type takes; see docs/algorithms.md.",
    "training_fill_in_factor": "Part of a replay's capacity, in [0, 1], that is filled before the replay gives anything.",
    "use_replay_compression": "Keep replayed frames compressed (LZ4): a tenth of the memory or less, for a little time.",
    "network": "Network: nature, impala_shallow, impala_deep, or mlp for small observations.",
    "calibrate_input": "Centre and scale observations once, by what random play looks like before training.",
    "gamma": "Discount a step.",
    "lr": "Learning rate at the start; it falls linearly over the run's fresh frames.",
    "lr_end_value": "Learning rate at the end of the run.",
    "optimizer": "Optimiser of the network's weights: rmsprop or adam.",
    "rmsprop_eps": "Epsilon of RMSProp, added outside the root.",
    "gradient_clip_by_norm_threshold": "Global gradient norm above which gradients are scaled down.",
    "max_skipped_updates": "Updates in a row that may be skipped because a number was not finite. Then the last good weights "
    "return, and after as many again the run ends.",
    "rho_bar": "V-trace: clip of the importance ratio in the temporal differences (which policy is evaluated).",
    "c_bar": "V-trace: clip of the importance ratio in the traces (speed against variance); at most rho_bar.",
    "pg_rho_bar": "V-trace: clip of the importance ratio in the policy gradient.",
    "vtrace_lambda": "V-trace: factor on the traces, in [0, 1].",
    "policy_gradient_loss_weight": "Weight of the policy-gradient loss (summed over the batch).",
    "value_loss_weight": "Weight of the value loss (half the squared error, summed over the batch).",
    "entropy_loss_weight": "Weight of the entropy bonus (summed over the batch).",
    "use_policy_cloning_loss": "CLEAR: keep the policy close to the behaviour policy on replayed trajectories.",
    "use_value_cloning_loss": "CLEAR: keep the value close to the behaviour value on replayed trajectories.",
    "policy_cloning_loss_weight": "CLEAR: weight of the policy-cloning loss, KL(behaviour || current), summed.",
    "value_cloning_loss_weight": "CLEAR: weight of the value-cloning loss, squared difference, summed.",
    "use_kl_mask": "LASER: leave out steps whose behaviour policy is too far from the current one; entropy on fresh data only.",
    "kl_div_threshold": "LASER: divergence above which a step is left out.",
    "relevance": "LASER: divergence from the implied policy (the paper's) or from the behaviour policy.",
    "clip_rewards": "Clip rewards for learning; reported returns stay raw.",
    "reward_clipping_method": "How rewards are clipped for learning.",
    "protocol": "Atari: classic (no sticky actions, 0 to 29 no-ops, the game's own actions), machado (sticky actions 0.25, "
    "all 18 actions, no no-ops, a lost life is no end), or as_set: what the settings below say.",
    "frame_scale_resolution": "Size of a frame, height,width in pixels.",
    "frames_stacked": "Frames in one observation.",
    "skipped_frames": "Emulator frames that one step lasts (the action is repeated).",
    "noop_threshold": "An episode starts with fewer no-op frames than this, their number drawn at random: 0 to 29 for 30, "
    "none for 0. The FIRE of a start counts as one.",
    "grayscaling_frames": "Grey frames; --nograyscaling_frames gives RGB.",
    "episodic_life": "A lost life ends the episode for the learner; reported returns are for whole games.",
    "fire_reset": "FIRE is pressed at an episode's start and after a lost life, where the game has that button.",
    "sticky_actions": "Probability that the emulator repeats the action before, each frame (0.25 is the machado protocol).",
    "full_action_space": "All 18 actions instead of those the game uses.",
    "max_episode_frames": "Emulator frames after which an episode is cut.",
    "results_dir": "Folder that run directories are made in.",
    "eval_period": "Updates between evaluations that a process of low priority plays beside training; 0: none. With them "
    "the best checkpoint is the one that played best.",
    "eval_episodes": "Whole episodes of one such evaluation.",
    "save_model_period": "Updates between checkpoints.",
    "checkpoints_kept": "Checkpoints that a run keeps, the newest ones; the best one stays beside them.",
    "save_replay": "Save the replays' contents with each checkpoint too (as large as they are; reproducible runs always do).",
    "log_period": "Seconds between rows of metrics.",
    "profile": "Updates after warm-up whose trace is written into the run directory, for ui.perfetto.dev; 0 none.",
    "avg_buff_size": "Episodes in the mean return that is shown.",
    "verbosity": "How much is printed: 0 warnings only, 1 what a person needs, 2 every row of metrics too.",
    "test_episode_count": "Test mode: whole episodes to play.",
    "test_environments": "Test mode: environments played at once, or auto.",
    "greedy": "Test mode: take the most probable action instead of sampling one.",
    "render": "Test mode: show the games in a window, or write a video where there is no display.",
    "load_model_url": "What to load: a run directory (its newest checkpoint), RUN/best, a checkpoint file, or latest.",
    "load_optimizer_save": "With train_w_load: load the optimiser's state too.",
    "resume_in": "With train_w_load: go on in the same run directory, or in a new one that names its parent.",
}

ALIASES = {"r_f_steps": "unroll_length"}


def define_flags(values: flags.FlagValues) -> None:
    """Register every flag in `values`."""
    flags.DEFINE_enum(
        "op_mode", "train", OP_MODES, "What to do: train, train_w_load (go on), test or export.", flag_values=values
    )
    for name, default in DEFAULTS.items():
        _define(values, name, default)
    for alias, name in ALIASES.items():
        flags.DEFINE_alias(alias, name, flag_values=values)


def _define(values: flags.FlagValues, name: str, default: Any) -> None:
    text = HELP[name] + (f" Wanted: {BOUNDS[name][0]}." if name in BOUNDS else "")
    if name in CHOICES:
        flags.DEFINE_enum(name, default, CHOICES[name], text, flag_values=values)
    elif isinstance(default, bool):
        flags.DEFINE_boolean(name, default, text, flag_values=values)
    elif isinstance(default, int):
        flags.DEFINE_integer(name, default, text, flag_values=values)
    elif isinstance(default, float):
        flags.DEFINE_float(name, default, text, flag_values=values)
    else:
        flags.DEFINE_string(name, default, text, flag_values=values)
    if isinstance(default, bool | int | float):
        wanted = "true or false" if isinstance(default, bool) else BOUNDS[name][0]
        values[name].parser = _Worded(values[name].parser, f"{name}: wanted {wanted}")
    flags.register_validator(name, _validator(name), flag_values=values)


class _Worded(flags.ArgumentParser):
    """A parser of absl's; what it cannot read is refused in this program's words."""

    def __init__(self, parser: Any, wanted: str) -> None:
        self._parser = parser
        self._wanted = wanted
        self.syntactic_help = parser.syntactic_help

    def parse(self, argument: Any) -> Any:
        try:
            return self._parser.parse(argument)
        except (TypeError, ValueError):
            raise ValueError(f"{self._wanted}, got {argument!r}") from None

    def flag_type(self) -> str:
        return str(self._parser.flag_type())


def _validator(name: str) -> Any:
    def validate(value: Any) -> bool:
        try:
            check_setting(name, _plain(name, value))
        except ValueError as error:
            raise flags.ValidationError(str(error)) from None
        return True

    return validate


def _plain(name: str, value: Any) -> Any:
    """What the command line calls text, as the setting's own type: `auto` stays, digits become a number."""
    if DEFAULTS[name] == AUTO and name in BOUNDS and isinstance(value, str) and WHOLE_NUMBER.fullmatch(value):
        return int(value)
    return value


def all_settings(values: flags.FlagValues) -> Settings:
    """Every setting, given or default."""
    return {name: _plain(name, values[name].value) for name in DEFAULTS}


def given_settings(values: flags.FlagValues) -> Settings:
    """Only the settings that stand on the command line."""
    given = {name for name in DEFAULTS if values[name].present} | {
        name for alias, name in ALIASES.items() if values[alias].present
    }
    return {name: value for name, value in all_settings(values).items() if name in given}
