"""TensorBoard charts of the metrics that the V-trace agent reports."""

from __future__ import annotations

CHARTS: dict[str, list[str]] = {
    "losses, mean per step": [r"losses/.*_loss$"],
    "entropy, nats": [r"losses/entropy$"],
    "explained variance of the value": [r"losses/explained_variance$"],
    "importance ratios": [r"vtrace/.*"],
    "steps that the trust region rejects, fraction": [r"replay/.*/rejected_fraction$"],
    "effective sample size, fraction": [r"replay/.*/effective_sample_size$"],
}
"""Title -> the metrics of the chart, as regular expressions that TensorBoard matches from the start of a name."""
