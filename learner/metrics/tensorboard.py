"""TensorBoard beside the numbers: what the run is, as text, and one page of charts that belong together.

Everything else groups itself by the first part of its name; the page is under "Custom Scalars".
"""

from __future__ import annotations

import io
import json
import shlex
from typing import TYPE_CHECKING, Any

from PIL import Image

from learner.runs.directory import RunDirectory

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FLUSH_SECONDS = 10
RGB = 3  # channels
QUEUE_LENGTH = 1000
"""Several rows: their numbers wait here for the writer's thread, so that a slow disk holds up nobody."""

LAYOUT: dict[str, dict[str, list[Any]]] = {
    "run": {
        "mean return: training, evaluation": ["Multiline", [r"charts/episodic_return_mean$", r"eval/episodic_return$"]],
        "frames per second": ["Multiline", [r"charts/FPS$"]],
        "policy lag, updates": ["Multiline", [r"charts/policy_lag$", r"replay/.*/policy_lag$"]],
    },
    "learning": {
        "losses, mean of a step": ["Multiline", [r"losses/.*_loss$"]],
        "entropy, nats": ["Multiline", [r"losses/entropy$"]],
        "explained variance of the value": ["Multiline", [r"losses/explained_variance$"]],
        "importance ratios": ["Multiline", [r"vtrace/.*"]],
    },
    "replay": {
        "rejected by the trust region, share": ["Multiline", [r"replay/.*/rejected_fraction$"]],
        "effective sample size, share": ["Multiline", [r"replay/.*/effective_sample_size$"]],
    },
    "where the time goes": {
        "learner, share of wall time": ["Multiline", [r"time/learner_.*"]],
        "workers, share of wall time": ["Multiline", [r"time/worker_.*"]],
        "feeder, share of wall time, and batches ahead": ["Multiline", [r"time/feeder_.*", r"feeder/.*"]],
        "busy cores": ["Multiline", [r"cores/.*"]],
        "processor and GPU, per cent": ["Multiline", [r"hardware/.*_percent$"]],
        "memory, GB": ["Multiline", [r"hardware/.*_gb$"]],
    },
}
"""Category -> chart -> the names it shows, as regular expressions that TensorBoard matches from the start of a name."""


def open_board(run: RunDirectory, from_step: int) -> SummaryWriter:
    """The run's events, headed by its description; a resumed run's earlier events behind `from_step` are hidden."""
    from torch.utils.tensorboard import SummaryWriter  # imported here: workers must not pay for it

    purge_step = from_step + 1 if from_step else None
    board = SummaryWriter(str(run.tensorboard), purge_step=purge_step, max_queue=QUEUE_LENGTH, flush_secs=FLUSH_SECONDS)
    board.add_custom_scalars(LAYOUT)
    if run.config.is_file():
        board.add_text("run", describe_run(json.loads(run.config.read_text())), from_step)
    return board


def add_animation(board: SummaryWriter, name: str, gif: bytes, steps: int) -> None:
    """Show a GIF under Images. SummaryWriter's own `add_video` would encode it anew, with a package of its own."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    width, height = Image.open(io.BytesIO(gif)).size
    image = Summary.Image(width=width, height=height, colorspace=RGB, encoded_image_string=gif)
    board._get_file_writer().add_summary(Summary(value=[Summary.Value(tag=name, image=image)]), steps)


def describe_run(content: dict[str, Any]) -> str:
    """Markdown out of what config.json holds."""
    reasons = {line.partition("=")[0]: line.partition(" (")[2].removesuffix(")") for line in content["chosen_for_this_machine"]}
    cells = {name: str(value).replace("|", "\\|") for name, value in content["settings"].items()}
    rows = [f"| {name} | `{value}` | {reasons.get(name, '')} |" for name, value in cells.items()]
    packages = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    return "\n".join(
        [
            f"**Command:** `{shlex.join(content['command'])}`\n",
            f"**Commit:** {content['git_commit'] or 'no checkout'}\n",
            f"**Machine:** {content['host']['system']}, {content['host']['cores']} cores\n",
            f"**Packages:** {packages}\n",
            "| setting | value | why |",
            "|---|---|---|",
            *rows,
        ]
    )
