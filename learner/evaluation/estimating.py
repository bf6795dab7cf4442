"""Estimates what a policy would score from episodes that another one has played (`--estimate_from`). Nothing is played."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from agents.networks.actor_critic import BEHAVIOUR_POLICY, RAW_ACTION, PolicyNetwork, distribution_name, distribution_of
from agents.networks.base import FeatureNetwork, make_network
from agents.networks.cores import zeroed
from agents.returns.estimates import OffPolicyEstimates, estimate
from learner.evaluation.results import write_results
from learner.plan import Plan
from learner.runs.checkpoint import ACTING_MODULE, Checkpoint
from replay.batch import stack_frames
from replay.recordings.recording import Recording, check_recording, open_recording, read_frames
from replay.recordings.stream import FRAME
from replay.trajectory import Field

log = logging.getLogger("springbok")

ROWS = 256
"""Rows that pass the network together."""


class EpisodeRatios(NamedTuple):
    """One recorded episode: log pi - log mu of each used action, float64 `[steps]`, and its rewards `[steps]`."""

    log_ratios: np.ndarray
    rewards: np.ndarray


def open_estimated(plan: Plan) -> Recording:
    """The recording that `--estimate_from` names. Raises ValueError in one line if nothing can be estimated from it."""
    config, network = plan.config, plan.network
    if not issubclass(network.network_class, PolicyNetwork):
        raise ValueError(f"estimate_from: wanted an agent that draws its actions from a policy, got {config.agent}")
    for name in ("greedy", "render"):
        if getattr(config.evaluation, name):
            why = "which compares probabilities and plays nothing"
            raise ValueError(f"{name}: wanted false with --estimate_from, {why}, got true")
    behaviour = {BEHAVIOUR_POLICY: Field((distribution_of(network).parameter_count,), "float32")}
    wanted = replace(plan.contract, acting={**PolicyNetwork.acting(network).fields, **behaviour}, feature_count=0)
    try:
        recording = open_recording(Path(config.evaluation.estimate_from))
    except OSError as error:
        raise ValueError(f"estimate_from: wanted a folder that can be read, got {error}") from error
    check_recording(recording, wanted, plan.spec.to_json(), distribution_name(network))
    return recording


def estimate_score(plan: Plan, checkpoint: Checkpoint, path: Path, folder: Path) -> int:
    """Estimate the mean return of a checkpoint's policy, print it, and write it to `folder`. Returns the exit code.

    path: the file of the checkpoint.
    """
    recording, config, network = open_estimated(plan), plan.config, make_network(plan.network)
    network.load_state_dict(checkpoint.agent["modules"][ACTING_MODULE])
    network.to(config.training.device).eval()
    episodes = [episode for records in recording.streams for episode in episodes_of(network, records)]
    if not all(np.isfinite(episode.log_ratios).all() for episode in episodes):
        log.error("error: %s gives probabilities that are not finite: its training diverged", path)
        return 1
    found = estimate([episode.log_ratios for episode in episodes], [episode.rewards for episode in episodes])
    for line in table(found, len(episodes)):
        log.info("%s", line)
    content = {
        "env": config.env.env,
        "checkpoint": path.name,
        "updates": checkpoint.counters.updates,
        "recording": config.evaluation.estimate_from,
        "episodes": len(episodes),
        **{name: value if np.isfinite(value) else None for name, value in found._asdict().items()},
    }
    try:
        log.info("Results: %s", write_results(folder, checkpoint.counters.updates, content, "estimate"))
    except OSError as error:
        log.error("error: the results were not saved: %s", error)
        return 1
    return 0


@torch.inference_mode()
def episodes_of(network: FeatureNetwork, records: np.ndarray) -> Iterator[EpisodeRatios]:
    """The whole episodes of one stream. Steps whose action was ignored have no ratio, and belong to none."""
    steps = len(records) - 1
    ratios = np.concatenate([part.double().cpu().numpy() for part in _log_ratios(network, records)])
    begin = 0
    for end in (np.flatnonzero(records["episode_length"][:steps] > 0) + 1).tolist():
        used = records["action_used"][begin:end]
        yield EpisodeRatios(ratios[begin:end][used], records["rewards"][begin:end][used].astype(np.float64))
        begin = end


def _log_ratios(network: FeatureNetwork, records: np.ndarray) -> Iterator[Tensor]:
    """log pi - log mu of the steps, `[rows]` each time."""
    distribution, device = network.distribution, next(network.parameters()).device
    assert distribution is not None
    drawn_field = RAW_ACTION if distribution.stores_drawn else "actions"
    stack, steps = network.config.observation_shape[0], len(records) - 1
    state = torch.zeros(1, network.state_size, device=device)
    for begin in range(0, steps, ROWS):
        rows = slice(begin, min(begin + ROWS, steps))
        count = rows.stop - begin
        frames = np.empty((1, count + stack - 1, *records[FRAME].shape[1:]), records[FRAME].dtype)
        read_frames(records, begin, stack, frames[0])
        reset = np.array(records["reset"][begin : rows.stop])[None]
        observations = stack_frames(torch.from_numpy(frames).to(device), reset[:, :-1], stack)  # [rows, 1, S, ...]
        if network.core is None:
            policy = network(observations.flatten(0, 1)).policy
        else:
            inferred = network.unroll(observations, state, torch.from_numpy(reset[:, :-1]).transpose(0, 1).to(device))
            policy = inferred.output.policy[:, 0]
            assert inferred.state is not None
            state = zeroed(inferred.state, torch.from_numpy(reset[:, -1]).to(device))
        drawn = torch.from_numpy(np.array(records[drawn_field][rows])).to(device)
        behaviour = torch.from_numpy(np.array(records[BEHAVIOUR_POLICY][rows])).to(device)
        yield distribution.log_prob(policy, drawn) - distribution.log_prob(behaviour, drawn)


def table(found: OffPolicyEstimates, episodes: int) -> list[str]:
    """The estimates as lines of text."""
    named = {
        "of the recorded policy": found.recorded,
        "importance sampling": found.importance_sampling,
        "weighted": found.weighted,
        "per decision": found.per_decision,
        "weighted per decision": found.weighted_per_decision,
    }
    return [
        f"Mean return, estimated from {episodes:,} recorded episodes:",
        *(f"  {name:<24}{value:>12,.2f}" for name, value in named.items()),
        f"Effective episodes: {found.effective_episodes:.1f} of {episodes:,}. With few of them no estimate means much.",
    ]
