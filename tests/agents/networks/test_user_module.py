"""A torso of the user's own is imported by its path, and every breach of its contract is one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from agents.networks.user_module import checked_feature_count
from tests.builders import network_of

HEAD = "import torch\nfrom torch import nn\n\n"
GOOD = """
class Net(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.layer = nn.Linear(shape[0] * shape[1], 5)
        nn.init.constant_(self.layer.weight, 0.25)

    def forward(self, inputs):
        return self.layer(inputs.flatten(1))
"""
BREACHES = {
    "no layer takes it": (GOOD.replace("shape[0] * shape[1]", "99"), "wanted features of inputs [3, 2, 4], got RuntimeError"),
    "another shape": (GOOD.replace("(inputs.flatten(1))", "(inputs.flatten(1)).T"), "wanted features [3, F], got [5, 3]"),
    "another dtype": (GOOD.replace("(inputs.flatten(1))", "(inputs.flatten(1)).double()"), "wanted float32 features"),
    "not finite": (GOOD.replace("(inputs.flatten(1))", "(inputs.flatten(1)).log()"), "wanted finite features"),
    "no tensor": (GOOD.replace("return self", "return 1, self"), "wanted a tensor of features, got a tuple"),
    "no gradient": (GOOD.replace("(inputs.flatten(1))", "(inputs.flatten(1)).detach()"), "wanted features that depend on"),
    "an unused layer": (
        GOOD.replace("        nn.init", "        self.other = nn.Linear(2, 2)\n        nn.init"),
        "wanted a gradient for every parameter, got none for other.weight",
    ),
    "whole numbers": (
        GOOD.replace(
            "        nn.init", "        self.register_buffer('seen', torch.zeros((), dtype=torch.int64))\n        nn.init"
        ),
        "wanted float32 parameters and buffers, got seen as torch.int64",
    ),
    "depends on the batch": (
        GOOD.replace("(inputs.flatten(1))", "(inputs.flatten(1) - inputs.flatten(1).mean(0))"),
        "wanted the same features for an observation alone",
    ),
    "another argument": (GOOD.replace("(self, shape)", "(self)"), "wanted a class that takes (2, 4), got TypeError"),
    "no module": ("class Net:\n    pass\n", "wanted a subclass of torch.nn.modules.module.Module, got a type"),
    "no such class": (
        "class Other(nn.Module):\n    pass\n",
        "wanted a subclass of torch.nn.modules.module.Module, got no such name",
    ),
    "an error": ("raise OSError('no\\nfile')\n", "wanted a file that can be imported, got OSError: no file"),
}


def write(folder: Path, text: str) -> str:
    path = folder / "my_net.py"
    path.write_text(HEAD + text)
    return f"{path}:Net"


def test_the_class_reads_observations_and_keeps_its_weights(tmp_path: Path) -> None:
    network = network_of(write(tmp_path, GOOD), (2, 4), 3)
    observations = torch.randn(6, 2, 4)
    assert network.feature_count == 5
    torch.testing.assert_close(network.features(observations)[:, 0], 0.25 * observations.sum((1, 2)) + _bias(network))
    with torch.device("meta"):
        assert network_of(write(tmp_path, GOOD), (2, 4), 3).feature_count == 5


def _bias(network: nn.Module) -> Tensor:
    return dict(network.named_parameters())["torso.module.layer.bias"][0]


def test_it_is_drawn_from_no_other_random_numbers(tmp_path: Path) -> None:
    torch.manual_seed(3)
    wanted = torch.rand(2)
    name = write(tmp_path, GOOD.replace("nn.Linear(shape[0] * shape[1], 5)", "nn.Linear(shape[0] * shape[1], 5, bias=False)"))
    network_of(name, (2, 4), 3)  # checks the class
    torch.manual_seed(3)
    checked_feature_count.cache_clear()
    checked_feature_count(name, (2, 4), (2, 4), "float32")
    assert torch.equal(torch.rand(2), wanted)


@pytest.mark.parametrize("breach", BREACHES)
def test_a_breach_is_one_line(tmp_path: Path, breach: str) -> None:
    text, message = BREACHES[breach]
    with pytest.raises(ValueError, match="^network .*my_net.py:Net: ") as refusal:
        network_of(write(tmp_path, text), (2, 4), 3)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="wanted a file that exists, got .*none.py$"):
        network_of(f"{tmp_path}/none.py:Net", (2, 4), 3)


def test_a_class_that_computes_in_float32_alone_is_refused_in_bfloat16(tmp_path: Path) -> None:
    network = write(tmp_path, GOOD.replace("(inputs.flatten(1))", "(inputs.flatten(1)) * torch.eye(2).to(inputs).det()"))
    assert checked_feature_count(network, (2, 4), (2, 4), "float32") == 5
    with pytest.raises(ValueError, match=r"wanted a class that computes in bfloat16, or --precision=float32, got"):
        checked_feature_count(network, (2, 4), (2, 4), "bfloat16")


def test_a_class_that_computes_in_bfloat16_may(tmp_path: Path) -> None:
    assert checked_feature_count(write(tmp_path, GOOD), (2, 4), (2, 4), "bfloat16") == 5
