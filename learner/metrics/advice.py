"""Advice on the size of rewards, from the metrics of a record."""

from __future__ import annotations

from collections.abc import Mapping

from learner.settings.config import Config

NEARLY_ALL = 0.9  # fraction of clipped gradients above which the clip norm alone decides the step
LARGE = 1.0  # mean size of a reward, which the published learning rates and clip norms suit


def reward_advice(record: Mapping[str, float], config: Config) -> str:
    """One sentence if raw rewards are so large that nearly every gradient is clipped; empty otherwise."""
    settings = config.agent_settings
    changed = [name for name in ("clip_rewards", "normalise_rewards", "popart") if getattr(settings, name, False)]
    steps, clipped = record.get("charts/episodic_length", 0.0), record.get("losses/gradient_clipped", 0.0)
    if changed or not steps or clipped < NEARLY_ALL:
        return ""
    size = abs(record.get("charts/episodic_return", 0.0)) / steps
    if size <= LARGE:
        return ""
    ways = ["--normalise_rewards", *(["--clip_rewards"] if hasattr(settings, "clip_rewards") else [])]
    return (
        f"Rewards are about {size:.3g} a step, and {100 * clipped:.0f} % of the gradients were clipped: "
        f"{' or '.join(ways)} would make them smaller"
    )
