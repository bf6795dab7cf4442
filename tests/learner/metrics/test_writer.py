"""metrics.csv and TensorBoard hold the same numbers, also after a resume."""

from __future__ import annotations

import csv
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]
from tensorboard.summary.writer import event_file_writer

from learner.metrics.writer import MetricsWriter, check_history, read_metrics
from learner.runs.directory import RunDirectory


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """TensorBoard reads its files by name, and in one second their number in the process decides: 9 would come after 10."""
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    return RunDirectory.create(tmp_path, "Catch-v0")


def counters(steps: int) -> dict[str, float]:
    return {"seconds": steps / 8, "steps": steps, "frames": 4 * steps, "updates": steps // 10, "episodes": steps // 50}


def write(run: RunDirectory, records: dict[int, dict[str, float]], from_step: int = 0) -> None:
    """Write records. records: steps -> metrics."""
    writer = MetricsWriter(run, from_step)
    for steps, record in records.items():
        writer.write(counters(steps), record)
    writer.close()


def cells(run: RunDirectory) -> list[dict[str, str]]:
    with run.metrics.open(newline="") as file:
        return list(csv.DictReader(file))


def board(run: RunDirectory) -> dict[str, list[tuple[int, float]]]:
    """The scalars of TensorBoard: tag -> (step, value)."""
    events = EventAccumulator(str(run.tensorboard))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_each_record_is_one_line(run: RunDirectory) -> None:
    write(run, {100: {"losses/a": 0.5}, 200: {"losses/a": -1.25}})
    assert run.metrics.read_text() == (
        "seconds,steps,frames,updates,episodes,losses/a\n12.5,100,400,10,2,0.5\n25,200,800,20,4,-1.25\n"
    )


def test_records_are_on_disk_while_the_run_continues(run: RunDirectory) -> None:
    writer = MetricsWriter(run)
    for steps in (10, 20, 30):
        writer.write(counters(steps), {"losses/a": 1.0})
        assert [row["steps"] for row in cells(run)][-1] == str(steps)
    writer.close()


def test_a_new_name_extends_the_header_and_keeps_earlier_records(run: RunDirectory) -> None:
    write(run, {100: {"losses/a": 1.0}, 200: {"charts/b": 2.0, "losses/a": 3.0}, 300: {"losses/a": 4.0}})
    rows = cells(run)
    assert list(rows[0]) == [*MetricsWriter.LEADING, "losses/a", "charts/b"]
    assert [row["losses/a"] for row in rows] == ["1", "3", "4"]
    assert [row["charts/b"] for row in rows] == ["", "2", ""]
    assert [row["steps"] for row in rows] == ["100", "200", "300"]


def test_non_finite_numbers_leave_their_cell_empty(run: RunDirectory) -> None:
    write(run, {100: {"losses/a": 1.0}, 200: {"losses/a": math.nan, "losses/b": math.inf}, 300: {"losses/a": 2.0}})
    text = run.metrics.read_text().lower()
    assert "nan" not in text
    assert "inf" not in text
    assert [row["losses/a"] for row in cells(run)] == ["1", "", "2"]
    assert board(run) == {"losses/a": [(100, 1.0), (300, 2.0)]}


def test_counters_stay_whole_however_large(run: RunDirectory) -> None:
    write(run, {123_456_789_012: {"losses/a": 1.0}})
    (row,) = cells(run)
    assert (row["steps"], row["frames"]) == ("123456789012", str(4 * 123_456_789_012))


def test_reading_gives_columns_with_nan_where_a_cell_is_empty(run: RunDirectory) -> None:
    write(run, {100: {"losses/a": 1.0}, 200: {"charts/b": 2.0}})
    columns = read_metrics(run.metrics)
    np.testing.assert_array_equal(columns["steps"], [100.0, 200.0])
    np.testing.assert_array_equal(columns["losses/a"], [1.0, np.nan])
    np.testing.assert_array_equal(columns["charts/b"], [np.nan, 2.0])


def test_tensorboard_shows_the_same_numbers_under_the_same_names(run: RunDirectory) -> None:
    write(run, {100: {"losses/a": 0.125}, 200: {"losses/a": -3.5, "charts/b": 1e6}})
    columns = read_metrics(run.metrics)
    shown = board(run)
    assert set(shown) == set(columns) - set(MetricsWriter.LEADING)
    for name, points in shown.items():
        known = np.isfinite(columns[name])
        assert points == list(zip(columns["steps"][known], columns[name][known], strict=True))


def test_resuming_removes_records_after_the_checkpoint(run: RunDirectory) -> None:
    write(
        run, {100: {"losses/a": 1.0}, 200: {"losses/a": 2.0, "charts/b": 2.0}, 300: {"losses/a": 3.0}, 400: {"losses/a": 4.0}}
    )
    writer = MetricsWriter(run, from_step=300)
    assert [row["steps"] for row in cells(run)] == ["100", "200", "300"]
    writer.write(counters(350), {"losses/a": 30.0, "charts/c": 1.0})
    writer.write(counters(450), {"losses/a": 40.0})
    writer.close()
    rows = cells(run)
    assert [row["steps"] for row in rows] == ["100", "200", "300", "350", "450"]
    assert [row["losses/a"] for row in rows] == ["1", "2", "3", "30", "40"]
    assert [row["charts/b"] for row in rows] == ["", "2", "", "", ""]
    assert [row["charts/c"] for row in rows] == ["", "", "", "1", ""]
    assert board(run)["losses/a"] == [(100, 1.0), (200, 2.0), (300, 3.0), (350, 30.0), (450, 40.0)]


def test_resuming_before_the_first_record_starts_a_new_file(run: RunDirectory) -> None:
    write(run, {100: {"losses/a": 1.0}})
    write(run, {60: {"losses/b": 2.0}}, from_step=50)
    (row,) = cells(run)
    assert (row["steps"], row["losses/b"]) == ("60", "2")


def test_resuming_without_a_file_starts_a_new_one(run: RunDirectory) -> None:
    write(run, {400: {"losses/a": 1.0}}, from_step=300)
    assert [row["steps"] for row in cells(run)] == ["400"]


def test_resuming_drops_a_line_that_was_cut_short(run: RunDirectory) -> None:
    """A full disk cuts lines short."""
    write(run, {100: {"losses/a": 1.0}, 200: {"losses/a": 2.0}})
    with run.metrics.open("a") as file:
        file.write("37.5,30")
    write(run, {300: {"losses/a": 3.0}}, from_step=250)
    assert [(row["steps"], row["losses/a"]) for row in cells(run)] == [("100", "1"), ("200", "2"), ("300", "3")]


def test_a_full_disk_at_a_resume_loses_no_earlier_record(
    run: RunDirectory, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records after the checkpoint are removed as soon as there is room, and those of the resumed run stay."""

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    write(run, {100: {"losses/a": 1.0}, 200: {"charts/b": 2.0}, 300: {"losses/a": 3.0}})
    before = run.metrics.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("csv.DictWriter.writerows", refuse)
        writer = MetricsWriter(run, from_step=200)
        writer.write(counters(250), {"losses/a": 25.0})
        assert run.metrics.read_bytes() == before
    for steps in (350, 450, 550):
        writer.write(counters(steps), {"losses/a": steps, "charts/c": steps} if steps == 450 else {"losses/a": steps})
    writer.close()
    assert [(row["steps"], row["losses/a"], row["charts/b"], row["charts/c"]) for row in cells(run)] == [
        ("100", "1", "", ""),
        ("200", "", "2", ""),
        ("350", "350", "", ""),
        ("450", "450", "", "450"),
        ("550", "550", "", ""),
    ]
    assert len(lines) == 1


def test_a_record_that_cannot_be_written_is_one_warning(
    run: RunDirectory, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk takes half a line, and TensorBoard's writer accepts nothing after an error. With room both write again."""

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def half_a_line(*_: object) -> None:
        with run.metrics.open("a") as file:
            file.write("1,2")
        refuse()

    writer = MetricsWriter(run)
    for step in range(100, 900, 100):
        with monkeypatch.context() as patch:
            if 300 <= step < 600:
                patch.setattr("csv.DictWriter.writerow", half_a_line)
            if step == 700:
                patch.setattr(writer._tensorboard, "add_scalar", refuse)
            writer.write({**dict.fromkeys(MetricsWriter.LEADING, 1), "steps": step}, {"losses/a": step})
    writer.close()
    assert lines == 2 * ["Metrics could not be written: No space left on device; training continues"]
    events = EventAccumulator(str(run.tensorboard))
    events.Reload()
    assert [event.step for event in events.Scalars("losses/a")] == [100, 200, 600, 800]
    assert [row["steps"] for row in cells(run)] == ["100", "200", "600", "700", "800"]


def test_an_animation_may_come_before_the_first_record_and_may_be_missing(run: RunDirectory, lines: list[str]) -> None:
    writer = MetricsWriter(run)
    writer.add_animation("eval/episode", run.animation, 3)
    assert lines == ["Metrics could not be written: No such file or directory; training continues"]
    Image.new("L", (4, 2)).save(run.animation)
    writer.add_animation("eval/episode", run.animation, 7)
    writer.close()
    events = EventAccumulator(str(run.tensorboard))
    events.Reload()
    (shown,) = events.Images("eval/episode")
    assert (shown.step, shown.width, shown.height) == (7, 4, 2)
    assert shown.encoded_image_string == run.animation.read_bytes()


def test_reading_takes_little_more_memory_than_the_numbers(tmp_path: Path) -> None:
    """The learner reads its metrics at its end, when a long run has many of them."""
    path = tmp_path / "metrics.csv"
    rows, names = 2000, [f"losses/{index}" for index in range(50)]
    path.write_text("\n".join([",".join(names), *([",".join(["0.123456"] * len(names))] * rows)]) + "\n")
    tracemalloc.start()
    try:
        columns = read_metrics(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert columns["losses/49"].tolist() == [0.123456] * rows
    assert peak < 3 * 8 * rows * len(names)


def test_a_line_that_is_cut_short_has_empty_cells(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("steps,losses/a,losses/b\n10,1,\n20,2")
    columns = read_metrics(path)
    assert columns["steps"].tolist() == [10, 20]
    assert np.isnan(columns["losses/b"]).all()


@pytest.mark.parametrize(
    "content", [b"a,b\n1,2\n", b"\xff\xfe\n", b"\0" * 9, b"seconds,steps,frames,updates,episodes\n1,x,1,1,1\n"]
)
def test_a_history_that_would_be_lost_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "metrics.csv"
    check_history(path)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{path}: wanted the metrics of a run, got .*--resume_in=new$") as refused:
        check_history(path)
    assert len(str(refused.value).splitlines()) == 1


def test_a_history_whose_last_line_was_cut_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    content = "seconds,steps,frames,updates,episodes\n1,1,1,1,1\n2,"
    path.write_text(content)
    check_history(path)
    assert path.read_text() == content
