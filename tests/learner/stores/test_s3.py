"""The program with a store: an S3 server in this process, a run that is killed, and a store that does not answer."""

from __future__ import annotations

import logging
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from learner.launch import prepare
from learner.launch import run as run_job
from learner.metrics.writer import read_metrics
from learner.runs.checkpoint import load_checkpoint
from learner.runs.directory import RunDirectory, update_of
from learner.stores.store import Store
from tests.learner.launching import MIXTURE
from tests.support import CATCH, REPOSITORY, catch_flags, run_main
from tests.workers.support import wait_until

STORE = "s3://bucket/springbok"
SECRET = "a-secret-that-nobody-may-read"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A bucket of a server on a free port. Its address and credentials stand in the environment."""
    for name, value in (("ACCESS_KEY_ID", "user"), ("SECRET_ACCESS_KEY", SECRET), ("DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://{}:{}".format(*server.get_host_and_port()))
        boto3.client("s3").create_bucket(Bucket="bucket")
        yield Store(STORE)
    finally:
        server.stop()


def remote_updates(store: Store) -> list[int]:
    return [update_of(Path(name)) for name in store.names() if "/update_" in name]


def test_a_run_that_was_killed_and_lost_its_disk_resumes_from_s3_with_every_counter(store: Store, tmp_path: Path) -> None:
    results = tmp_path / "results"
    flags = catch_flags(
        environment_max_steps=10**7,
        checkpoint_period=100,
        save_replay=True,
        replay_parameters=MIXTURE,
        checkpoint_store=STORE,
        results_dir=results,
    )
    program = subprocess.Popen(
        [sys.executable, "main.py", "--op_mode=train", *flags], cwd=REPOSITORY, stdout=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: len(remote_updates(store)) >= 2, 60)
    finally:
        program.send_signal(signal.SIGKILL)
        program.wait()
    name = store.names()[0].split("/")[0]
    shutil.rmtree(results)

    given = {"load": f"{STORE}/{name}", "results_dir": str(results)}
    fetched = prepare("train_w_load", {**given, "environment_max_steps": 10**8}, []).checkpoint
    assert fetched is not None
    newest = remote_updates(store)[-1]
    counters = asdict(fetched.counters)
    assert counters["updates"] == newest
    assert all(counters[each] > 0 for each in ("steps", "frames", "episodes", "trajectories", "seconds"))

    shutil.rmtree(results)
    limit = fetched.counters.steps + 2000
    given_flags = (f"--{key}={value}" for key, value in {**given, "environment_max_steps": limit}.items())
    done = run_main("--op_mode=train_w_load", *given_flags)
    assert done.returncode == 0, done.stdout + done.stderr
    run = RunDirectory(results / name)
    (said,) = [line for line in done.stdout.splitlines() if "replays are restored" in line or "start empty" in line]
    assert f"replays are restored from {run.replay_path(newest)}" in said
    metrics = read_metrics(run.metrics)
    for column in ("steps", "frames", "updates", "episodes"):
        assert counters[column] in metrics[column]  # the record that was written with the checkpoint
        assert (metrics[column][1:] >= metrics[column][:-1]).all()
    last = load_checkpoint(run.checkpoint_paths()[-1]).counters
    assert (last.steps >= limit, last.seconds > counters["seconds"]) == (True, True)
    assert remote_updates(store)[-1] == last.updates  # mirrored again, without a flag
    assert {each.split("/")[0] for each in store.names()} == {name}  # in the same folder
    everything = b"".join(path.read_bytes() for path in results.rglob("*") if path.is_file())
    assert SECRET.encode() not in everything + done.stdout.encode()


def test_a_store_that_never_answers_costs_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"checkpoint_store": f"ftp://user:{SECRET}@127.0.0.1:9/runs", "store_wait": 3.0, "checkpoint_period": 20}
    job = prepare("train", {**CATCH, **given, "environment_max_steps": 300, "results_dir": str(tmp_path)}, [str(given)])
    assert run_job(job) == 0
    run = RunDirectory(tmp_path / "latest")
    said = capsys.readouterr()
    lines = [line for line in said.out.splitlines() if "ftp://" in line]
    assert [("***@127.0.0.1" in line) for line in lines] == [True, True, True]  # the address, one warning, what is missing
    assert run.checkpoint_paths()
    everything = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert SECRET.encode() not in everything + (said.out + said.err).encode()


def test_a_missing_package_is_one_line(tmp_path: Path) -> None:
    hidden = tmp_path / "s3fs.py"
    hidden.write_text("raise ImportError('no s3fs here')")
    done = subprocess.run(
        [sys.executable, "main.py", "--op_mode=train", f"--checkpoint_store={STORE}", f"--results_dir={tmp_path}"],
        cwd=REPOSITORY,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "requirements-store.txt" in done.stderr
