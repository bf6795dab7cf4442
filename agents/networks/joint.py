"""The torso of a whole observation: one torso, or one for each part of an observation that has several."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from agents.networks.inputs import InputPart
from agents.networks.settings import NetworkSettings
from agents.networks.torsos import Mlp, Simba, Torso, hidden_layers, make_torso
from agents.networks.user_module import UserTorso
from setting import settings_of

_GAIN = math.sqrt(2.0)


class JointTorso(nn.Module):
    """Reads every part with a torso of its own. One hidden layer joins their features.

    The named torso reads images. An mlp of `--hidden_sizes` reads the vectors. There are as many joint features as
    the first image's torso has.
    """

    def __init__(self, settings: NetworkSettings, parts: Sequence[InputPart], precision: str) -> None:
        super().__init__()
        torsos = [Mlp(part.shape, settings) if part.is_vector else _of_part(settings, part, precision) for part in parts]
        self.reads = ("activation", "layer_norm", *(name for torso in torsos for name in torso.reads))
        self.feature_count = torsos[0].feature_count
        self.torsos = nn.ModuleList(torsos)
        inputs = sum(torso.feature_count for torso in torsos)
        self.joint = nn.Sequential(*hidden_layers(inputs, (self.feature_count,), settings))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Prepared parts `[N, ...]` to features `[N, F]`."""
        features = [torso(part) for torso, part in zip(self.torsos, inputs, strict=True)]  # [N, F of each part]
        joined: Tensor = self.joint(torch.cat(features, -1))
        return joined

    def gain(self, layer: nn.Module) -> float | None:
        """Gain of a layer's initial orthogonal weights, None for a layer that keeps its own."""
        for torso in self.torsos:
            if any(layer is module for module in torso.modules()):
                assert isinstance(torso, Torso | UserTorso)
                return torso.gain(layer)
        return _GAIN


def make_joint_torso(
    settings: NetworkSettings, parts: Sequence[InputPart], precision: str = "float32", also_read: Sequence[str] = ()
) -> Torso | UserTorso | JointTorso:
    """The torso that reads these parts. Raises ValueError if it cannot, or if a setting would have no effect.

    precision: see `NetworkConfig`. It is only checked, for a class of the user's. also_read: settings that heads depend on.
    """
    if len(parts) > 1 and settings.network == "flat":
        raise ValueError("network: wanted auto or another that joins images and vectors, got flat")
    torso = _of_part(settings, parts[0], precision) if len(parts) == 1 else JointTorso(settings, parts, precision)
    for name in ("hidden_sizes", "activation", "layer_norm", "conv", "width", "adaptive_pool", "spectral_norm"):
        default, got = settings_of(NetworkSettings)[name].default, getattr(settings, name)
        if name not in (*torso.reads, *also_read) and got != default:
            raise ValueError(f"{name}: wanted {default} with --network={settings.network}, which does not use it, got {got}")
    return torso


def without_last_layer(torso: Torso | UserTorso | JointTorso) -> Torso | JointTorso:
    """The torso without its last hidden layer, whose place layers of the heads take. Raises ValueError if it has none."""
    layers = torso.joint if isinstance(torso, JointTorso) else torso
    linear = [(index, layer) for index, layer in enumerate(layers.children()) if isinstance(layer, nn.Linear)]
    if isinstance(torso, UserTorso | Simba) or not isinstance(layers, nn.Sequential) or not linear:
        raise ValueError("head_units: wanted 0 with a network that is flat, simba or of your own, got a number of units")
    index, last = linear[-1]
    torso.feature_count = last.in_features
    del layers[index:]  # with its normalisation and activation function
    return torso


def _of_part(settings: NetworkSettings, part: InputPart, precision: str) -> Torso | UserTorso:
    if ":" in settings.network:
        return UserTorso(settings.network, part.shape, part.input_shape, precision)
    return make_torso(settings, part.shape)
