"""An agent in a file of the user's own is checked as a whole: each breach of the contract is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents import AGENTS, find_agent
from agents.networks.base import make_network
from agents.ppo.agent import PPOAgent
from agents.user_agent import decides_on_graphs
from learner.building import make_agent
from learner.plan import make_plan
from tests.support import REPOSITORY, small_config

MY_PPO = REPOSITORY / "tests" / "fixtures" / "my_ppo.py"
HEAD = """
from dataclasses import dataclass
from typing import Annotated
from agents.base import Agent
from agents.ppo.agent import PPOAgent
from agents.ppo.config import PPOConfig
from setting import Setting

"""
CONFIG = (
    "@dataclass(frozen=True)\nclass Config(PPOConfig):\n    weight: Annotated[float, Setting('W.', 'a weight', 0, 1)] = 0.5\n"
)
MINE = "class Mine(PPOAgent):\n    config_class = Config\n"
BREACHES = {
    "abstract": ("class Mine(Agent):\n    config_class = PPOConfig\n", "wanted an agent with update, got one without"),
    "no network": (
        "class Mine(Agent):\n    config_class = PPOConfig\n    def update(self, batch, step):\n        pass\n",
        "wanted a subclass of agents.networks.base.FeatureNetwork as network_class, got None",
    ),
    "no config": (
        "class Config:\n    pass\n\n" + MINE,
        "wanted a subclass of agents.settings.AgentConfig as config_class, got <class ",
    ),
    "no dataclass": (CONFIG.partition("\n")[2] + MINE, "wanted @dataclass(frozen=True) on Config, got a class without it"),
    "a default out of bounds": (CONFIG.replace("0.5", "5.0") + MINE, "ValueError: weight: wanted a weight, at most 1, got 5.0"),
    "a setting of no known type": (CONFIG.replace("float, S", "list, S") + MINE, "TypeError: weight: wanted a setting of type"),
    "needs that fail": (
        MINE.replace("Config", "PPOConfig") + "    @classmethod\n    def needs(cls, config):\n        return config.none\n",
        "AttributeError: 'PPOConfig' object has no attribute 'none' (",
    ),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_a_breach_is_one_line(tmp_path: Path, breach: str) -> None:
    text, message = BREACHES[breach]
    (tmp_path / "mine.py").write_text(HEAD + text)
    with pytest.raises(ValueError, match="^agent .*mine.py:Mine: wanted ") as refusal:
        find_agent(f"{tmp_path}/mine.py:Mine")
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_it_is_found_beside_the_agents_that_have_a_name() -> None:
    found = find_agent(f"{MY_PPO}:MyPPO")
    assert issubclass(found, PPOAgent)
    assert found.name() == f"{MY_PPO}:MyPPO"
    assert all(find_agent(name) is kind for name, kind in AGENTS.items())
    assert len([name for name in AGENTS if ":" in name]) == 0


@pytest.mark.parametrize(("name", "graphs"), [("MyPPO", False), ("Graphed", True)])
def test_it_has_no_cuda_graphs_unless_it_says_so(name: str, graphs: bool) -> None:
    config = small_config(agent=f"{MY_PPO}:{name}")
    agent = make_agent(config, make_network(make_plan(config).network))
    assert agent.options["cuda_graphs"] is decides_on_graphs(type(agent)) is graphs  # type: ignore[attr-defined]
