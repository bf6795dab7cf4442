"""TensorBoard: the description of the run as text, and one page of charts that belong together ("Custom Scalars").

TensorBoard groups all other charts by the first part of their names.
"""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from PIL import Image

from learner.runs.directory import RunDirectory

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from workers.served.histograms import Histogram

Charts = Mapping[str, list[str]]
"""Title -> the metrics of the chart, as regular expressions that TensorBoard matches from the start of a name."""

FLUSH_SECONDS = 10
RGB = 3  # channels
QUEUE_LENGTH = 1000
"""Numbers that wait for the writer's thread: several records, so that a slow disk does not hold up the learner."""

RUN_CHARTS: dict[str, list[str]] = {
    "mean return: training, evaluation": [r"charts/episodic_return_mean$", r"eval/episodic_return$"],
    "frames per second": [r"charts/FPS$"],
    "policy lag, updates": [r"charts/policy_lag$", r"replay/.*/policy_lag$"],
}
TIME_CHARTS: dict[str, list[str]] = {
    "learner, fraction of wall time": [r"time/learner_.*"],
    "workers, fraction of wall time": [r"time/worker_.*"],
    "feeder, fraction of wall time, and batches ahead": [r"time/feeder_.*", r"feeder/.*"],
    "busy cores": [r"cores/.*"],
    "processor and GPU, per cent": [r"hardware/.*_percent$"],
    "memory, GB": [r"hardware/.*_gb$"],
}


def charts_page(agent_charts: Charts) -> dict[str, Charts]:
    """The page of charts: category -> its charts."""
    return {"run": RUN_CHARTS, "learning": agent_charts, "where the time goes": TIME_CHARTS}


def open_tensorboard(run: RunDirectory, from_step: int, agent_charts: Charts) -> SummaryWriter:
    """A writer of the run's events, which begin with the description of the run.

    Args:
        run: its directory, with a config.json to describe it by.
        from_step: step that a resumed run continues from; its earlier events after that step are hidden.
        agent_charts: charts of the metrics that the agent reports.

    Raises OSError if they cannot be written.
    """
    from torch.utils.tensorboard import SummaryWriter  # imported here: workers must not pay for it

    purge_step = from_step + 1 if from_step else None
    folder = str(run.tensorboard.absolute())  # its thread writes while an environment may have changed the current folder
    if folder != printable(folder):
        # `MetricsWriter` turns an OSError into one warning, and training continues.
        raise OSError(f"TensorBoard takes only paths in UTF-8, got {folder!r}")
    writer = SummaryWriter(folder, purge_step=purge_step, max_queue=QUEUE_LENGTH, flush_secs=FLUSH_SECONDS)
    page = charts_page(agent_charts).items()
    writer.add_custom_scalars(
        {name: {title: ["Multiline", tags] for title, tags in charts.items()} for name, charts in page if charts}
    )
    if run.config.is_file():
        writer.add_text("run", printable(describe_run(json.loads(run.config.read_text()))), from_step)
    return writer


def printable(text: str) -> str:
    """The text with an escape for each byte that is not UTF-8. A path may hold such bytes; text files and protocols do not."""
    return text.encode(errors="backslashreplace").decode()


def add_animation(writer: SummaryWriter, name: str, gif: bytes, steps: int) -> None:
    """Show a GIF under Images. SummaryWriter's own `add_video` would encode it again, with another package."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    width, height = Image.open(io.BytesIO(gif)).size
    image = Summary.Image(width=width, height=height, colorspace=RGB, encoded_image_string=gif)
    writer._get_file_writer().add_summary(Summary(value=[Summary.Value(tag=name, image=image)]), steps)


def add_histogram(writer: SummaryWriter, name: str, histogram: Histogram, steps: int) -> None:
    """Show numbers that are in buckets already."""
    edges, counts = histogram.edges.tolist(), histogram.counts.tolist()
    number = sum(counts)
    ends = {"min": edges[0], "max": edges[-1]}
    sums = {"num": number, "sum": histogram.total, "sum_squares": histogram.squares}
    writer.add_histogram_raw(name, **ends, **sums, bucket_limits=edges, bucket_counts=counts, global_step=steps)


def describe_run(content: dict[str, Any]) -> str:
    """The content of config.json as Markdown."""
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
