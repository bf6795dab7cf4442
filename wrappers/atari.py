"""The Atari family: environment ids, specs, and ale-py's native vector environment behind our interface.

An id names a game and nothing else. `PongNoFrameskip-v4`, `Pong-v0` and `ALE/Pong-v5` are the same environment here:
frame skip, sticky actions and action set come from `EnvConfig` alone. `notes` says where Gymnasium's environment of that
id repeats actions with another probability.

The native environments always play whole games. A lost life ends nothing in the emulator. With `episodic_life` it is
reported as `terminated`, so that the learner does not bootstrap across it. With `fire_reset` one step of FIRE replaces the
policy's action after a lost life: some games serve the next ball only then, and a greedy policy may never press FIRE.

The last observation of a game does not show the emulator frame in which the game ended, only the frames before it.
ale-py 0.12.1 implements it that way.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import ale_py
import numpy as np
from ale_py import roms
from ale_py.vector_env import AtariVectorEnv

from setting import listed
from wrappers.atari_protocols import PROTOCOLS, preprocessing, protocol_settings, protocol_text
from wrappers.episodes import EpisodeStatistics, check_seed
from wrappers.spaces import Discrete
from wrappers.spec import Display, EnvConfig, EnvDescription, EnvSpec, Step, VectorEnv

EMULATOR_FRAMES_PER_SECOND = 60
TELEVISION = 4 / 3  # width of an Atari picture over its height: its pixels are wider than they are high
TELEVISION_ENLARGEMENT = 3

ARGUMENTS = {
    "repeat_action_probability": "--sticky_actions",
    "frameskip": "--skipped_frames",
    "full_action_space": "--full_action_space",
    "obs_type": "--grayscaling_frames (grey) or --nograyscaling_frames (RGB)",
    "max_num_frames_per_episode": "--max_episode_frames",
    "render_mode": "--render",
}
"""Argument of Gymnasium's Atari environments -> the flags of this family that do the same."""
MEMORY_ARGUMENTS = '{"obs_type": "ram"}'

# These ROMs need two players. ale-py ends the whole process when one of them is loaded.
_TWO_PLAYER_ROMS = frozenset({"combat", "joust", "maze_craze", "warlords"})


def known_ids() -> Mapping[str, str]:
    """All ids of the family, each mapped to the usual id of its game."""
    usual: dict[str, str] = {}
    for env_id, rom in _roms_by_id().items():
        usual.setdefault(rom, env_id)
    return {env_id: usual[rom] for env_id, rom in _roms_by_id().items()}


def matches(env_id: str) -> bool:
    """Return whether `env_id` names an Atari game."""
    return env_id in _roms_by_id()


def make_spec(config: EnvConfig) -> EnvSpec:
    """Return the spec of an Atari game. Its actions are the game's own, or all 18 with `full_action_space`."""
    meanings = _action_meanings(rom_of(config.env), config.full_action_space)
    size = (config.frame_height, config.frame_width)
    return EnvSpec(
        env=config.env,
        frame_shape=size if config.grayscaling_frames else (*size, 3),
        frame_dtype="uint8",
        frames_stacked=config.frames_stacked,
        action=Discrete(len(meanings), meanings),
        frames_per_step=config.skipped_frames,
    )


def notes(config: EnvConfig, given: Collection[str]) -> list[str]:
    """Return a line where Gymnasium's environment of this id has other sticky actions and the user chose none."""
    usual = _gymnasium_sticky_actions(config.env)
    if usual == config.sticky_actions or {"sticky_actions", "protocol"} & set(given):
        return []
    return [
        f"{config.env}: Gymnasium's version of this id repeats actions with probability {usual:g}; this run uses "
        f"sticky_actions={config.sticky_actions:g} (--sticky_actions={usual:g} or "
        f"--protocol={'machado' if usual else 'classic'} changes that)"
    ]


def make_vector(config: EnvConfig, num_envs: int, num_threads: int) -> VectorEnv:
    """Return native environments. Their results do not depend on the number of threads."""
    return AtariVector(config, num_envs, num_threads)


def make_single(config: EnvConfig, render_mode: str | None) -> VectorEnv:
    """Return one environment that can be rendered."""
    from wrappers.atari_single import AtariSingle  # here, so that no worker loads OpenCV

    return AtariSingle(config, render_mode)


def describe(config: EnvConfig) -> EnvDescription:
    """Whole games, shown as on a television. A lost life does not end an evaluated game, whatever `episodic_life` says."""
    settings = protocol_settings(config, fire_action(make_spec(config), config) is not None)
    pace = EMULATOR_FRAMES_PER_SECOND / config.skipped_frames
    return EnvDescription(
        evaluation_config=replace(config, episodic_life=False),
        protocols=PROTOCOLS,
        protocol_settings=settings,
        protocol_text=protocol_text(settings),
        preprocessing=preprocessing(config),
        display=Display(pace, aspect=TELEVISION, enlargement=TELEVISION_ENLARGEMENT),
        game_name=rom_of(config.env),
    )


def other_setting(env_id: str, arguments: Mapping[str, Any]) -> str:
    """The settings in place of arguments of Gymnasium's Atari environments, and how the others can be given."""
    if arguments.get("obs_type") == "ram":
        return f"; {memory_hint(rom_of(env_id))}"
    hints = [f"{ARGUMENTS[name]} takes the place of {name}" for name in arguments if name in ARGUMENTS]
    if own := [name for name in arguments if name not in ARGUMENTS]:
        hints.append(f"--env={_plain_id(rom_of(env_id))} takes {listed(own, 'and')}, without this family's preprocessing")
    return "".join(f"; {hint}" for hint in hints)


def game_of_memory(env_id: str) -> str | None:
    """The ROM of an id that asks for the memory of the machine, such as `Pong-ram-v4`; None for any other id."""
    name, is_memory, _ = env_id.removeprefix("ALE/").partition("-ram")
    return _roms_by_id().get(f"ALE/{name}") if is_memory else None


def memory_hint(rom: str) -> str:
    """How the memory of the machine is learned from."""
    return f"--env={_plain_id(rom)} --env_args='{MEMORY_ARGUMENTS}' gives the 128 bytes of its memory (RAM) as numbers"


def _plain_id(rom: str) -> str:
    """The id with which the family `gymnasium` makes a game as Gymnasium does."""
    return f"ale_py:ALE/{rom.title().replace('_', '')}-v5"


def rom_of(env_id: str) -> str:
    """Return the name of an id's ROM: `ms_pacman` for `MsPacmanNoFrameskip-v4`."""
    return _roms_by_id()[env_id]


def fire_action(spec: EnvSpec, config: EnvConfig) -> int | None:
    """Return the index of the FIRE action that starts every episode and life, or None if none is pressed.

    FIRE is pressed in every game whose action set has it, because the native environment decides so too. With
    `full_action_space` that is every game.
    """
    assert isinstance(spec.action, Discrete)
    meanings = spec.action.meanings
    return meanings.index("FIRE") if config.fire_reset and "FIRE" in meanings else None


@cache
def _roms_by_id() -> dict[str, str]:
    """All accepted ids with their ROMs, for the ROMs that ale-py ships. The usual id of a game comes first."""
    table: dict[str, str] = {}
    for rom in roms.get_all_rom_ids():
        if rom in _TWO_PLAYER_ROMS:
            continue
        name = rom.title().replace("_", "")
        for suffix in ("NoFrameskip", "Deterministic", ""):
            table.update({f"{name}{suffix}-v4": rom, f"{name}{suffix}-v0": rom})
        table.update({f"ALE/{name}-v5": rom, f"ALE/{name}": rom})
    return table


def _gymnasium_sticky_actions(env_id: str) -> float:
    """The probability with which Gymnasium's environment of this id repeats an action: 0 for `-v4`, otherwise 0.25."""
    return 0.0 if env_id.endswith("-v4") else 0.25


@cache
def _action_meanings(rom: str, full_action_space: bool) -> tuple[str, ...]:
    """Names of the actions of a ROM, in the order of their indices."""
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    path = roms.get_rom_path(rom)
    assert path is not None, f"ale-py listed the ROM {rom}"
    ale.loadROM(path)
    actions = ale.getLegalActionSet() if full_action_space else ale.getMinimalActionSet()
    return tuple(action.name for action in actions)


class AtariVector(VectorEnv):
    """N native environments of one game, with next-step autoreset."""

    def __init__(self, config: EnvConfig, num_envs: int, num_threads: int) -> None:
        self.spec = make_spec(config)
        self.num_envs = num_envs
        self._episodic_life = config.episodic_life
        self._fire = fire_action(self.spec, config)
        self._native: AtariVectorEnv | None = AtariVectorEnv(
            rom_of(config.env),
            num_envs,
            num_threads=num_threads,
            max_num_frames_per_episode=config.max_episode_frames,
            repeat_action_probability=config.sticky_actions,
            full_action_space=config.full_action_space,
            img_height=config.frame_height,
            img_width=config.frame_width,
            grayscale=config.grayscaling_frames,
            stack_num=config.frames_stacked,
            frameskip=config.skipped_frames,
            maxpool=True,
            noop_max=config.noop_threshold,
            episodic_life=False,  # a lost life ends nothing in the emulator: `step` reports it
            life_loss_info=False,
            reward_clipping=False,  # the learner clips; returns are counted raw
            use_fire_reset=config.fire_reset,
        )
        self._statistics = EpisodeStatistics(num_envs)
        self._lives = np.zeros(num_envs, dtype=np.int32)
        self._ended = np.zeros(num_envs, dtype=bool)
        self._press_fire = np.zeros(num_envs, dtype=bool)

    def reset(self, seed: int) -> np.ndarray:
        observations: np.ndarray
        observations, info = self._open().reset(seed=check_seed(seed, self.num_envs))
        self._statistics.clear()
        self._lives = info["lives"]
        self._ended = np.zeros(self.num_envs, dtype=bool)
        self._press_fire = np.zeros(self.num_envs, dtype=bool)
        return observations

    def step(self, actions: np.ndarray) -> Step:
        actions = self.spec.action.check(actions, self.num_envs)
        reset = self._ended  # next-step autoreset: an environment that ended in the last step ignores its action now
        action_used = ~(reset | self._press_fire)  # rows without the policy's own action get no policy gradient
        if self._fire is not None and self._press_fire.any():
            actions = np.where(self._press_fire, self._fire, actions)
        observations, native_rewards, terminated, truncated, info = self._open().step(actions)
        rewards = native_rewards.astype(np.float32)
        ended = terminated | truncated
        lives = info["lives"]
        # Some games play their last life at a count of zero, so reaching zero is no loss: the end of the game is reported
        # by the emulator. A new game may start with fewer lives than the old one had, so an autoreset is no loss either.
        life_lost = (lives < self._lives) & (lives > 0) & ~reset
        self._lives = lives
        self._ended = ended
        # Only a lost life needs this: at the start of a game the native environment presses FIRE by itself.
        if self._fire is not None:
            self._press_fire = life_lost
        if self._episodic_life:
            terminated = terminated | life_lost
        episode_return, episode_length = self._statistics.update(rewards, reset, ended)
        return Step(
            observations,
            rewards,
            terminated,
            truncated & ~terminated,  # a life lost at the time limit is an end: there is no value to bootstrap from
            reset,
            action_used,
            episode_return,
            episode_length,
        )

    def close(self) -> None:
        self._native = None  # its destructor ends its threads

    def _open(self) -> AtariVectorEnv:
        """The native environment. Raises RuntimeError after `close`."""
        if self._native is None:
            raise RuntimeError("wanted an open environment, got one that was closed")
        return self._native
