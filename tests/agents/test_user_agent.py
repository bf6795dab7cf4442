"""An agent in a file of the user's own is checked as a whole: each breach of the contract is one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
from agents.networks.base import FeatureNetwork
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
    "an abstract network": (
        "class Heads(FeatureNetwork):\n    def choose(self, inferred, generator, exploration=None):\n        pass\n"
        "class Mine(PPOAgent):\n    network_class = Heads\n",
        "wanted Heads with acting, head_gain, heads, make_heads, got one without",
    ),
    "no needs": (
        MINE.replace("Config", "PPOConfig") + "    @classmethod\n    def needs(cls, config):\n        pass\n",
        "wanted Needs(...) from needs, got None",
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


TABLE = """
from typing import NamedTuple
from torch import Tensor, nn
from agents.acting import Acting
from agents.networks.base import SampledActions

class Q(NamedTuple):
    q: Tensor

class Table(FeatureNetwork):
    def make_heads(self):
        self.table = nn.Linear(self.head_feature_count, self.config.action.count, bias=False)
    def heads(self, features, mask=None):
        return Q(self.table(features))
    def head_gain(self, layer):
        return 0.01
    @classmethod
    def acting(cls, config):
        return Acting({})
    def best_actions(self, output):
        return output.q.argmax(-1)
    def choose(self, inferred, generator, exploration=None, *, greedy=False):
        return SampledActions(self.best_actions(inferred.output), {})

class Mine(Agent):
    config_class = PPOConfig
    network_class = Table
    def update(self, batch, step):
        step.apply({}, lambda: None)
"""
HEADS = {
    "a tensor": (
        "Q(self.table(features))",
        "self.table(features)",
        "a NamedTuple of tensors .* from Table.heads, got a tensor",
    ),
    "a row": ("Q(self.table(features))", "Q(self.table(features)[0])", r"got \[a tensor \[3\] for N=2\]$"),
    "numbers": ("Q(self.table(features))", "Q([1, 2])", r"got \[a list\]$"),
    "an error": ("(features))", "(features.flatten()))", r"wanted outputs of Table.heads, got RuntimeError: .*mine.py:\d\d\)$"),
    "no best action": ("def best_actions", "def best", "wanted Table with best_actions or a distribution, got one without$"),
    "an unknown default": (
        "network_class =",
        "defaults = {'netwrk': 1}; network_class =",
        "settings in its defaults, got 'netwrk'$",
    ),
}


@pytest.mark.parametrize("breach", HEADS)
def test_heads_that_cannot_be_used_are_refused_before_the_start(tmp_path: Path, breach: str) -> None:
    old, new, message = HEADS[breach]
    (tmp_path / "mine.py").write_text(HEAD + TABLE)
    assert make_plan(small_config(agent=f"{tmp_path}/mine.py:Mine")).contract.acting == {}
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "mine.py").write_text(HEAD + TABLE.replace(old, new))
    with pytest.raises(ValueError, match=message) as refusal:
        make_plan(small_config(agent=f"{tmp_path}/broken/mine.py:Mine"))
    assert "\n" not in str(refusal.value)


RESULTS = {
    "a vector": ("Losses({'mine': Term(torch.zeros(3))}, {})", r"mine: wanted a scalar tensor, got a tensor \[3\]"),
    "a number": ("Losses({'mine': Term(0.5)}, {})", "mine: wanted a scalar tensor, got a float"),
    "no term": ("Losses({'mine': torch.zeros(())}, {})", "mine: wanted a Term, got a Tensor"),
    "a reduction": (
        "Losses({'mine': Term(torch.zeros(()), 1.0, 'avg')}, {})",
        "wanted the reduction 'sum' or 'mean', got 'avg'",
    ),
    "a metric": ("Losses({}, {'size': 3.0})", "size: wanted a scalar tensor, got a float"),
    "nothing": ("None", r"wanted Losses\(...\), got None"),
}


@pytest.mark.parametrize("breach", RESULTS)
def test_losses_that_no_step_can_take_are_named(tmp_path: Path, breach: str) -> None:
    expression, message = RESULTS[breach]
    (tmp_path / "mine.py").write_text(
        f"{HEAD}import torch\nfrom agents.losses import Losses, Term\n"
        f"class Mine(PPOAgent):\n    def losses(self, good):\n        return Losses({{}}, {{}}) if good else {expression}\n"
    )
    agent: Any = find_agent(f"{tmp_path}/mine.py:Mine")
    assert agent.losses(None, True) == ({}, {}, None)
    with pytest.raises(ValueError, match=message):
        agent.losses(None, False)


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
