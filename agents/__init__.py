"""Agents: networks, pure targets and losses, and the algorithms made of them."""

from __future__ import annotations

from agents.base import Agent
from agents.vtrace.agent import VTraceAgent, VTraceConfig

__all__ = ["AGENTS", "Agent", "VTraceAgent", "VTraceConfig"]

AGENTS = {"vtrace": VTraceAgent}
