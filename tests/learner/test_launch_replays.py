"""Replays are restored with their contents, or start empty, and one line says which and why."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from learner import parts, prepare
from learner.machine.memory_check import GPU_RESERVE
from learner.metrics import recorder
from learner.runs.checkpoint import load_checkpoint
from learner.runs.saving import Saver
from tests.learner.launching import MIXTURE, command, resume, trained
from tests.learner.runs.support import is_mapped


def test_a_saved_replay_is_restored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Resuming in a new directory reads it from the checkpoint's folder."""
    run = trained(tmp_path, replay_parameters=MIXTURE, save_replay=True)
    (path,) = run.replay_paths()
    again, said = resume(run, capsys, resume_in="new")
    assert f"The replays are restored from {path}" in said
    assert "replays start empty" not in said
    assert len(again.replay_paths()) == 1


@pytest.mark.parametrize(
    ("saved", "given", "reason"),
    [
        (False, {}, "saved without --save_replay, or its replays could not be saved"),
        (True, {"unroll_length": 5}, "unroll_length was 10"),
        (True, {"replay_parameters": MIXTURE.replace("40", "60")}, "replay_parameters was"),
    ],
)
def test_replays_that_start_empty_say_so_and_why(
    saved: bool, given: dict[str, Any], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(tmp_path, replay_parameters=MIXTURE, save_replay=saved)
    _, said = resume(run, capsys, **given)
    (line,) = [line for line in said.splitlines() if "replays start empty" in line]
    assert reason in line
    assert f"{12 if '60' in str(given) else 8} trajectories fill them" in line  # a fifth of the capacity


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("given", [{}, {"reproducible": True, "core": "lstm", "core_size": 16, "burn_in": 4}])
def test_a_restored_replay_no_longer_holds_its_file(
    given: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is mapped keeps its room on the disk after its removal, and the next replay may find none."""
    run = trained(tmp_path, replay_parameters=MIXTURE, save_replay=True, **given)
    (path,) = run.replay_paths()
    mapped: dict[str, bool] = {}

    def watch(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def watched(*arguments: Any) -> Any:
            mapped[name] = is_mapped(path)
            return function(*arguments)

        monkeypatch.setattr(owner, name, watched)

    watch(parts, "restore_replays")
    watch(Saver, "save")
    resume(run, capsys)
    assert mapped == {"restore_replays": True, "save": False}


def test_replays_of_windows_are_restored_for_another_number_of_batches_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(tmp_path, agent="dqn", learning_starts=100, batches_at_once=2, save_replay=True)
    again, said = resume(run, capsys, batches_at_once=4)
    assert "The replays are restored from" in said
    assert "start empty" not in said
    first, second = (load_checkpoint(path) for path in (run.checkpoint_paths()[0], again.checkpoint_paths()[-1]))
    steps = [int(checkpoint.agent["numbers"]["optimizer_steps"]["count"]) for checkpoint in (first, second)]
    assert steps[1] - steps[0] == 4 * (second.counters.updates - first.counters.updates) > 0


def test_a_damaged_replay_is_not_restored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path, replay_parameters=MIXTURE, save_replay=True)
    (path,) = run.replay_paths()
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    _, said = resume(run, capsys)
    assert f"The replays start empty ({path}: damaged: its checksum does not match)" in said


def test_a_queue_alone_needs_no_filling(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, said = resume(trained(tmp_path), capsys)
    assert "start empty" not in said


def test_a_saved_replay_is_restored_with_frames_on_another_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learner's device is the CPU here. Only training asks for the device: any machine may test or export."""
    on_a_gpu, smaller = (json.loads(MIXTURE) for _ in range(2))
    on_a_gpu[1]["device"] = "cuda"
    smaller[1]["capacity"] = 30
    with monkeypatch.context() as patch:
        patch.setattr(prepare, "check_replay_devices", lambda config: None)
        patch.setattr(prepare, "free_gpu_memory", lambda: 10**12)
        run = trained(tmp_path, replay_parameters=json.dumps(on_a_gpu), save_replay=True)
    for mode in ("test", "export"):
        command(tmp_path, mode, load=str(run.path))
    with pytest.raises(ValueError, match=r'^replay_parameters\[1\]: wanted --device=cuda or "device": "cpu", got '):
        command(tmp_path, "train_w_load", load=str(run.path), environment_max_steps=600)
    _, said = resume(run, capsys, replay_parameters=MIXTURE)
    assert "The replays are restored from" in said
    _, said = resume(run, capsys, replay_parameters=json.dumps(smaller), environment_max_steps=900)
    assert "The replays start empty (replay_parameters was" in said


def test_replays_that_do_not_fit_on_the_gpu_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "check_replay_devices", lambda config: None)
    monkeypatch.setattr(prepare, "free_gpu_memory", lambda: GPU_RESERVE + 10**6)
    (replay,) = ({**entry, "device": "cuda", "sample_ratio": 1} for entry in json.loads(MIXTURE) if entry["type"] != "queue")
    command(tmp_path, "train", replay_parameters=json.dumps([replay]))
    with pytest.raises(ValueError, match="on the GPU"):
        command(tmp_path, "train", replay_parameters=json.dumps([{**replay, "capacity": 10**5}]))


def test_restored_replays_are_not_filled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recorder, "SHOW_PERIOD", 0.0)
    queue = {"type": "queue", "capacity": 1, "sample_ratio": 0.5}
    fills = json.dumps([queue, {"type": "standard", "capacity": 200, "sample_ratio": 0.5}])
    for save_replay, told in ((True, False), (False, True)):
        settings = {"environment_max_steps": 2000, "replay_parameters": fills, "batch_size": 16, "save_replay": save_replay}
        run = trained(tmp_path / str(save_replay), **settings)
        _, said = resume(run, capsys, environment_max_steps=4000, progress_period=0.0)
        assert ("filling replays: " in said) == told
