"""Springbok from Python: runs in processes of their own, and policies that act.

    run = springbok.train(env="CartPole-v1", agent="ppo", environment_max_steps=100_000)
    run.metrics["charts/episodic_return_mean"]
    policy = springbok.load(run.path)
    action, state = policy.act(observation)

`import springbok` loads neither PyTorch nor the program. `docs/python.md` describes this interface.
"""

from __future__ import annotations

from springbok.policies import load
from springbok.process import Failed, Refused
from springbok.runs import Evaluation, Metrics, Run, train
from springbok.studies import Study, tune

__all__ = ["Evaluation", "Failed", "Metrics", "Refused", "Run", "Study", "load", "train", "tune"]

__version__ = "0.1.0"
