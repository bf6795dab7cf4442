"""The Atari family: ids, spec and the native vector environment of ale-py behind our interface.

An id names a game and nothing else. `PongNoFrameskip-v4`, `Pong-v0` and `ALE/Pong-v5` are one and the same environment
here: frame skip, sticky actions and action set come from `EnvConfig` alone, whatever an id's suffix means elsewhere.

Natively every environment plays whole games. A lost life is seen in the number of lives: it ends nothing, and becomes
`terminated` for the learner if `episodic_life` asks for it. After a lost life FIRE is pressed for one step in place of
the policy's action (`fire_reset`): some games serve the next ball only then, and a greedy policy may never do it.

The observation of a step that ends a game does not show the emulator frame in which it ended, but the frames just
before: so the native environment of ale-py 0.12.1 does it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import ale_py
import numpy as np
from ale_py import roms
from ale_py.vector_env import AtariVectorEnv

from wrappers.atari_protocols import PROTOCOLS, preprocessing, protocol_settings, protocol_text
from wrappers.episodes import EpisodeStatistics, check_actions, check_seed
from wrappers.spec import Display, EnvConfig, EnvDescription, EnvSpec, Step, VectorEnv

EMULATOR_FRAMES_PER_SECOND = 60
TELEVISION = 4 / 3  # width of an Atari picture over its height: its pixels are wider than they are high
TELEVISION_ENLARGEMENT = 3

# Their ROMs need two players: ale-py ends the whole process when one is loaded.
_TWO_PLAYER_ROMS = frozenset({"combat", "joust", "maze_craze", "warlords"})


def known_ids() -> Mapping[str, str]:
    """Every id of the family, and the usual one of the same game."""
    usual: dict[str, str] = {}
    for env_id, rom in _roms_by_id().items():
        usual.setdefault(rom, env_id)
    return {env_id: usual[rom] for env_id, rom in _roms_by_id().items()}


def matches(env_id: str) -> bool:
    """Whether `env_id` names an Atari game."""
    return env_id in _roms_by_id()


def make_spec(config: EnvConfig) -> EnvSpec:
    """Spec of an Atari game; actions are the game's own, or all 18 with `full_action_space`."""
    meanings = _action_meanings(rom_of(config.env), config.full_action_space)
    size = (config.frame_height, config.frame_width)
    return EnvSpec(
        env=config.env,
        frame_shape=size if config.grayscaling_frames else (*size, 3),
        frame_dtype="uint8",
        frames_stacked=config.frames_stacked,
        action_count=len(meanings),
        action_meanings=meanings,
        frames_per_step=config.skipped_frames,
    )


def make_vector(config: EnvConfig, num_envs: int, num_threads: int) -> VectorEnv:
    """Native environments; the same bytes for any number of threads."""
    return AtariVector(config, num_envs, num_threads)


def make_single(config: EnvConfig, render_mode: str | None) -> VectorEnv:
    """One environment that can be rendered."""
    from wrappers.atari_single import AtariSingle  # OpenCV is loaded only where a screen is wanted, never by a worker

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


def rom_of(env_id: str) -> str:
    """Name of the ROM that an id asks for: `ms_pacman` for `MsPacmanNoFrameskip-v4`."""
    return _roms_by_id()[env_id]


def fire_action(spec: EnvSpec, config: EnvConfig) -> int | None:
    """Index of the FIRE that starts an episode and a life, None where the config or the game has none.

    Every game with FIRE in its action set counts as one that needs it, as the native environment decides too; with
    `full_action_space` that is every game.
    """
    return spec.action_meanings.index("FIRE") if config.fire_reset and "FIRE" in spec.action_meanings else None


@cache
def _roms_by_id() -> dict[str, str]:
    """Every accepted id and its ROM, built from the ROMs that ale-py ships; the usual id of a game comes first."""
    table: dict[str, str] = {}
    for rom in roms.get_all_rom_ids():
        if rom in _TWO_PLAYER_ROMS:
            continue
        name = rom.title().replace("_", "")
        for suffix in ("NoFrameskip", "Deterministic", ""):
            table.update({f"{name}{suffix}-v4": rom, f"{name}{suffix}-v0": rom})
        table.update({f"ALE/{name}-v5": rom, f"ALE/{name}": rom})
    return table


@cache
def _action_meanings(rom: str, full_action_space: bool) -> tuple[str, ...]:
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    path = roms.get_rom_path(rom)
    assert path is not None, f"ale-py listed the ROM {rom}"
    ale.loadROM(path)
    actions = ale.getLegalActionSet() if full_action_space else ale.getMinimalActionSet()
    return tuple(action.name for action in actions)


class AtariVector(VectorEnv):
    """N native environments of one game."""

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
            episodic_life=False,
            life_loss_info=False,
            reward_clipping=False,
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
        actions = check_actions(actions, self.num_envs, self.spec.action_count)
        reset = self._ended
        action_used = ~(reset | self._press_fire)
        if self._fire is not None and self._press_fire.any():
            actions = np.where(self._press_fire, self._fire, actions)
        observations, native_rewards, terminated, truncated, info = self._open().step(actions)
        rewards = native_rewards.astype(np.float32)
        ended = terminated | truncated
        lives = info["lives"]
        life_lost = (lives < self._lives) & (lives > 0) & ~reset
        self._lives = lives
        self._ended = ended
        if self._fire is not None:
            self._press_fire = life_lost
        if self._episodic_life:
            terminated = terminated | life_lost
        episode_return, episode_length = self._statistics.update(rewards, reset, ended)
        return Step(
            observations,
            rewards,
            terminated,
            truncated & ~terminated,
            reset,
            action_used,
            episode_return,
            episode_length,
        )

    def close(self) -> None:
        self._native = None  # its threads end with it

    def _open(self) -> AtariVectorEnv:
        if self._native is None:
            raise RuntimeError("wanted an open environment, got one that was closed")
        return self._native
