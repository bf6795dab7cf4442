"""Shared memory is seen by every process, aligned and anonymous, and ends when it is closed."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from replay.slot_store import ALIGNMENT, SharedArrays, slot_layout, slots_of
from replay.trajectory import POISON, Field
from tests.builders import trajectory_contract

CONTRACT = trajectory_contract(unroll_length=3, frame_shape=(5, 7), frame_dtype="uint8", frames_stacked=2, action_count=4)
LAYOUT = {
    "odd": Field((3,), "uint8"),
    "wide": Field((2, 5), "float64"),
    "alone": Field((), "int32"),
    "last": Field((9,), "bool"),
}


def add_one(shared: SharedArrays, answers: Connection) -> None:
    """Runs in a spawned process: add one to every value, then wait for a message and send the values."""
    for array in shared.arrays.values():
        np.copyto(array, array + 1, casting="unsafe")
    answers.send("added")
    answers.recv()
    answers.send(shared.arrays["wide"].tolist())


def open_files() -> list[str]:
    """Returns the names of the files that this process has open."""
    names = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            names.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return names


def memfds() -> int:
    """Returns the number of this process's descriptors of anonymous memory."""
    return sum(name.startswith("/memfd:") for name in open_files())


def mapped() -> int:
    """Returns the number of this process's mappings of anonymous memory files."""
    return Path("/proc/self/maps").read_text().count("/memfd:")


def test_a_spawned_process_sees_the_same_memory_and_writes_back() -> None:
    shared = SharedArrays(LAYOUT)
    shared.arrays["wide"][:] = np.arange(10).reshape(2, 5)
    shared.arrays["alone"][...] = 41
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=add_one, args=(shared, there), daemon=True)
    process.start()
    there.close()
    try:
        assert here.poll(60)
        assert here.recv() == "added"
        np.testing.assert_array_equal(shared.arrays["wide"], np.arange(10).reshape(2, 5) + 1)
        assert shared.arrays["alone"] == 42
        assert shared.arrays["last"].all()
        shared.arrays["wide"][1, 4] = -7.5
        here.send("look")
        assert here.poll(60)
        assert here.recv()[1][4] == -7.5
    finally:
        process.join(10)
        process.kill()
        shared.close()


def test_arrays_are_aligned_separate_and_zero() -> None:
    shared = SharedArrays(LAYOUT)
    spans = []
    assert ALIGNMENT == 64
    for name, array in shared.arrays.items():
        assert (array.shape, array.dtype) == (LAYOUT[name].shape, LAYOUT[name].dtype)
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert array.ctypes.data % ALIGNMENT == 0, name
        assert not array.any()
        spans.append((array.ctypes.data, array.ctypes.data + array.nbytes))
    starts = [start // ALIGNMENT for start, _ in spans]
    ends = [-(-end // ALIGNMENT) for _, end in spans]
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
    shared.close()


def test_writing_one_field_does_not_change_the_others() -> None:
    shared = SharedArrays(slot_layout(CONTRACT, 3))
    for value, array in enumerate(shared.arrays.values(), start=1):
        array.fill(value)
    for value, (name, array) in enumerate(shared.arrays.items(), start=1):
        assert (array == (True if array.dtype == bool else value)).all(), name
    shared.close()


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memfd_create")
def test_the_arena_is_an_anonymous_file() -> None:
    shared = SharedArrays({"large": Field((1 << 20,), "uint8")})
    shared.arrays["large"].fill(1)
    assert os.readlink(f"/proc/self/fd/{shared.descriptor}").startswith("/memfd:")
    assert not [name for name in open_files() if name.startswith("/dev/shm/")]
    assert mapped()
    shared.close()


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memfd_create")
def test_closing_frees_memory_and_descriptors() -> None:
    held_before, mapped_before = memfds(), mapped()
    shared = SharedArrays({"large": Field((1 << 20,), "uint8")})
    shared.arrays["large"].fill(1)
    shared.close()
    assert (memfds(), mapped()) == (held_before, mapped_before)
    assert shared.arrays == {}
    shared.close()


def test_an_array_that_is_still_in_use_survives_the_close() -> None:
    shared = SharedArrays(LAYOUT)
    wide = shared.arrays["wide"]
    wide[0] = 3.0
    shared.close()
    del shared
    wide[1] = 4.0
    assert wide.sum() == 35.0


def test_a_system_without_memfd_shares_an_unnamed_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    shared = SharedArrays(LAYOUT)
    again = SharedArrays(LAYOUT, os.dup(shared.descriptor))
    shared.arrays["wide"][:] = 2.0
    assert again.arrays["wide"].sum() == 20.0
    assert list(tmp_path.iterdir()) == []
    shared.close()
    again.close()


def test_slots_are_the_contract_s_fields_of_a_larger_layout() -> None:
    layout = {"weights": Field((10,), "float32"), **slot_layout(CONTRACT, 6)}
    shared = SharedArrays(layout)
    slots = slots_of(shared, CONTRACT)
    assert list(slots) == list(CONTRACT.fields)
    for name, array in slots.items():
        assert array.shape == (6, *CONTRACT.fields[name].shape)
        assert np.shares_memory(array, shared.arrays[name])
    shared.close()


def test_poison_is_seen_in_every_slot_and_nowhere_else() -> None:
    shared = SharedArrays({"weights": Field((10,), "float32"), **slot_layout(CONTRACT, 2)})
    for name, array in slots_of(shared, CONTRACT, poison=True).items():
        wanted = POISON[array.dtype.kind]
        assert np.isnan(array).all() if array.dtype.kind == "f" else (array == wanted).all(), name
    assert not shared.arrays["weights"].any()
    shared.close()
