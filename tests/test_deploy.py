"""The cluster files in deploy/ have the form that Ray reads, and fit to the program."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from learner.settings.schema import SHARED
from tests.support import REPOSITORY

ray = pytest.importorskip("ray", reason="Ray is an optional package (requirements-ray.txt)")
yaml = pytest.importorskip("yaml", reason="it comes with Ray")

DEPLOY = REPOSITORY / "deploy"
CLOUDS = ("aws.yaml", "gcp.yaml")
FILES = (*CLOUDS, "kuberay.yaml")


def read(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / name).read_text()))


def schema() -> dict[str, Any]:
    """The schema of a cluster file, as Ray ships it."""
    return dict(json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text()))


def test_every_file_is_tested() -> None:
    assert sorted(path.name for path in DEPLOY.iterdir()) == sorted(FILES)


@pytest.mark.parametrize("name", CLOUDS)
def test_a_cluster_file_fits_the_schema_of_ray(name: str) -> None:
    content = read(name)
    jsonschema.validate(content, schema())
    types = content["available_node_types"]
    assert types[content["head_node_type"]]["resources"]["CPU"] == 0  # actors are kept off the learner's machine
    assert [each["max_workers"] for type_, each in types.items() if type_ != content["head_node_type"]] == [
        content["max_workers"]
    ]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**content, "max_worker": 8}, schema())


def test_the_manifest_for_kubernetes_becomes_a_cluster_that_ray_accepts() -> None:
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

    derived = _derive_autoscaling_config_from_ray_cr(read("kuberay.yaml"))
    jsonschema.validate(derived, schema())
    nodes = derived["available_node_types"]
    assert nodes[derived["head_node_type"]]["resources"]["CPU"] == 0
    environments = nodes["environments"]
    assert (environments["min_workers"], environments["max_workers"], environments["resources"]["CPU"]) == (2, 8, 16)


@pytest.mark.parametrize("name", FILES)
def test_the_head_of_each_file_names_flags_that_exist_and_says_what_was_not_tried(name: str) -> None:
    text = (DEPLOY / name).read_text()
    flags = set(re.findall(r"--(\w+)=", text)) - {"op_mode"}
    assert flags >= {"worker_kind", "ray_address", "worker_count", "checkpoint_store"}
    assert flags <= set(SHARED)
    assert "Not run on a real cloud." in text


@pytest.mark.parametrize("name", FILES)
def test_all_machines_have_the_same_version_of_ray(name: str) -> None:
    named = {str(read(name).get("spec", {}).get("rayVersion", ""))}
    named |= set(re.findall(r"rayproject/ray:([\d.]+)-py312", (DEPLOY / name).read_text()))
    requirements = (REPOSITORY / "requirements-ray.txt").read_text()
    assert named - {""} == set(re.findall(r"^ray==([\d.]+)$", requirements, re.M))


def test_the_image_of_a_node_has_the_extras() -> None:
    stage = (REPOSITORY / "Dockerfile").read_text().split("FROM base AS cluster")[1].split("FROM ")[0]
    assert "requirements-ray.txt" in stage
    assert "requirements-store.txt" in stage
    assert (REPOSITORY / "Dockerfile").read_text().rstrip().endswith("FROM base AS springbok")  # the default
