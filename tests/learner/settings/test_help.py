"""`--help` lists what an agent takes: each listed setting has another value than its default that the agent accepts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents import AGENTS
from agents.networks.base import NetworkConfig
from learner.settings.check import check_settings
from learner.settings.help import help_text
from learner.settings.schema import table_of, untaken
from setting import SettingField
from tests.support import small_config
from wrappers import make_spec

NUMBERS = (1, 0, 2, 4, 8, 0.5, 0.01, -1, 32, 5000)
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"core": "gru"},
    {"clip_rewards": False},
    {"value_rescaling": False},
    {"noisy": False, "exploration": "schedule"},
    {"return_distribution": "c51"},
    {"target_kl": 0.01},
    {"critic_quantiles": 1000},
    {"n_step": 2},
)
"""Settings of which one may need another to be accepted."""
UNTRIED = ("agent", "env", "preset", "worker_kind")
"""Settings on which the test's own choices depend."""
NEVER_READ = {"core_size", "core_memory", "log_std", "initial_log_std"}
"""Settings that some agents accept and never read. `--help` leaves them out there."""


def others(field: SettingField) -> list[Any]:
    """Values beside the default; none for a text."""
    if field.type is bool:
        return [not field.default]
    if field.type is str:
        return [choice for choice in field.choices() if choice != field.default]
    numbers = {field.type(number) for number in NUMBERS}
    return [number for number in numbers if field.setting.low <= number <= field.setting.high and number != field.default]


def accepts(agent: str, **settings: Any) -> bool:
    try:
        config = small_config(agent=agent, **settings)
        check_settings(config.settings)
        spec, kind, own = make_spec(config.env), AGENTS[agent], config.agent_settings
        kind.check(
            own,
            NetworkConfig(
                config.network_settings, spec.observation_shape, spec.action, kind.network_class, leaves=spec.leaves, agent=own
            ),
        )
        AGENTS[agent].check_learning(config.agent_settings)
    except ValueError:
        return False
    return True


def variants(agent: str) -> Iterator[dict[str, Any]]:
    table = table_of(agent)
    own: dict[str, Any] = {} if agent != "linucb" else {"network": "flat"}
    usual = {name: table[name].default for name in ("batch_size", "envs_per_worker", "unroll_length", "burn_in")}
    for env in ("Catch-v0", "Reach-v0"):
        for given in VARIANTS:
            if given.keys() <= table.keys():
                yield {"env": env, **usual, "replay_parameters": table["replay_parameters"].default, **own, **given}


def test_help_of_settings_without_a_docstring_has_no_signature(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom agents import VTraceAgent, VTraceConfig\n\n"
        "@dataclass(frozen=True)\nclass Config(VTraceConfig):\n    pass\n\n"
        "class Mine(VTraceAgent):\n    config_class = Config\n"
    )
    agent = f"{tmp_path}/mine.py:Mine"
    assert f"Agent {agent}: Settings of this agent." in help_text(agent).splitlines()
    assert "Settings of this agent." not in help_text("vtrace")


@pytest.mark.parametrize("agent", AGENTS)
def test_help_lists_the_settings_that_the_agent_takes(agent: str) -> None:
    bases = [given for given in variants(agent) if accepts(agent, **given)]
    tried = {name: others(field) for name, field in table_of(agent).items() if name not in UNTRIED and others(field)}
    taken = {
        name
        for name, values in tried.items()
        if any(accepts(agent, **{**base, name: value}) for base in bases for value in values)
    }
    listed = {
        line.split("=")[0].split("]")[-1].strip("- ") for line in help_text(agent).splitlines() if line.startswith("  --")
    }
    assert tried.keys() - taken <= untaken(agent)
    assert taken & untaken(agent) <= NEVER_READ
    assert listed & tried.keys() == tried.keys() - untaken(agent)
