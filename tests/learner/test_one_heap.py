"""All threads of a training share the C library's one heap: memory that another heap takes is given back and taken anew."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import CATCH, REPOSITORY

HEAPS_AFTER_TRAINING = """
import ctypes
import json
import sys
import threading
from learner import launch
given = json.loads(sys.argv[1])
job = launch.prepare("train", given, ["main.py"])
early = threading.Thread(target=bytearray, args=(100_000,))
early.start()
early.join()
code = launch.run(job)
library = ctypes.CDLL(None)
library.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(library.fopen(sys.argv[2].encode(), b"w"))
library.malloc_info(0, file)
library.fclose(file)
sys.exit(code)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="heaps are glibc's")
def test_a_training_has_one_heap_though_threads_start_before_the_learner_is_built(tmp_path: Path) -> None:
    """Those that check a checkpoint, and those of the early workers: a learner thread took over the heap of one."""
    settings = {**CATCH, "worker_kind": "cpu", "worker_count": 2, "learner_threads": 2, "environment_max_steps": 300}
    arguments = json.dumps({**settings, "results_dir": str(tmp_path)}), str(tmp_path / "heaps.xml")
    subprocess.run([sys.executable, "-c", HEAPS_AFTER_TRAINING, *arguments], cwd=REPOSITORY, check=True, timeout=120)
    assert (tmp_path / "heaps.xml").read_text().count("<heap nr=") == 1
