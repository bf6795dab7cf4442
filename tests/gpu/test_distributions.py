"""Actions of every kind are drawn on a GPU without a wait of the host."""

from __future__ import annotations

import torch

from agents.distributions import Distribution
from tests.agents.test_distributions import DISTRIBUTIONS, random_parameters
from tests.gpu.simulated_gpu import SimulatedGpu

CUDA = torch.device("cuda")


@DISTRIBUTIONS
def test_drawing_makes_nobody_wait(distribution: Distribution, gpu: SimulatedGpu) -> None:
    parameters = random_parameters(distribution, 5).to(CUDA)
    generator = torch.Generator(CUDA).manual_seed(1)
    gpu.waits.clear()
    drawn = distribution.sample(parameters, generator)
    for quantity in (
        distribution.action(drawn),
        distribution.action(distribution.mode(parameters)),
        distribution.log_prob(parameters, drawn),
        distribution.entropy(parameters),
        distribution.kl(parameters, parameters),
    ):
        assert quantity.is_cuda
    assert gpu.waits == []
    assert gpu.reports == []
