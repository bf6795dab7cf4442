"""The comparison with Stable-Baselines3: equal settings, refusals, and a measurement where the package is installed."""

from __future__ import annotations

import pytest

from benchmarks.against_sb3 import compare, sb3_job
from benchmarks.sb3 import Sb3Job, measure_sb3
from learner.settings.config import Config
from main import prepare
from tests.support import small_config


def _config(*flags: str) -> Config:
    return prepare(["main.py", "--op_mode=train", "--device=cpu", *flags]).config


def test_both_packages_get_the_same_settings() -> None:
    job = sb3_job(_config("--preset=ppo_cartpole", "--minibatches=4"))
    assert job == Sb3Job(
        algorithm="PPO",
        env="CartPole-v1",
        envs=8,
        options={
            "n_steps": 32,
            "n_epochs": 20,
            "batch_size": 64,
            "policy_kwargs": {"net_arch": {"pi": [64, 64], "vf": [64, 64]}},
            "activation": "Tanh",
        },
    )


def test_a_shared_torso_and_atari_are_shared_there_too() -> None:
    shared = sb3_job(_config("--preset=ppo_cartpole", "--noseparate_value", "--activation=relu"))
    assert shared.options["policy_kwargs"] == {"net_arch": [64, 64]}
    assert shared.options["activation"] == "ReLU"
    atari = sb3_job(_config("--preset=ppo_atari", "--env=BreakoutNoFrameskip-v4"))
    assert atari.atari
    assert "policy_kwargs" not in atari.options


@pytest.mark.parametrize(("pace", "every", "steps"), [(1, 1, 1), (2, 1, 2), (0.25, 4, 1)])
def test_off_policy_agents_make_as_many_updates_for_a_step(pace: float, every: int, steps: int) -> None:
    job = sb3_job(_config("--agent=sac", "--env=Pendulum-v1", "--hidden_sizes=64,32", f"--updates_per_step={pace}"))
    assert (job.algorithm, job.envs) == ("SAC", 1)
    assert (job.options["train_freq"], job.options["gradient_steps"], job.options["batch_size"]) == (every, steps, 256)
    assert job.options["policy_kwargs"] == {"net_arch": [64, 32]}


def test_settings_that_one_package_lacks_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="agent: wanted ppo, sac"):
        sb3_job(small_config())
    with pytest.raises(SystemExit) as ended:
        compare(["--preset=ppo_cartpole", "--core=lstm"], 1, 1.0)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: network: wanted mlp without a core")


def test_sb3_is_measured_in_a_process_of_its_own() -> None:
    pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is optional")
    assert measure_sb3(Sb3Job("A2C", "CartPole-v1", 8), 0.01) > 10
    with pytest.raises(RuntimeError, match="Nix"):
        measure_sb3(Sb3Job("A2C", "Nix-v0", 8), 0.01)
