"""The learner's own settings: the run, what it writes, and what is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from agents import AGENTS, USER_CLASS
from agents.compute import PRECISIONS
from learner.settings.presets import NO_PRESET, PRESET_FILE, PRESETS
from learner.stores.store import NO_STORE, URL
from setting import TRAINING_MODES, OneOf, Setting

LOADING_MODES = ("train_w_load", "test", "export", "serve")
RESUMING_MODES = ("train_w_load",)
DEFAULT_AGENT = "vtrace"

_Machine = partial(Setting, auto=True, kind="machine")


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """The agent, the length of the run, and how the learner computes."""

    preset: Annotated[
        str,
        Setting(
            "Settings by name, a file each in presets/, or a file of your own. The command line overrides them.",
            "FILE.json",
            choices=(NO_PRESET, *PRESETS),
            pattern=PRESET_FILE,
        ),
    ] = NO_PRESET
    agent: Annotated[
        str,
        Setting(
            "The algorithm, or a class of your own. `--agent=NAME --help` lists its settings.",
            "FILE.py:CLASS",
            choices=AGENTS,
            pattern=USER_CLASS,
        ),
    ] = DEFAULT_AGENT
    environment_max_steps: Annotated[
        int,
        Setting(
            "Length of the run in agent steps (one action each; the reset between two episodes counts too). The program prints "
            "frames as well. With train_w_load it counts from the start of the first run; --more_steps counts from the "
            "checkpoint.",
            "a whole number of steps >= 1",
            1,
            1e15,
        ),
    ] = 2_000_000
    stop_at_steps: Annotated[
        int,
        Setting(
            "Save and end at this step, before the end of the run, so that schedules stay those of the whole run; 0: train to "
            "the end.",
            "a whole number of steps >= 0",
            0,
            1e15,
            kind="command",
            modes=TRAINING_MODES,
        ),
    ] = 0
    seed: Annotated[
        int, Setting("Seed of everything random in the run.", "a whole number from 0 to 2147483647", 0, 2**31 - 1)
    ] = 1
    reproducible: Annotated[bool, Setting("One process and a fixed order: the same seed gives the same bits. Slower.")] = False
    learner_count: Annotated[
        int,
        Setting(
            "Learners that add their gradients, each with workers, replays and a GPU or a part of the cores of its own. "
            "Settings such as batch_size and worker_count are those of one learner; steps, updates and periods count for all.",
            "a whole number of learners >= 1",
            1,
            64,
            modes=TRAINING_MODES,
        ),
    ] = 1
    device: Annotated[Literal["cpu", "cuda"], _Machine("Where the learner computes: auto takes the GPU if there is one.")]
    learner_threads: Annotated[
        int,
        _Machine("CPU threads of the learner, or auto.", "auto or a whole number of threads >= 1", 1, 1024, measured=True),
    ]
    precision: Annotated[
        str,
        _Machine(
            "What the hidden layers compute in: auto takes bfloat16 if the hardware is faster in it, else float32 (on a GPU "
            "with matrix products in TF32).",
            choices=PRECISIONS,
            modes=TRAINING_MODES,
        ),
    ]
    compile: Annotated[
        bool,
        Setting(
            "Let torch.compile fuse the network's operations, in updates and a central policy; the first ones then take a "
            "minute. Needs a C compiler on a GPU, a C++ compiler on a CPU."
        ),
    ] = False
    cuda_graphs: Annotated[
        bool,
        Setting(
            "Launch each update on a GPU as one CUDA graph, or with PPO each of its steps. All agents but TRPO, ES, CEM and "
            "LinUCB can. Not with --compile, several learners or a network of your own, nor with your own agent unless it says "
            "so.",
            modes=TRAINING_MODES,
        ),
    ] = True
    prepared_batches: Annotated[
        int,
        _Machine(
            "Most batches that are prepared ahead in the background; no more than keep the learner busy. 0 prepares each in "
            "the learner's own thread.",
            "auto or a whole number of batches from 0 to 64",
            0,
            64,
            modes=TRAINING_MODES,
        ),
    ]
    preflight: Annotated[
        bool,
        Setting(
            "Measure for two seconds before training what a step costs here: it settles worker_count, envs_per_worker and "
            "learner_threads if they are auto, and the expected speed is printed.",
            kind="command",
            modes=TRAINING_MODES,
        ),
    ] = True
    batch_size: Annotated[
        int,
        Setting(
            "Trajectories in one update, or auto. Windows of steps in each batch, with an agent that learns from windows.",
            "auto or a whole number of trajectories >= 1",
            1,
            65536,
            auto=True,
            stored=True,
            search=OneOf((8, 16, 32, 64, 128, 256)),
        ),
    ]
    unroll_length: Annotated[
        int,
        Setting(
            "Steps of a trajectory.", "a whole number of steps >= 1", 1, 10000, stored=True, search=OneOf((8, 16, 32, 64, 128))
        ),
    ] = 20
    max_skipped_updates: Annotated[
        int,
        Setting(
            "Updates in a row that may be skipped because a number was not finite. Then the last good weights return, and "
            "after as many again the run ends.",
            "a whole number of updates >= 1",
            1,
            1e6,
        ),
    ] = 10


@dataclass(frozen=True)
class OutputConfig:
    """Files and console output of a run."""

    results_dir: Annotated[str, Setting("Folder that run directories are made in.", kind="command")] = "results"
    verbosity: Annotated[
        int,
        Setting(
            "How much is printed: 0 warnings only, 1 what a person needs, 2 every row of metrics and the output of libraries.",
            "0 (silent), 1 (normal) or 2 (every detail)",
            0,
            2,
            kind="command",
        ),
    ] = 1
    checkpoint_period: Annotated[
        int, Setting("Updates between checkpoints.", "a whole number of updates >= 1", 1, 1e12, kind="output")
    ] = 1000
    checkpoint_seconds: Annotated[
        float,
        Setting(
            "Seconds after a checkpoint at which the next one is saved, if --checkpoint_period does not save earlier; 0: none.",
            "a number of seconds >= 0",
            0,
            1e9,
            kind="output",
            modes=TRAINING_MODES,
        ),
    ] = 0.0
    checkpoints_kept: Annotated[
        int,
        Setting(
            "Checkpoints that a run keeps, the newest ones; the best one is kept as well.",
            "a whole number of checkpoints >= 1",
            1,
            1e6,
            kind="output",
        ),
    ] = 3
    checkpoint_store: Annotated[
        str,
        Setting(
            "Where checkpoints, metrics and reports are copied while the run trains, beside the results folder: none, or any "
            "address that fsspec knows. s3:// needs pip install -r requirements-store.txt.",
            "a URL such as s3://bucket/path",
            choices=(NO_STORE,),
            pattern=URL,
            kind="command",
        ),
    ] = NO_STORE
    store_wait: Annotated[
        float,
        Setting(
            "Seconds that the end of a run waits for the store to take its last files.",
            "a number of seconds >= 0",
            0,
            1e6,
            kind="command",
        ),
    ] = 60.0
    save_replay: Annotated[
        bool,
        Setting(
            "Save the replays' contents with each checkpoint too (as large as they are; reproducible runs always do).",
            kind="output",
        ),
    ] = False
    log_period: Annotated[
        float,
        Setting(
            "Seconds between rows of metrics; a run has at least 20 rows, if it has as many updates.",
            "a number of seconds > 0",
            1e-3,
            1e6,
            kind="output",
        ),
    ] = 10.0
    progress_period: Annotated[
        float, Setting("Seconds between two lines of progress outside a terminal.", "seconds >= 0", 0, 1e6, kind="command")
    ] = 60.0
    return_window: Annotated[
        int,
        Setting(
            "Training episodes in the mean return that is shown, and that decides which checkpoint is the best.",
            "a whole number of episodes >= 1",
            1,
            1e6,
        ),
    ] = 100
    track: Annotated[
        Literal["none", "wandb", "mlflow", "trackio"],
        Setting(
            "Tracker that gets the numbers of TensorBoard too. It stays offline unless its own environment variables name a "
            "server. It needs pip install -r requirements-track.txt.",
            kind="output",
            modes=TRAINING_MODES,
        ),
    ] = "none"
    card: Annotated[
        bool,
        Setting(
            "Export: write README.md too, a model card for a hub with score, protocol, commands, pictures and video.",
            kind="command",
            modes=("export",),
        ),
    ] = False
    log_graph: Annotated[
        bool,
        Setting("Show the graph of the network in TensorBoard, under Graphs.", kind="command", modes=TRAINING_MODES),
    ] = False
    profile: Annotated[
        int,
        Setting(
            "Updates after warm-up whose trace is written into the run directory, for ui.perfetto.dev; 0 none.",
            "a whole number of updates from 0 to 1000",
            0,
            1000,
            kind="command",
            modes=TRAINING_MODES,
        ),
    ] = 0


@dataclass(frozen=True)
class LoadingConfig:
    """The checkpoint that a command loads, and how a run is resumed from it."""

    load: Annotated[
        str,
        Setting(
            "What to load: a run directory (its newest checkpoint), RUN/best, a checkpoint file, or latest. RUN may lie in a "
            "store, as s3://bucket/path/RUN.",
            kind="command",
            modes=LOADING_MODES,
        ),
    ] = "latest"
    resume_if_exists: Annotated[
        bool,
        Setting(
            "With train: resume the newest run of this environment and agent in results_dir, if there is one; a finished run "
            "is left as it is. So a command can be repeated until the run is finished.",
            kind="command",
            modes=TRAINING_MODES,
        ),
    ] = False
    more_steps: Annotated[
        int,
        Setting(
            "With train_w_load: agent steps to train beyond those of the checkpoint, in place of --environment_max_steps; 0: "
            "to the end of the run.",
            "a whole number of steps >= 0",
            0,
            1e15,
            kind="output",
            modes=RESUMING_MODES,
        ),
    ] = 0
    load_optimizer: Annotated[
        bool, Setting("With train_w_load: load the optimiser's state too.", kind="command", modes=RESUMING_MODES)
    ] = True
    resume_in: Annotated[
        Literal["same", "new"],
        Setting(
            "With train_w_load: resume in the same run directory, or in a new one that names its parent.",
            kind="command",
            modes=RESUMING_MODES,
        ),
    ] = "same"
