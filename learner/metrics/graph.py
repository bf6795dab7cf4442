"""The graph of the network in TensorBoard (`--log_graph`): the operations from one observation to an action."""

from __future__ import annotations

import warnings
from copy import deepcopy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from agents.networks.base import FeatureNetwork
from learner.export.exported_policy import STATE_IN, ExportedPolicy, Outputs, tensors_of
from wrappers.spec import EnvSpec

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

LONGEST_REASON = 300  # characters


class Traced(nn.Module):
    """An exported policy whose inputs are tensors alone, in the order of `ExportedPolicy.input_names`.

    The tracer knows no dictionaries. Each tensor is an input of the graph.
    """

    def __init__(self, policy: ExportedPolicy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, *tensors: Tensor) -> Outputs:
        named = dict(zip(self.policy.input_names, tensors, strict=True))
        state = named.pop(STATE_IN, None)
        outputs: Outputs = self.policy(named if self.policy.leaves else tensors[0], state)
        return outputs


def traceable(network: FeatureNetwork, spec: EnvSpec) -> tuple[Traced, tuple[Tensor, ...]]:
    """A copy of the network that can be traced, on the CPU, and its inputs for an observation of zeros."""
    policy = ExportedPolicy(deepcopy(network).cpu().only_act())
    observation = torch.zeros((1, *spec.observation_shape), dtype=getattr(torch, spec.frame_dtype))
    state = (torch.zeros(1, network.state_size),) if network.state_size else ()
    return Traced(policy), (*tensors_of((policy.split(observation),)), *state)


def trace(network: FeatureNetwork, spec: EnvSpec, writer: SummaryWriter) -> str:
    """Write the graph of the network. Returns why it could not be, in one line, or nothing.

    Training continues in either case. Raises OSError if TensorBoard's file cannot be written.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # on checks of shapes, which are the same for every observation
            writer.add_graph(*traceable(network, spec))
    except OSError:
        raise
    except Exception as error:  # the network may be the user's, and the tracer raises errors of every kind
        return " ".join(str(error).split())[:LONGEST_REASON] or type(error).__name__
    return ""
