"""The losses of V-MPO (Song et al. 2019, arXiv:1909.12238, section 4) as pure functions.

E-step: D is the half of the used steps with the largest advantages, psi_t = softmax_D(A_t / eta), a constant of the policy loss

    L_pi = - sum_D psi_t log pi(a_t|x_t),   L_eta = eta eps_eta + eta log mean_D exp(A_t / eta)

M-step, with [.] constant and KL = KL(pi_old || pi) as a mean over ALL used steps:

    L_alpha = alpha (eps_alpha - [KL]) + [alpha] KL

The paper takes half of all steps; here it is half of those that are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from agents.distributions import DiagonalGaussian, Distribution
from agents.engine.collectives import Collectives


class EStep(NamedTuple):
    """The steps to imitate, and how much.

    psi: weights of the shape of the advantages, constants that sum to 1 over all learners; 0 outside D.
    largest: the largest A of D, `[]`, a constant; 0 without a used step.
    log_mean: log mean_D exp((A - largest) / eta), `[]`, with gradient in eta.
    share: used steps of all learners for each of this one's, `[]`; 1 with one learner, 0 where none has a used step.
    """

    psi: Tensor
    largest: Tensor
    log_mean: Tensor
    share: Tensor


def e_step(advantages: Tensor, used: Tensor, eta: Tensor, collectives: Collectives | None = None) -> EStep:
    """The weights of the better half of the steps.

    Steps with the same advantage as the last of the half are in it too. Without a used step weights and logarithm are 0.

    Args:
        advantages: A_t, of any shape. An unused step's may be anything.
        used: bool, of the same shape.
        eta: the temperature, `[]`, above 0.
        collectives: operations over all learners, over whose steps half, maximum and sums are taken. None: over this one's.
    """
    # -inf marks steps that are not used; the others' advantages reach every learner.
    known = torch.where(used, advantages.detach(), -torch.inf)
    everyone = (collectives or Collectives()).gather(known.flatten()).flatten()  # [steps of all learners]
    count = (everyone > -torch.inf).sum()  # [], on the device: the host does not wait
    half = (count // 2).clamp(min=1)
    threshold = everyone.sort(descending=True).values.gather(0, (half - 1)[None])  # [1], the last advantage of the half
    top = (everyone >= threshold) & (everyone > -torch.inf)  # D, bool [steps of all learners]
    size = top.sum()
    largest = torch.where(size > 0, everyone.amax(), 0.0)
    # The largest is subtracted before the division: float32 would round a sum of exponents away beside A / eta = 10,000.
    # `where` before the division: the gradient of -inf / eta would be NaN.
    logits = torch.where(top, torch.where(top, everyone - largest, 0.0) / eta, -torch.inf)
    total = torch.where(size > 0, logits, 0.0).logsumexp(0)  # log sum_D exp((A - largest) / eta)
    log_mean = torch.where(size > 0, total - size.to(total.dtype).log(), 0.0)
    psi = torch.where(used & (known >= threshold), ((known - largest) / eta.detach() - total.detach()).exp(), 0.0)
    return EStep(psi, largest, log_mean, count / used.sum().clamp(min=1))


def policy_loss(step: EStep, log_probs: Tensor) -> Tensor:
    """- sum psi log pi(a|x), `[]`, times `share`: as if it were a mean over this learner's used steps.

    log_probs: of the actions taken, with gradient. Those of unused steps may be anything.
    """
    return -torch.where(step.psi > 0, step.psi * log_probs, 0.0).sum() * step.share


def temperature_loss(eta: Tensor, step: EStep, epsilon: float) -> Tensor:
    """eta eps + eta log mean_D exp(A / eta), `[]`; 0 without a used step.

    eta: with gradient, as it was when `step` was computed.
    """
    return torch.where(step.share > 0, eta * epsilon + step.largest + eta * step.log_mean, 0.0)


def divergences(distribution: Distribution, old: Tensor, new: Tensor) -> list[Tensor]:
    """KL(pi_old || pi) of each step, in the parts that have a bound each: one, or for Gaussians that of means and deviations.

    The part of the means has the old deviations, and that of the deviations the old means (section 4.2 and appendix C). The two
    add up to no divergence, since (m_old - m)^2 is divided by another variance.

    Args:
        distribution: of the actions.
        old: parameters of pi_old, `[..., P]`, constants.
        new: parameters of pi, with gradient.
    """
    if not isinstance(distribution, DiagonalGaussian):
        return [distribution.kl(old, new)]
    (old_mean, old_log_std), (mean, log_std) = old.chunk(2, -1), new.chunk(2, -1)
    moved = torch.cat([mean, old_log_std], -1), torch.cat([old_mean, log_std], -1)
    return [distribution.kl(old, each) for each in moved]


def bound_losses(kls: Tensor, alphas: Tensor, epsilons: Sequence[float]) -> tuple[Tensor, Tensor]:
    """The penalty sum [alpha] KL, and the loss of the multipliers sum alpha (eps - [KL]), scalars.

    Args:
        kls: mean divergences `[parts]`, with gradient.
        alphas: multipliers `[parts]`, with gradient.
        epsilons: bound of each part.
    """
    room = torch.stack([epsilon - kl for epsilon, kl in zip(epsilons, kls.detach(), strict=True)])  # eps - [KL], [parts]
    return (alphas.detach() * kls).sum(), (alphas * room).sum()
