"""`--replay_parameters` gives the configs of a mixture, or one error line with what was wanted and what came."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from replay import LARGEST_CAPACITY, REPLAYS, ReplayConfig, make_mixture, parse_replay_parameters
from replay.parameters import known_keys, types
from setting import listed
from tests.replay.support import CONTRACT, numbered

QUEUE = {"type": "queue", "capacity": 1, "sample_ratio": 1.0}
LONGEST_LINE = 400

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(
        ["queue", "standard", "type", 10**30, -(10**400), 1e308, float("nan"), float("inf"), -0.0, 0.5, "\ud800", "\n"]
    ),
)
ANY_KEY = st.one_of(st.sampled_from(["Type", *sorted(known_keys())]), st.text(max_size=5))
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(ANY_KEY, inner, max_size=4)), max_leaves=8
)
NEARLY_RIGHT = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.one_of(st.sampled_from(sorted(types())), ANYTHING),
            "capacity": st.one_of(st.integers(-1, 10**13), ANYTHING),
            "sample_ratio": st.one_of(st.sampled_from([0.25, 0.5, 1, 1.0]), ANYTHING),
        },
        optional={
            "sample_strategy": st.one_of(st.sampled_from(["elite_sampling", "attentive_sampling"]), ANYTHING),
            "insert_strategy": st.one_of(st.just("elite_insertion"), ANYTHING),
            "dist_function": st.one_of(st.sampled_from(["ln_norm", "kl_policy"]), ANYTHING),
            "elite_sampling_strategy": st.one_of(st.integers(0, 5), ANYTHING),
            "lambda_batch_multiplier": ANYTHING,
            "memory": st.one_of(st.sampled_from(["8GB", "1KiB"]), ANYTHING),
            "device": st.one_of(st.sampled_from(["cpu", "cuda"]), ANYTHING),
        },
    ),
    max_size=4,
)
WRITTEN = NEARLY_RIGHT.map(json.dumps)
CUT = st.tuples(WRITTEN, st.integers(0, 200)).map(lambda pair: pair[0][: pair[1]])


def entry(**changes: object) -> str:
    return json.dumps([{**QUEUE, **changes}])


def check(text: str) -> None:
    try:
        replays = parse_replay_parameters(text)
    except ValueError as error:
        line = str(error)
        assert line.startswith("replay_parameters")
        assert "wanted" in line
        assert "got" in line
        assert line.splitlines() == [line]
        assert len(line) <= LONGEST_LINE
    else:
        assert replays
        assert isinstance(replays, tuple)
        for replay in replays:
            assert isinstance(replay, ReplayConfig)
            assert replay.type in REPLAYS
            assert type(replay.capacity) is int
            assert type(replay.sample_ratio) is float
            assert 0 < replay.sample_ratio <= 1
        assert sum(replay.sample_ratio for replay in replays) == pytest.approx(1, abs=1e-3)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=60), ANYTHING.map(json.dumps), WRITTEN, CUT))
@example("")
@example("[]")
@example("[[]]")
@example("NaN")
@example("[" * 100_000)
@example("1" * 5000)
@example(entry(capacity=10**4000))
@example(entry(sample_ratio=10**4000))
@example(entry(type=["queue"]))
@example(entry(type={"a": 1}))
@example(entry(**{"x" * 5000: 1}))
@example('[{"type": "queue", "capacity": 1e400, "sample_ratio": 1}]')
@example('[{"type": "queue", "capacity": ' + "[" * 900 + "]" * 900 + ', "sample_ratio": 1}]')
@example("[\n" + json.dumps(QUEUE) + "\n,\n3]")
@example('{"a":\n\n1}')
@example('[{"type": "queue",\n"capacity": 1,\n')
def test_any_text_gives_replays_or_one_error_line(text: str) -> None:
    check(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"type": "lifo"},
            rf"parameters\[0\]: wanted type {listed(sorted(types()))}, got 'lifo'",
        ),
        ({"type": None}, f"wanted type {listed(sorted(types()))}, got None"),
        ({"capacity": 0}, "wanted capacity as a whole number of trajectories from 1 to .*, got 0"),
        ({"capacity": 1.0}, "wanted capacity .* got 1.0"),
        ({"capacity": True}, "wanted capacity .* got True"),
        ({"capacity": "5"}, "wanted capacity .* got '5'"),
        ({"capacity": LARGEST_CAPACITY + 1}, "wanted capacity .* got 1000000000001"),
        ({"sample_ratio": 0}, r"wanted sample_ratio as a number in \(0, 1\], got 0"),
        ({"sample_ratio": 1.01}, "wanted sample_ratio .* got 1.01"),
        ({"sample_ratio": float("nan")}, "wanted sample_ratio .* got nan"),
        ({"sample_ratio": float("inf")}, "wanted sample_ratio .* got inf"),
        ({"sample_ratio": True}, "wanted sample_ratio .* got True"),
        ({"sample_ratio": 0.5}, "wanted sample_ratio values that sum to 1, got a sum of 0.5"),
        ({"sample_rate": 1.0}, r"wanted known keys \(capacity, memory, sample_ratio, steps, type\), got 'sample_rate'"),
    ],
)
def test_a_wrong_entry_is_named_with_what_was_wanted(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_replay_parameters(entry(**changes))


@pytest.mark.parametrize("text", ["[]", "{}", "null", '"queue"', "3"])
def test_anything_but_a_list_of_replays_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^replay_parameters: wanted a JSON list with at least one replay, got "):
        parse_replay_parameters(text)


@pytest.mark.parametrize("missing", ["type", "sample_ratio"])
def test_a_missing_key_is_named(missing: str) -> None:
    text = json.dumps([QUEUE, {name: value for name, value in QUEUE.items() if name != missing}])
    with pytest.raises(ValueError, match=rf"replay_parameters\[1\]: .*'{missing}'"):
        parse_replay_parameters(text)


@pytest.mark.parametrize("kind", ["queue", "standard", "elite", "attentive"])
def test_memory_may_replace_capacity(kind: str) -> None:
    (replay,) = parse_replay_parameters(json.dumps([{"type": kind, "memory": "1.5GB", "sample_ratio": 1}]))
    assert (replay.capacity, replay.memory) == (0, 1_500_000_000)


@pytest.mark.parametrize("kind", ["standard", "elite", "attentive", "custom"])
def test_every_replaying_kind_takes_a_device(kind: str) -> None:
    more = {"sample_strategy": "elite_sampling"} if kind == "custom" else {}
    given = {"type": kind, "capacity": 9, "sample_ratio": 1, **more}
    assert [parse_replay_parameters(json.dumps([{**given, **device}]))[0].device for device in ({}, {"device": "cuda"})] == [
        "cpu",
        "cuda",
    ]
    for value in ("tpu", "cuda:1", None, 0, ["cuda"]):
        with pytest.raises(ValueError, match=r"^replay_parameters\[0\]: wanted device cpu or cuda, got .*$"):
            parse_replay_parameters(json.dumps([{**given, "device": value}]))


def test_a_queue_takes_no_device() -> None:
    with pytest.raises(ValueError, match=r"^replay_parameters\[0\]: .*queue.*, got device$"):
        parse_replay_parameters(entry(device="cuda"))


@pytest.mark.parametrize(
    ("changes", "got"),
    [
        ({"capacity": 1, "memory": "1GB"}, "capacity and memory"),
        ({"steps": 1, "capacity": 1}, "capacity and steps"),
        ({}, "none"),
    ],
)
def test_one_of_capacity_steps_and_memory_is_wanted(changes: dict[str, object], got: str) -> None:
    text = json.dumps([{"type": "standard", "sample_ratio": 1, **changes}])
    with pytest.raises(ValueError, match=rf"^replay_parameters\[0\]: wanted either capacity, steps or memory, got {got}$"):
        parse_replay_parameters(text)


@pytest.mark.parametrize(
    "value", [8, 8e9, None, True, "", "8", "8gb", "GB", "-1GB", "1e3MB", "0KB", "2000TB", ["8GB"], "8GB\n"]
)
def test_anything_but_a_size_is_refused(value: object) -> None:
    text = json.dumps([{"type": "standard", "sample_ratio": 1, "memory": value}])
    with pytest.raises(ValueError, match=r"^replay_parameters\[0\]: wanted memory as a size such as .*, got ") as caught:
        parse_replay_parameters(text)
    assert len(str(caught.value).splitlines()) == 1


def test_limits_are_accepted() -> None:
    assert parse_replay_parameters(entry(capacity=LARGEST_CAPACITY))[0].capacity == LARGEST_CAPACITY
    assert parse_replay_parameters(entry(sample_ratio=1))[0] == ReplayConfig("queue", 1, 1.0)


def test_three_digits_are_enough_for_a_ratio_of_one_third() -> None:
    third = {**QUEUE, "sample_ratio": 0.333}
    assert len(parse_replay_parameters(json.dumps([third] * 3))) == 3
    with pytest.raises(ValueError, match="sum to 1, got a sum of 0.99"):
        parse_replay_parameters(json.dumps([{**QUEUE, "sample_ratio": 0.33}] * 3))


def test_the_mixture_of_the_earlier_platform_works_with_ten_columns() -> None:
    text = (
        '[{"type": "queue", "capacity": 1, "sample_ratio": 0.5}, {"type": "standard", "capacity": 1000, "sample_ratio": 0.5}]'
    )
    mixture = make_mixture(parse_replay_parameters(text), CONTRACT, 10, 0.01, np.random.default_rng(0))
    trajectory = numbered(1)
    for _ in range(5):
        inserted = 0
        while not mixture.can_sample():
            assert mixture.can_insert()
            mixture.insert(trajectory)
            inserted += 1
            assert inserted <= 10
        batch = mixture.sample()
        assert batch.is_replay.tolist() == [False] * 5 + [True] * 5


def test_every_key_becomes_a_setting() -> None:
    settings = {
        "dist_function": "ln_norm",
        "p": 3.0,
        "insert_strategy": "elite_insertion",
        "elite_sampling_strategy": "strategy4",
        "elite_batch_size": 7,
        "lambda_batch_multiplier": 2.5,
        "annealing_factor": 0.5,
    }
    assert parse_replay_parameters(entry(type="elite", **settings)) == (ReplayConfig("elite", 1, 1.0, **settings),)  # type: ignore[arg-type]
    assert parse_replay_parameters(entry(type="standard", retention="reservoir"))[0].retention == "reservoir"


def test_every_key_is_a_field_of_the_settings() -> None:
    assert set(ReplayConfig.__dataclass_fields__) == known_keys() - {"sample_strategy"} | {"compress"}


@pytest.mark.parametrize(
    ("strategies", "kind", "insert_strategy"),
    [
        ({"sample_strategy": "elite_sampling"}, "elite", None),
        ({"sample_strategy": "attentive_sampling"}, "attentive", None),
        ({"insert_strategy": "elite_insertion"}, "standard", "elite_insertion"),
        ({"sample_strategy": "elite_sampling", "insert_strategy": "elite_insertion"}, "elite", "elite_insertion"),
        ({"sample_strategy": "attentive_sampling", "insert_strategy": "elite_insertion"}, "attentive", "elite_insertion"),
    ],
)
def test_a_custom_replay_is_the_kind_that_its_strategies_name(
    strategies: dict[str, str], kind: str, insert_strategy: str | None
) -> None:
    (replay,) = parse_replay_parameters(entry(type="custom", **strategies))
    assert replay == ReplayConfig(kind, 1, 1.0, insert_strategy=insert_strategy)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_strategy_may_be_given_by_its_number(number: int) -> None:
    replay = parse_replay_parameters(entry(type="elite", elite_sampling_strategy=number))[0]
    assert replay.elite_sampling_strategy == f"strategy{number}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"p": 2}, r"queue replay \(capacity, memory, sample_ratio, steps, type\), got p$"),
        ({"type": "standard", "sample_strategy": "elite_sampling"}, "standard replay .*, got sample_strategy"),
        ({"type": "elite", "retention": "reservoir"}, "elite replay .*, got retention"),
        ({"type": "elite", "elite_batch_size": 3}, "elite replay .*, got elite_batch_size"),
        ({"type": "attentive", "elite_sampling_strategy": 1}, "attentive replay .*, got elite_sampling_strategy"),
        (
            {"type": "custom", "insert_strategy": "elite_insertion", "lambda_batch_multiplier": 2},
            "custom replay .*, got lambda_batch_multiplier",
        ),
        ({"type": "custom"}, "wanted sample_strategy or insert_strategy .*, got neither"),
        ({"type": "elite", "dist_function": "cos_dist", "p": 2}, "wanted p only with dist_function ln_norm, .* cos_dist"),
        ({"type": "elite", "dist_function": "l2"}, "wanted dist_function ln_norm, cos_dist, kl_div or kl_policy, got 'l2'"),
        ({"type": "elite", "p": 0.5}, r"wanted p as a number in \[1, 1000000\], got 0.5"),
        ({"type": "elite", "p": float("nan")}, "wanted p as .* got nan"),
        ({"type": "elite", "elite_sampling_strategy": 5}, "strategy1, .* or strategy4, or its number 1 to 4, got 5"),
        ({"type": "elite", "elite_sampling_strategy": True}, "wanted elite_sampling_strategy strategy1, .* got True"),
        ({"type": "elite", "elite_sampling_strategy": 1.0}, "wanted elite_sampling_strategy strategy1, .* got 1.0"),
        ({"type": "elite", "lambda_batch_multiplier": 0.9}, "wanted lambda_batch_multiplier as .* got 0.9"),
        ({"type": "elite", "lambda_batch_multiplier": "6"}, "wanted lambda_batch_multiplier as .* got '6'"),
        ({"type": "elite", "annealing_factor": 0}, "wanted annealing_factor as .* got 0"),
        ({"type": "elite", "annealing_factor": float("inf")}, "wanted annealing_factor as .* got inf"),
        ({"type": "elite", "insert_strategy": None}, "wanted insert_strategy elite_insertion, got None"),
        ({"type": "elite", "insert_strategy": "elite_insertion", "elite_batch_size": 0}, "wanted elite_batch_size .* got 0"),
        ({"type": "standard", "retention": "lifo"}, "wanted retention fifo or reservoir, got 'lifo'"),
        ({"type": "standard", "hindsight": -1}, "wanted hindsight as .*, got -1"),
        ({"type": "queue", "hindsight": 4}, "queue replay .*, got hindsight"),
        ({"type": "standard", "hindsight": 4, "retention": "reservoir"}, "wanted retention fifo with hindsight, got reservoir"),
        ({"type": "prioritised", "hindsight": 4, "device": "cuda"}, "wanted device cpu with hindsight, got cuda"),
        ({"type": "standard", "reward_function": "a:b"}, "wanted reward_function only with hindsight"),
        ({"type": "standard", "hindsight": 4, "reward_function": "a"}, "wanted reward_function as module:function, got 'a'"),
        ({"type": "custom", "sample_strategy": "elite"}, "wanted sample_strategy elite_sampling or attentive_sampling, got"),
    ],
)
def test_an_invalid_setting_is_refused_in_one_line(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        parse_replay_parameters(entry(**changes))
    assert len(str(caught.value).splitlines()) == 1
    assert str(caught.value).startswith("replay_parameters[0]: ")


def test_a_key_that_occurs_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="'capacity' occurs twice"):
        parse_replay_parameters('[{"type": "queue", "capacity": 1, "capacity": 2, "sample_ratio": 1.0}]')
