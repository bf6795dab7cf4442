"""Command line: flags -> frozen Config -> run directory -> train | evaluate."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from absl.flags import FlagValues

    from learner.launch import Job

USAGE = """Trains, resumes, tests and exports agents:

  python main.py --op_mode=train                          train
  python main.py --op_mode=train_w_load --load=RUN        resume from a checkpoint
  python main.py --op_mode=test --render --load=RUN       watch and measure what was learned
  python main.py --op_mode=export --load=RUN              write it as PyTorch and ONNX files for use elsewhere
  python main.py --op_mode=serve --load=RUN               answer clients over the network by what was learned
  python main.py --op_mode=tune --tune=lr,gamma           search settings of a training
  python main.py --op_mode=list                           list agents, presets, environments, replays and templates
  python main.py --op_mode=new --app=NAME --template=T    begin an app of your own in the folder NAME

Flags with their defaults (--agent=NAME --help shows the settings of another agent, --flagfile=FILE reads flags from a file):
"""
HELP_FLAGS = {"--help", "-help", "-h", "--helpfull"}

LONGEST_LINE = 1000  # characters

LOADER_WITHOUT_MEMORY = "failed to map segment"
"""The system's words in an ImportError for a library that does not fit into the memory limit."""


def main(command: list[str], *, apart: bool = False) -> int:
    """Do what the flags say. Returns the exit code: 0 done, 1 failed, 2 refused (bad input or a run in use), 130 stopped.

    apart: see `learner.launch.run`.
    """
    open_missing_streams()
    # Threads that share operations spin for some microseconds before they sleep. Threads that slept at once would gain nothing,
    # and threads that spin for long would keep the workers from the cores. Read when torch is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # cuBLAS needs this to repeat itself bit for bit (--reproducible); read when CUDA starts.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    with ExitStack() as limits:
        try:
            from absl import flags

            if HELP_FLAGS & set(command[1:]):
                show(f"{USAGE}\n{help_of(command)}")
                return 0
            from learner import launch
            from wrappers.answering import limited

            limits.enter_context(limited(launch.end_at_once))
            values, agent = parsed(command)
            if (text := tool_text(values)) is not None:
                show(f"{text}\n")
                return 0
            if (code := tune(values, agent, command)) is not None:
                return code
            try:
                job = job_of(values, agent, command)
            except launch.FinishedError as done:
                show(f"{done}\n")
                return 0
        except (ImportError, MemoryError) as error:
            if (line := unfit_libraries(error)) is None:
                raise
            print(f"error: {line}", file=sys.stderr)
            return 1
        except (flags.Error, ValueError) as error:
            print(f"error: {refusal(error)}", file=sys.stderr)
            return 2
        return launch.run(job, apart=apart)


def unfit_libraries(error: ImportError | MemoryError) -> str | None:
    """The one line about libraries that are not installed or have no memory. None if the error is another one."""
    if isinstance(error, ModuleNotFoundError) and find_spec(str(error.name).partition(".")[0]) is None:
        return f"{error}: wanted the packages of requirements.txt (python -m pip install -r requirements.txt)"
    if isinstance(error, MemoryError) or LOADER_WITHOUT_MEMORY in str(error):
        return f"wanted memory for the program's libraries, got too little; raise the limit (ulimit -v): {error}"
    return None


def open_missing_streams() -> None:
    """Open standard streams that the program was started without (`2>&-`); a file opened later would take their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one. Programs that this one starts need it too.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def show(text: str) -> None:
    """Print a text that the command asks for. Its reader may end before it does, as `head` does."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (the exit of Python would flush the pipe)


def help_of(command: list[str]) -> str:
    """Every flag, with the settings of the agent that the command names. Raises ValueError if there is no such agent."""
    from learner.settings.help import help_text
    from option_flags import named_agent, with_files

    return help_text(named_agent(with_files(command)))


def refusal(error: Exception) -> str:
    """The one line about bad input without credentials, cut if it quotes too much of it."""
    from learner.stores.store import redacted

    line = redacted(" ".join(str(error).split()))
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 3]}..."


def parsed(command: list[str]) -> tuple[FlagValues, str]:
    """The flags of the command, and the agent that it is about. Raises flags.Error or ValueError with one line."""
    from absl import flags

    from option_flags import define_flags, named_agent, parse, with_files

    values, read = flags.FlagValues(), with_files(command)
    agent = named_agent(read)
    define_flags(values, agent)
    parse(values, read)
    return values, agent


def tool_text(values: FlagValues) -> str | None:
    """The text of the modes list and new; None in any other mode. Raises ValueError with one line."""
    from option_flags import app_flags, op_mode
    from setting import TOOL_MODES

    if (mode := op_mode(values)) not in TOOL_MODES:
        return None
    from tools import listing, new

    app = app_flags(values)
    return listing.text() if mode == "list" else new.write_app(app)


def tune(values: FlagValues, agent: str, command: list[str]) -> int | None:
    """The exit code of the mode tune; None in any other mode. Raises ValueError with one line."""
    from option_flags import op_mode, read_settings, tuning_flags
    from setting import TUNE

    if op_mode(values) != TUNE:
        return None
    from tools.tuning.run import tune_settings

    return tune_settings(read_settings(values, agent)[0], tuning_flags(values), command)


def prepare(command: list[str]) -> Job:
    """The job that the flags ask for, checked and ready to start. Raises flags.Error or ValueError with one line."""
    return job_of(*parsed(command), command)


def job_of(values: FlagValues, agent: str, command: list[str]) -> Job:
    """The job of parsed flags, see `parsed` and `prepare`."""
    from learner import launch
    from learner.console import log_to_console
    from option_flags import op_mode, read_settings

    given, notes = read_settings(values, agent)
    log_to_console(0 if given.get("verbosity") == 0 else 1)  # the job sets the rest
    return launch.prepare(op_mode(values), given, command, notes)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv, apart=True))
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)  # training says itself what is saved
        sys.exit(130)
