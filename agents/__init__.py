"""Agents: networks, pure targets and losses, and the algorithms made of them."""

from __future__ import annotations

from agents.a2c.agent import A2CAgent
from agents.appo.agent import APPOAgent
from agents.base import Agent, Needs
from agents.bc.agent import BCAgent
from agents.bcq.agent import BCQAgent
from agents.cem.agent import CEMAgent
from agents.crossq.agent import CrossQAgent
from agents.ddpg.agent import DDPGAgent
from agents.dqn.agent import DqnAgent
from agents.es.agent import ESAgent
from agents.impact.agent import ImpactAgent
from agents.linucb.agent import LinUCBAgent
from agents.marwil.agent import MarwilAgent
from agents.metrics import UpdateReport
from agents.ppo.agent import PPOAgent
from agents.pqn.agent import PQNAgent
from agents.r2d2.agent import R2d2Agent
from agents.sac.agent import SACAgent
from agents.sqn.agent import SQNAgent
from agents.td3.agent import TD3Agent
from agents.tqc.agent import TQCAgent
from agents.trpo.agent import TRPOAgent
from agents.user_agent import user_agent
from agents.user_class import USER_CLASS
from agents.vmpo.agent import VMPOAgent
from agents.vtrace.agent import VTraceAgent, VTraceConfig

__all__ = ["AGENTS", "USER_CLASS", "Agent", "Needs", "UpdateReport", "VTraceAgent", "VTraceConfig", "find_agent"]

AGENTS: dict[str, type[Agent]] = {
    "vtrace": VTraceAgent,
    "a2c": A2CAgent,
    "appo": APPOAgent,
    "bc": BCAgent,
    "bcq": BCQAgent,
    "cem": CEMAgent,
    "crossq": CrossQAgent,
    "dqn": DqnAgent,
    "ddpg": DDPGAgent,
    "es": ESAgent,
    "impact": ImpactAgent,
    "linucb": LinUCBAgent,
    "marwil": MarwilAgent,
    "ppo": PPOAgent,
    "pqn": PQNAgent,
    "r2d2": R2d2Agent,
    "sac": SACAgent,
    "sqn": SQNAgent,
    "td3": TD3Agent,
    "tqc": TQCAgent,
    "trpo": TRPOAgent,
    "vmpo": VMPOAgent,
}
"""Name on the command line (`--agent`) -> class."""


def find_agent(name: str) -> type[Agent]:
    """The class that `--agent` names: a key of `AGENTS`, or `FILE.py:CLASS`. Raises ValueError with one line."""
    return AGENTS[name] if name in AGENTS else user_agent(name)
