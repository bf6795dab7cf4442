"""Recordings cut into trajectories, against what an agent would have seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from replay.batch import stack_frames
from replay.recordings.recording import Cuts, check_recording, discounted_returns, observations_of, open_recording
from replay.trajectory import RECURRENT_STATE, RETURNS, Field, TrajectoryContract
from tests.recordings import playing_at_random, record
from wrappers import make_spec
from wrappers.spec import EnvConfig

STEPS = 39  # four episodes of Catch, the last ends at the last step


def contract_of(config: EnvConfig, unroll_length: int, **changes: Any) -> TrajectoryContract:
    spec = make_spec(config)
    frame, action = Field(spec.frame_shape, spec.frame_dtype), Field(spec.action.shape, spec.action.dtype)
    contract = TrajectoryContract(unroll_length, spec.frames_stacked, frame, action, {})
    return replace(contract, **changes)


def read_all(cuts: Cuts, contract: TrajectoryContract) -> dict[str, np.ndarray]:
    slots = contract.allocate(len(cuts), poison=True)
    for index in range(len(cuts)):
        cuts.read(index, slots, index)
    return slots


@pytest.mark.parametrize("stack", [1, 4])
@pytest.mark.parametrize(("unroll_length", "overlap"), [(1, 0), (7, 0), (13, 0), (39, 0), (50, 0), (9, 4), (60, 20)])
def test_every_step_comes_once_with_what_the_policy_saw(tmp_path: Path, stack: int, unroll_length: int, overlap: int) -> None:
    config = EnvConfig(env="Catch-v0", frames_stacked=stack)
    seen = record(tmp_path, config, playing_at_random, steps=STEPS, environments=2)
    contract = contract_of(config, unroll_length, overlap=overlap)
    cuts = Cuts(open_recording(tmp_path), contract)
    slots = read_all(cuts, contract)
    observations = stack_frames(torch.from_numpy(slots["frames"]), slots["reset"], stack).transpose(0, 1).numpy()
    fresh = unroll_length - overlap
    each = -(-STEPS // fresh)  # trajectories of one stream
    assert len(cuts) == 2 * each
    for index in range(len(cuts)):
        stream, first = index // each, index % each * fresh - overlap
        assert slots["environment_id"][index] == stream
        for row in range(unroll_length):
            step = first + row
            if not 0 <= step < STEPS:
                assert not slots["action_used"][index, row]
                assert not slots["terminated"][index, row]
                assert slots["reset"][index, row] == (step == -1)
                if step >= STEPS:  # the last frame again
                    assert np.array_equal(observations[index, row + 1, -1], seen[-1]["after"][stream, -1])
                continue
            assert np.array_equal(observations[index, row], seen[step]["observations"][stream])
            assert np.array_equal(observations[index, row + 1], seen[step]["after"][stream])
            for name in ("actions", "rewards", "terminated", "truncated", "reset", "action_used"):
                assert slots[name][index, row] == seen[step][name][stream]
    assert np.isnan(slots["episode_return"]).all()
    assert not slots["episode_length"].any()


def test_fields_of_the_policy_are_read(tmp_path: Path) -> None:
    config = EnvConfig(env="Catch-v0", frames_stacked=1)
    record(tmp_path, config, playing_at_random, steps=STEPS, environments=1)
    (path,) = tmp_path.glob("*.npy")
    records = np.load(path)
    wider = np.zeros(len(records), np.dtype([*records.dtype.descr, ("chosen", "<f4", (2,))]))
    for name in records.dtype.names:
        wider[name] = records[name]
    wider["chosen"][:, 0] = np.arange(len(records))
    np.save(path, wider)
    contract = contract_of(config, 20, acting={"chosen": Field((2,), "float32")}, state_size=3)
    recording = open_recording(tmp_path)
    check_recording(recording, contract, make_spec(config).to_json())
    slots = read_all(Cuts(recording, contract), contract)
    assert slots["chosen"][..., 0].flatten().tolist() == [*range(STEPS), 0.0]
    assert not slots[RECURRENT_STATE].any()


def test_discounted_returns_start_anew_with_each_episode(tmp_path: Path) -> None:
    config = EnvConfig(env="Catch-v0", frames_stacked=1)
    record(tmp_path, config, playing_at_random, steps=STEPS)
    streams = [records.copy() for records in open_recording(tmp_path).streams]
    streams[1] = streams[1][:30]
    for records in streams:
        records["rewards"] = np.random.default_rng(1).normal(size=len(records))
    for records, found in zip(streams, discounted_returns(streams, 0.9), strict=True):
        now, wanted = 0.0, []
        for row in records[:-1]:
            now = 0.9 * now + float(row["rewards"]) if row["action_used"] else now
            wanted.append(now)
            now = 0.0 if row["terminated"] or row["truncated"] else now
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_trajectories_hold_the_discounted_returns(tmp_path: Path) -> None:
    config = EnvConfig(env="Catch-v0", frames_stacked=1)
    record(tmp_path, config, playing_at_random, steps=STEPS, environments=1)
    contract = contract_of(config, 20, return_discount=0.9)
    recording = open_recording(tmp_path)
    slots = read_all(Cuts(recording, contract), contract)
    (wanted,) = discounted_returns(recording.streams, 0.9)
    assert slots[RETURNS].flatten().tolist() == [*wanted.tolist(), 0.0]


def test_observations_are_those_of_all_steps(tmp_path: Path) -> None:
    config = EnvConfig(env="Catch-v0", frames_stacked=3)
    seen = record(tmp_path, config, playing_at_random, steps=STEPS, environments=2)
    found = observations_of(open_recording(tmp_path), 3, 400, seed=1)
    everything = {row["observations"][column].tobytes() for row in seen for column in range(2)}
    assert {each.tobytes() for each in found} == everything


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"env": "Recall-v0"}, "^recording: wanted one of Recall-v0 with frame_shape .*, got .* in --recording$"),
        (
            {"acting": {"x": Field((), "float32")}},
            "^recording: wanted the field x, which this run needs, got frames, ",
        ),
        (
            {"acting": {"rewards": Field((2,), "float32")}},
            r"wanted rewards as float32 \(2,\), got float32 \(\) in .*npy$",
        ),
    ],
)
def test_a_recording_that_does_not_fit_is_refused(tmp_path: Path, other: dict[str, Any], message: str) -> None:
    config = EnvConfig(env="Catch-v0", frames_stacked=1)
    record(tmp_path, config, playing_at_random, steps=STEPS)
    wanted = replace(config, env=other.get("env", config.env))
    contract = contract_of(wanted, 20, acting=other.get("acting", {}))
    with pytest.raises(ValueError, match=message) as refused:
        check_recording(open_recording(tmp_path), contract, make_spec(wanted).to_json())
    assert len(str(refused.value).splitlines()) == 1


def test_a_recording_of_several_environments_is_for_these_in_their_order(tmp_path: Path) -> None:
    """Its frames hold an index into their list. One environment may stand for another."""
    config = EnvConfig(env="Catch-v0,Avoid-v0", frames_stacked=1)
    record(tmp_path / "both", config, playing_at_random, steps=STEPS)
    recording, spec, contract = open_recording(tmp_path / "both"), make_spec(config).to_json(), contract_of(config, 20)
    check_recording(recording, contract, {**spec, "env": "Catch-v0, Avoid-v0"})
    for env in ("Avoid-v0,Catch-v0", "Catch-v0,Other-v0", "Catch-v0,Avoid-v0,Other-v0", "Catch-v0"):
        with pytest.raises(ValueError, match=f"^recording: wanted one of {env}, got one of Catch-v0,Avoid-v0 in "):
            check_recording(recording, contract, {**spec, "env": env})
    record(tmp_path / "mixed" / "one", config, playing_at_random, steps=STEPS)
    record(tmp_path / "mixed" / "two", replace(config, env="Avoid-v0,Catch-v0"), playing_at_random, steps=STEPS)
    with pytest.raises(ValueError, match="^recording: wanted one of Catch-v0,Avoid-v0, got one of Avoid-v0,Catch-v0 in .*two"):
        open_recording(tmp_path / "mixed")
    alone = replace(config, env="Catch-v0")
    record(tmp_path / "alone", alone, playing_at_random, steps=STEPS)
    other = make_spec(replace(config, env="Avoid-v0")).to_json()
    check_recording(open_recording(tmp_path / "alone"), contract_of(alone, 20), other)


def test_another_distribution_of_the_actions_is_refused(tmp_path: Path) -> None:
    """Its parameters would be read as those of another one."""
    config = EnvConfig(env="Catch-v0", frames_stacked=1)
    record(tmp_path, config, playing_at_random, steps=STEPS)
    recording, spec = open_recording(tmp_path), make_spec(config).to_json()
    check_recording(recording, contract_of(config, 20), spec, "")
    with pytest.raises(ValueError, match="^recording: wanted actions drawn from the distribution categorical, got none$"):
        check_recording(recording, contract_of(config, 20), spec, "categorical")


def test_recordings_of_several_environments_are_refused(tmp_path: Path) -> None:
    for env in ("Catch-v0", "Recall-v0"):
        record(tmp_path / env, EnvConfig(env=env, frames_stacked=1), lambda seen, _: np.zeros(len(seen), np.int64), steps=60)
    with pytest.raises(ValueError, match="^recording: wanted one of Catch-v0 with frame_shape .* in .*Recall-v0$"):
        open_recording(tmp_path)
