"""TensorBoard shows the run's description and a page of charts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2

from agents.vtrace.agent import CHARTS
from learner.metrics.tensorboard import charts_page, open_tensorboard
from learner.metrics.writer import read_metrics
from learner.runs.directory import RunDirectory

SHOWN_BY_EVERY_RUN = (
    *("charts/episodic_return_mean", "charts/FPS", "charts/policy_lag", "losses/value_loss", "losses/entropy"),
    *("losses/explained_variance", "vtrace/mean_rho", "time/learner_update", "time/worker_env", "hardware/cpu_percent"),
)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory.create(tmp_path, "Catch-v0")
    run.write_config({"lr": 0.001, "device": "cpu", "env": "a|b"}, ["main.py", "--env=a|b"], ["device=cpu (no GPU found)"])
    return run


def events(run: RunDirectory) -> EventAccumulator:
    accumulator = EventAccumulator(str(run.tensorboard))
    accumulator.Reload()
    return accumulator


def text(run: RunDirectory) -> str:
    return events(run).Tensors("run/text_summary")[-1].tensor_proto.string_val[0].decode()


def test_the_run_is_described_from_its_config(run: RunDirectory) -> None:
    open_tensorboard(run, 0, CHARTS).close()
    lines = text(run).splitlines()
    assert "| lr | `0.001` |  |" in lines
    assert "| device | `cpu` | no GPU found |" in lines
    assert "| env | `a\\|b` |  |" in lines, "a bare bar would end the cell"
    assert "**Command:** `main.py '--env=a|b'`" in lines
    assert re.search(r"\*\*Commit:\*\* (\w{40}|no checkout)", text(run))


def test_a_command_that_is_not_utf8_is_described_with_escapes(run: RunDirectory) -> None:
    run.write_config({"results_dir": "/a/\udcff"}, ["main.py", "--results_dir=/a/\udcff"], [])
    open_tensorboard(run, 0, CHARTS).close()
    assert "| results_dir | `/a/\\udcff` |  |" in text(run).splitlines()


def test_events_are_kept_while_the_current_folder_is_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunDirectory.create(Path("results"), "Catch-v0")
    writer = open_tensorboard(run, 0, CHARTS)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    writer.add_scalar("lr", 0.5, 10)
    writer.close()
    monkeypatch.chdir(tmp_path)
    assert [event.step for event in events(run).Scalars("lr")] == [10]


def test_a_resumed_run_describes_itself_again(run: RunDirectory) -> None:
    open_tensorboard(run, 0, CHARTS).close()
    open_tensorboard(run, 500, CHARTS).close()
    assert [event.step for event in events(run).Tensors("run/text_summary")] == [0, 500]


def test_the_page_of_charts_reaches_tensorboard(run: RunDirectory) -> None:
    open_tensorboard(run, 0, CHARTS).close()
    (event,) = events(run).Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
    shown = {
        category.title: {chart.title: list(chart.multiline.tag) for chart in category.chart} for category in layout.category
    }
    assert shown == charts_page(CHARTS)


def test_an_agent_without_charts_has_a_page_without_its_category(run: RunDirectory) -> None:
    open_tensorboard(run, 0, {}).close()
    (event,) = events(run).Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
    assert [category.title for category in layout.category] == ["run", "where the time goes"]


@pytest.mark.parametrize("name", SHOWN_BY_EVERY_RUN)
def test_the_page_shows_the_main_metrics(name: str, catch_run: RunDirectory) -> None:
    assert charts_of(name)
    assert name in read_metrics(catch_run.metrics)


@pytest.mark.parametrize(
    ("name", "charts"),
    [
        ("losses/entropy", ["entropy, nats"]),
        ("losses/entropy_loss", ["losses, mean per step"]),
        ("charts/episodic_return", []),
        ("charts/episodic_return_mean", ["mean return: training, evaluation"]),
    ],
)
def test_a_chart_shows_no_name_with_another_ending(name: str, charts: list[str]) -> None:
    assert charts_of(name) == charts


def charts_of(name: str) -> list[str]:
    """Titles of the charts that show a metric. TensorBoard matches from the start of a name, not to its end."""
    charts = [(title, tags) for category in charts_page(CHARTS).values() for title, tags in category.items()]
    return [title for title, tags in charts if any(re.match(tag, name) for tag in tags)]
