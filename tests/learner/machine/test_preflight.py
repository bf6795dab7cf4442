"""Preflight measures only where a measurement may decide something."""

from __future__ import annotations

from typing import Any

import pytest

from learner.machine.machine import Machine, fit_to_machine
from learner.machine.preflight import wants_preflight
from learner.settings.config import DEFAULTS, make_config

STANDARD = '[{"type": "standard", "capacity": 400, "sample_ratio": 1.0}]'


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, True),
        ({"worker_count": 2}, True),
        ({"envs_per_worker": 8}, True),
        ({"worker_count": 2, "envs_per_worker": 8}, True),
        ({"worker_count": 2, "envs_per_worker": 8, "learner_threads": 2}, False),
        ({"preflight": False}, False),
        ({"reproducible": True}, False),
        ({"worker_kind": "serial"}, False),
        ({"env": "Catch-v0", "network": "mlp"}, False),
        ({"replay_parameters": STANDARD}, False),
    ],
)
def test_when_it_measures(given: dict[str, Any], wanted: bool) -> None:
    settings = {**DEFAULTS, **given}
    settled, _ = fit_to_machine(settings, Machine(2, 10**10, None))
    assert wants_preflight(settings, make_config(settled), 2) == wanted


@pytest.mark.parametrize(("cores", "gpu"), [(16, None), (2, "GPU 9000")])
def test_nothing_is_measured_for_the_learner_s_threads_where_it_would_not_move_them(cores: int, gpu: str | None) -> None:
    settings = {**DEFAULTS, "worker_count": 2, "envs_per_worker": 8}
    config = make_config(fit_to_machine(settings, Machine(cores, 10**10, gpu))[0])
    assert not wants_preflight(settings, config, cores)
    assert wants_preflight({**settings, "worker_count": "auto"}, config, cores)
