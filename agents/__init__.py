"""Agents: networks, pure targets and losses, and the algorithms made of them."""

from __future__ import annotations

from agents.a2c.agent import A2CAgent
from agents.base import Agent, Needs, Updated
from agents.ppo.agent import PPOAgent
from agents.vtrace.agent import VTraceAgent, VTraceConfig

__all__ = ["AGENTS", "Agent", "Needs", "Updated", "VTraceAgent", "VTraceConfig"]

AGENTS: dict[str, type[Agent]] = {"vtrace": VTraceAgent, "a2c": A2CAgent, "ppo": PPOAgent}
"""Name on the command line (`--agent`) -> class."""
