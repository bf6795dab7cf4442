"""Draws of actions against their probabilities, and against PyTorch's own draws."""

from __future__ import annotations

import numpy as np
import torch

from agents.distributions import sample_categorical


def test_actions_follow_the_probabilities() -> None:
    probabilities = torch.tensor([0.7, 0.25, 0.05])
    logits = probabilities.log().expand(40_000, 3) + 5.0
    actions = sample_categorical(logits, torch.Generator().manual_seed(3))
    shares = np.bincount(actions.numpy(), minlength=3) / 40_000
    np.testing.assert_allclose(shares, probabilities, atol=0.015)  # five standard deviations


def test_the_draws_are_those_of_multinomial() -> None:
    """Runs made before `sample_categorical` existed drew by `torch.multinomial`; they resume with the same bits."""
    ours, theirs = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    for actions in range(1, 19):
        logits = 3 * torch.randn(16, actions, generator=torch.Generator().manual_seed(actions))
        wanted = torch.multinomial(logits.softmax(-1), 1, generator=theirs).squeeze(-1)
        assert torch.equal(sample_categorical(logits, ours), wanted)
    assert torch.equal(ours.get_state(), theirs.get_state())
