"""Random command lines: flags with values of every kind, alone, combined, repeated and misspelt."""

from __future__ import annotations

import json
import random
from typing import Any

from learner.settings.other_names import FOREIGN, RENAMED
from learner.settings.schema import every_setting
from option_flags import OP_MODE
from replay.parameters import known_keys
from setting import MODES

SETTINGS = every_setting()
NAMES = (*SETTINGS, *RENAMED, *FOREIGN, OP_MODE)

TEXTS = (
    *("", " ", "auto", "true", "False", "yes", "None", "null", "latest", "best", "latest/best", ".", "..", "/", "~"),
    *("/dev/null", "/dev/zero", "/proc/self/mem", "/proc/self/environ", "nowhere/at/all", "a" * 300, "a/" * 3000, "--", "-"),
    *("\x00", "a\x00b", "\n", "line\nline", "\ud800", "日本語", "ß", "%s%n", "{}", "[]", "[[", '"', "'", "\\", "$HOME", ";ls"),
    *(
        "84,84",
        "0,0",
        "1,1",
        "8,8",
        "-1,84",
        "84",
        "84,84,3",
        ",",
        "84,",
        "1e3,1e3",
        "100000,100000",
        "99999999999999,1",
        "²,²",
    ),
    *("PongNoFrameskip-v4", "Catch-v0", "ALE/Pong-v5", "Combat-v4", "pong", "Catch-v1", "rmsprop", "mlp", "nature", "serial"),
)
NUMBERS = (
    *(
        "0",
        "-0",
        "1",
        "-1",
        "2",
        "7",
        "64",
        "255",
        "256",
        "4096",
        "65535",
        "65536",
        "65537",
        "1000000",
        "2147483647",
        "2147483648",
    ),
    *(
        "9223372036854775808",
        "9" * 25,
        "9" * 5000,
        "-" + "9" * 25,
        "1e3",
        "1e15",
        "1e400",
        "-1e400",
        "nan",
        "-nan",
        "inf",
        "-inf",
    ),
    *(
        "0.5",
        "0.0",
        "1.0",
        "1.0000001",
        "1e-9",
        "1e-320",
        "-0.5",
        ".5",
        "5.",
        "0x10",
        "010",
        "1_000",
        "1 000",
        " 5 ",
        "+5",
        "五",
        "1j",
    ),
)
SWITCHES = ("", "=true", "=false", "=True", "=1", "=0", "=2", "=yes", "=maybe", "=", "=None")


def fuzzed_flags(generator: random.Random) -> list[str]:
    """Return the arguments of one random command."""
    arguments = [_argument(generator) for _ in range(generator.choice((1, 1, 1, 2, 2, 3, 5)))]
    if generator.random() < 0.4:
        arguments.append(f"--replay_parameters={replay_parameters(generator)}")
    if generator.random() < 0.2:
        arguments.append(f"--op_mode={generator.choice(MODES)}")
    if generator.random() < 0.3:  # so that other flags are also tried with small frames
        arguments += ["--env=Catch-v0", "--network=mlp"]
    return generator.sample(arguments, len(arguments))


def _argument(generator: random.Random) -> str:
    name = generator.choice(NAMES)
    if generator.random() < 0.04:
        return generator.choice(TEXTS + NUMBERS)
    if generator.random() < 0.04:
        name = _misspelt(name, generator)
    if name in SETTINGS and SETTINGS[name].type is bool and generator.random() < 0.7:
        return f"--{generator.choice(('', 'no'))}{name}{generator.choice(SWITCHES)}"
    return f"{generator.choice(('--', '--', '--', '-'))}{name}={_value(name, generator)}"


def _value(name: str, generator: random.Random) -> str:
    choices = SETTINGS[name].choices() if name in SETTINGS else MODES if name == OP_MODE else ()
    if choices and generator.random() < 0.5:
        return generator.choice(choices)
    return generator.choice(generator.choice((TEXTS, NUMBERS, NUMBERS)))


def _misspelt(name: str, generator: random.Random) -> str:
    place = generator.randrange(len(name))
    return generator.choice((name[:place] + name[place + 1 :], name.upper(), name + "s", name[: place + 1], f"no{name}"))


def replay_parameters(generator: random.Random) -> str:
    """Return JSON of any kind: nonsense, known keys with wrong values, truncated or corrupted text."""
    text = json.dumps([_replay(generator) for _ in range(generator.choice((0, 1, 1, 2, 2, 3)))])
    roll = generator.random()
    if roll < 0.1:
        text = json.dumps(_nonsense(generator, 4))
    elif roll < 0.2:
        text = text[: generator.randrange(len(text))]
    elif roll < 0.25:
        text = "[" * 10 ** generator.randrange(1, 6)
    elif roll < 0.3:
        place = generator.randrange(len(text))
        text = text[:place] + generator.choice(TEXTS + NUMBERS) + text[place:]
    return text


def _replay(generator: random.Random) -> Any:
    if generator.random() < 0.1:
        return _nonsense(generator, 2)
    entry: dict[str, Any] = {
        "type": generator.choice(("queue", "circular", "standard", "elite", "attentive", "custom")),
        "capacity": generator.choice((1, 100, 1000)),
        "sample_ratio": generator.choice((1.0, 0.5, 0.5, 0.25, 1 / 3)),
    }
    known = {
        "sample_strategy": ("elite_sampling", "attentive_sampling"),
        "insert_strategy": ("elite_insertion",),
        "dist_function": ("ln_norm", "cos_dist", "kl_policy"),
        "retention": ("fifo", "reservoir"),
        "device": ("cpu", "cuda"),
        "elite_sampling_strategy": ("strategy1", 4),
        "memory": ("1GB", "3 MB", "0", "1e99GB", "-1GB", "GB"),
        "slots": (1, 4, 10**6),
        "uses": (1, 2, 10**6),
        "staggered": (True, False),
    }
    for _ in range(generator.choice((0, 0, 1, 2, 4))):
        key = generator.choice(sorted(known_keys()))
        entry[key] = generator.choice(known[key]) if key in known and generator.random() < 0.7 else _nonsense(generator, 1)
    if generator.random() < 0.1:
        entry.pop(generator.choice(sorted(entry)))
    return entry


def _nonsense(generator: random.Random, depth: int) -> Any:
    kind = generator.randrange(8 if depth else 6)
    if kind == 6:
        return [_nonsense(generator, depth - 1) for _ in range(generator.randrange(4))]
    if kind == 7:
        return {generator.choice(TEXTS): _nonsense(generator, depth - 1) for _ in range(generator.randrange(4))}
    plain = (None, True, generator.choice(TEXTS), generator.choice((0, -1, 1, 2, 10**30, -(10**400))), generator.random())
    return (*plain, generator.choice((float("nan"), float("inf"), 1e308, -0.0)))[kind]
