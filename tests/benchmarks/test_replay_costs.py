"""The costs of replay kinds: all kinds have batches of the same size, and ratios are to the queue."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.replay_costs import KINDS, QUEUE, STAGES, main, make_configs, summarise, table

SETTINGS: dict[str, Any] = {"env": "Catch-v0", "network": "mlp", "batch_size": 4, "unroll_length": 5, "device": "cpu"}


def turn(**updates: dict[str, float]) -> dict[str, dict[str, float]]:
    """Return seconds of each stage. A kind without updates takes one second per stage."""
    return {name: dict.fromkeys(STAGES, 1.0) | updates.get(name.split(",")[0], {}) for name in (*reversed(KINDS), QUEUE)}


def test_ratios_are_medians_within_a_turn() -> None:
    """The machine is 100 and 10 times slower in two of the turns. The ratio of the medians would be 4."""
    turns = [
        turn(queue=dict.fromkeys(STAGES, speed), elite=dict.fromkeys(STAGES, ratio * speed))
        for speed, ratio in ((1.0, 2.0), (100.0, 3.0), (10.0, 4.0))
    ]
    summary = summarise(turns)
    assert list(summary) == [QUEUE, *KINDS]
    elite = summary["elite"]
    assert elite["encode_ms"] == 40_000
    assert elite["batch_ms"] == 200_000
    assert elite["prepare_ratio"] == pytest.approx(3)
    assert elite["batch_ratio"] == pytest.approx(3)
    assert elite["beyond_update_ratio"] == pytest.approx((4 * 3 + 1) / 5)
    assert all(summary[QUEUE][ratio] == 1 for ratio in ("prepare_ratio", "batch_ratio", "beyond_update_ratio"))


def test_a_slower_update_is_no_cost_beyond_the_update() -> None:
    summary = summarise([turn(elite={"update": 3.0, "sample": 2.0})])
    assert summary["elite"]["batch_ratio"] == pytest.approx(8 / 5)
    assert summary["elite"]["beyond_update_ratio"] == pytest.approx(6 / 5)


def test_the_table_has_one_line_per_kind() -> None:
    lines = table(summarise([turn()]))
    assert [line.split("  ")[0] for line in lines[1:]] == [QUEUE, *KINDS]
    assert len({len(line) for line in lines}) == 1


def test_too_much_memory_is_refused() -> None:
    with pytest.raises(ValueError, match=r"capacity: wanted .* GB together, got .* GB"):
        make_configs(SETTINGS, 10**10)


def test_the_program_measures_every_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "costs.json"
    flags = [f"--{name}={value}" for name, value in SETTINGS.items()]
    monkeypatch.setattr(sys, "argv", ["replay_costs", *flags, "--capacity=20", "--seconds=0", f"--json={file}"])
    assert main() == 0
    kinds = json.loads(file.read_text())["kinds"]
    assert list(kinds) == [QUEUE, *KINDS]
    for name, row in kinds.items():
        asks = name.startswith(("elite", "attentive", "custom"))
        assert (row["encode_ms"] > 0) is asks, name
        assert min(row[f"{stage}_ms"] for stage in STAGES if stage != "encode") > 0
    assert "Catch-v0" in capsys.readouterr().out
