"""Calls of others' code in this process have limits."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from wrappers import EnvConfig, answering, make_single_env, make_vector_env
from wrappers.answering import WatchedEnv, awaited, limited
from wrappers.spec import NoAnswerError

ended: list[str] = []


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    ended.clear()
    for name, seconds in (("CHECK_SECONDS", 0.02), ("GRACE_SECONDS", 0.1)):
        monkeypatch.setattr(answering, name, seconds)
    threads = threading.active_count()
    with limited(ended.append, 0.1):
        yield
    assert threading.active_count() == threads
    assert not answering._calls


def test_a_call_that_lasts_too_long_is_interrupted_and_its_place_is_named() -> None:
    with pytest.raises(NoAnswerError, match=r"^the step of it .* 0.1 s \(.*test_answering.py:\d+\)"), awaited("the step of it"):
        time.sleep(60)
    assert not ended


def test_the_program_ends_if_a_call_catches_everything() -> None:
    def call() -> None:
        with awaited("the step of it"):
            try:
                time.sleep(60)
            finally:
                while not ended:
                    time.sleep(0.01)

    with pytest.raises(NoAnswerError):
        call()
    (line,) = ended
    assert line.startswith("the step of it")


def test_the_program_ends_if_the_call_is_in_another_thread() -> None:
    def call() -> None:
        with awaited("the step of it"):
            while not ended:
                time.sleep(0.01)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(10)
    assert len(ended) == 1


def test_each_call_has_the_whole_time_and_what_surrounds_it_does_not_count() -> None:
    with awaited("everything", 0.3):
        for _ in range(3):
            with awaited("one call"):
                time.sleep(0.06)
    time.sleep(0.2)
    assert not ended


def test_a_longer_limit_of_the_call_or_of_the_user_counts() -> None:
    with awaited("an import", 60.0):
        time.sleep(0.2)
    answering.allow(60.0)
    with awaited("a step"):
        time.sleep(0.2)
    assert not ended


def test_a_process_that_is_forked_has_no_limits() -> None:
    with awaited("a step", 60.0):
        if not (child := os.fork()):
            os._exit(answering.is_limited() or bool(answering._calls))
    assert os.waitpid(child, 0)[1] == 0


def test_environments_of_a_program_with_limits_are_watched() -> None:
    config = EnvConfig(env="Catch-v0", frames_stacked=1)
    for env in (make_vector_env(config, 2), make_single_env(config, "rgb_array")):
        assert isinstance(env, WatchedEnv)
        env.reset(1)
        env.step(np.zeros(env.num_envs, np.int64))
        env.close()
