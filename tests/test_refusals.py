"""Bad input ends with one line and exit code 2, and nothing is started."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.support import run_main, run_program

COUNTED = ["--env=CartPole-v1", "--episodic_count=0.5"]
REPLAYED, ELITE = (
    f'--replay_parameters=[{{"type": "{kind}", "capacity": 9, "sample_ratio": 1.0}}]' for kind in ("standard", "elite")
)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--env=PongNoFrameskp-v4"], "PongNoFrameskip-v4"),
        (["--op_mode=trian"], "op_mode"),
        (["--no_such_flag=1"], "no_such_flag"),
        (["train"], "'train'"),
        (["--gamma=1.5"], "gamma"),
        (["--batch_size=many"], "batch_size"),
        (["--batch_size=0"], "batch_size"),
        (["--frame_scale_resolution=84"], "frame_scale_resolution"),
        (["--rho_bar=0.5", "--c_bar=1"], "rho_bar"),
        (["--replay_parameters=[{]"], "JSON"),
        (['--replay_parameters=[{"type": "queue", "capacity": 1, "sample_ratio": 0.9}]'], "sum"),
        (
            [
                "--batch_size=10",
                '--replay_parameters=[{"type": "queue", "capacity": 1, "sample_ratio": 0.5},'
                ' {"type": "standard", "capacity": 4, "sample_ratio": 0.5}]',
            ],
            "capacity",
        ),
        (['--replay_parameters=[{"type": "standard", "capacity": 10000000000, "sample_ratio": 1.0}]'], "memory"),
        (['--replay_parameters=[{"type": "standard", "memory": "900TB", "sample_ratio": 1.0}]'], "available now"),
        (['--replay_parameters=[{"type": "standard", "memory": "8 gigabytes", "sample_ratio": 1.0}]'], "a size such as"),
        (['--replay_parameters=[{"type": "standard", "memory": "300KB", "sample_ratio": 1.0}]'], "wanted memory for the"),
        (['--replay_parameters=[{"type": "queue", "memory": "300KB", "sample_ratio": 1.0}]'], "wanted memory for the"),
        (
            ['--replay_parameters=[{"type": "standard", "capacity": 9, "memory": "8GB", "sample_ratio": 1.0}]'],
            "either capacity, steps or memory, got capacity and memory",
        ),
        (
            [
                "--device=cpu",
                '--replay_parameters=[{"type": "standard", "capacity": 99, "sample_ratio": 1.0, "device": "cuda"}]',
            ],
            'replay_parameters[0]: wanted --device=cuda or "device": "cpu"',
        ),
        (
            ['--replay_parameters=[{"type": "queue", "capacity": 9, "sample_ratio": 1.0, "device": "cuda"}]'],
            "got device",
        ),
        (["--compress_replay=maybe"], "compress_replay: wanted true or false, got 'maybe'"),
        (["--flagfile=/nowhere"], "error: flagfile: wanted a file of flags, got '/nowhere' (No such file or directory)"),
        (["--reproducible", "--worker_kind=cpu"], "reproducible"),
        (["--agent=dqn", "--intrinsic=rnd"], "intrinsic: not a setting of agent dqn"),
        (
            ["--intrinsic=rnd", '--replay_parameters=[{"type": "standard", "capacity": 9, "sample_ratio": 1.0}]'],
            "intrinsic: wanted a",
        ),
        (["--intrinsic=icm", "--worker_kind=recorded", "--recording=some"], "intrinsic: wanted none with a recording"),
        (["--env=CartPole-v1", "--core_inputs", "--episodic_count=0.1"], "episodic_count: wanted 0 with core_inputs"),
        ([*COUNTED, "--agent=es"], "episodic_count: wanted 0 with agent es, which learns from returns, "),
        ([*COUNTED, "--agent=cem"], "episodic_count: wanted 0 with agent cem, which learns from returns, "),
        ([*COUNTED, "--worker_kind=served"], "episodic_count: wanted 0 with worker_kind served, "),
        ([*COUNTED, "--agent=bcq", "--recording=some"], "episodic_count: wanted 0 with a recording, "),
        ([*COUNTED, "--agent=sac", "--recording=some"], "episodic_count: wanted 0 with a recording, "),
        ([*COUNTED, "--agent=dqn", "--clip_rewards"], "episodic_count: wanted 0 with clip_rewards by abs_one_sign, "),
        (["--agent=dqn", "--compile"], "compile: wanted false with agent dqn"),
        (["--agent=trpo", "--precision=bfloat16"], "precision: wanted float32 with agent trpo"),
        (["--agent=trpo", "--noseparate_value"], "separate_value: wanted true with agent trpo"),
        (["--agent=es", "--learner_count=2"], "learner_count: wanted 1 with agent es"),
        (["--agent=es", "--normalise_rewards"], "normalise_rewards"),
        (["--agent=es", "--separate_value"], "separate_value: wanted False with agent es"),
        (["--agent=cem", "--action_distribution=beta"], "action_distribution: wanted auto with agent cem, got beta"),
        (["--agent=ppo", "--minibatches=1000"], "minibatches: wanted at most"),
        (["--agent=r2d2", "--normalise_rewards"], "normalise_rewards: wanted false with agent r2d2"),
        (["--env=Catch-v0,Reach-v0"], "env: wanted environments with equal observations"),
        (["--env=Catch-v0,Avoid-v0", "--agent=es"], "env: wanted one environment with agent es"),
        (["--env=Catch-v0,Avoid-v0", "--worker_kind=served"], "wanted an environment of Gymnasium with served"),
        (["--env=CartPole-v1,Acrobot-v1", "--worker_kind=served"], "env: wanted one environment with worker_kind served"),
        (["--env=Catch-v0,Avoid-v0", "--worker_count=1", "--envs_per_worker=1"], "envs_per_worker: wanted at least 2"),
        (
            ["--share_experience=results"],
            "wanted a replay such as standard, which gives trajectories again, got queue",
        ),
        (["--agent=ppo", "--share_experience=results"], "share_experience: wanted a replay"),
        ([REPLAYED, "--share_experience=main.py"], "share_experience: wanted a folder that can be written to, got 'main.py'"),
        ([REPLAYED, "--share_experience=/proc/nope"], "share_experience: wanted a folder"),
        ([ELITE, "--share_experience=results"], "share_experience: wanted dist_function kl_policy with elite, because"),
        (["--reproducible", "--share_experience=results"], "share_experience: wanted none with reproducible"),
        (["--network=nature", "--frame_scale_resolution=8,8"], "network"),
        (["--device=cuda"], "device"),
        (["--protocol=machado", "--sticky_actions=0"], "wanted 0.25, which protocol=machado prescribes"),
        (["--preset=quick", "--protocol=machado"], "protocol: wanted as_set for Catch-v0, got machado"),
        ([f"--batch_size={'9' * 5000}"], "batch_size"),
        (["--frame_scale_resolution=30000,30000"], "wanted one that fits in"),
        (["--op_mode=test", "--load=nowhere"], "load: wanted"),
        (["--op_mode=test", "--load=nowhere"], "nowhere"),
        (["--op_mode=train_w_load", "--load=latest"], "latest"),
    ],
)
def test_bad_input_is_one_clear_line_and_starts_nothing(tmp_path: Path, arguments: list[str], said: str) -> None:
    if arguments == ["--device=cuda"] and torch.cuda.is_available():
        arguments, said = ["--device=tpu"], "device"
    assert_refused(run_main, tmp_path / "results", arguments, said)


@pytest.mark.parametrize(
    ("arguments", "said"), [(["--no_such_flag=1"], "no_such_flag"), (["--op_mode=test", "--load=nowhere"], "nowhere")]
)
def test_the_program_refuses_as_its_function_does(tmp_path: Path, arguments: list[str], said: str) -> None:
    """One refusal by absl and one by the settings' own checks, each with a process's exit code and streams."""
    assert_refused(run_program, tmp_path / "results", arguments, said)


@pytest.mark.parametrize("content", [b"\xff\xfe--gamma=1", b"\0" * 100])
def test_a_file_that_holds_no_flags_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "my_flags"
    file.write_bytes(content)
    said = "my_flags" if content[0] else "wanted flags"
    for flags in ([f"--flagfile={file}"], ["--flagfile", str(file)]):
        assert_refused(run_main, tmp_path / "results", flags, said)
    assert_refused(run_main, tmp_path / "results", ["--flagfile=/dev/zero"], "/dev/zero")


def assert_refused(
    run: Callable[..., subprocess.CompletedProcess[str]], results: Path, arguments: list[str], said: str
) -> None:
    done = run("--environment_max_steps=100", f"--results_dir={results}", *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert said in lines[0]
    assert len(lines[0]) < 1100
    assert not results.exists()
