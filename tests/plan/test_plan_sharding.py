from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm121.plan.components import costs
from sm121.plan.sharding import Shard, with_guesses

if TYPE_CHECKING:
    import random


def test_shards_are_read() -> None:
    assert Shard.parse("2/5") == Shard(2, 5)
    assert Shard.parse("all") is None


@pytest.mark.parametrize(
    "text", ["", "0/3", "4/3", "1", "1/", "/2", "1/0", "-1/2", "1/2/3", "a/b", "1/257", "1 / 2"]
)
def test_what_is_no_shard(text: str) -> None:
    with pytest.raises(ValueError, match=r"wanted|written"):
        Shard.parse(text)


@given(
    st.dictionaries(st.text(min_size=1, max_size=6), st.floats(0, 1000), max_size=40),
    st.integers(1, 9),
    st.randoms(),
)
def test_every_key_is_in_one_shard_whatever_the_order(
    known: dict[str, float], count: int, order: random.Random
) -> None:
    parts = [Shard(number, count).of(known) for number in range(1, count + 1)]
    assert sorted(key for part in parts for key in part) == sorted(known)
    items = list(known.items())
    order.shuffle(items)
    assert parts == [Shard(number, count).of(dict(items)) for number in range(1, count + 1)]


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_measured_costs_are_split_evenly(count: int) -> None:
    """No shard takes longer than the bound that no split can beat, the longest file apart, by more than a tenth."""
    known = costs("0.33.0").seconds
    loads = [sum(known[key] for key in Shard(number, count).of(known)) for number in range(1, count + 1)]
    bound = max(sum(known.values()) / count, *known.values())
    assert max(loads) <= 1.1 * bound


def test_what_was_never_measured_costs_the_median() -> None:
    assert with_guesses(["a", "b", "c", "d"], {"a": 1.0, "b": 9.0, "c": 5.0}) == {
        "a": 1.0,
        "b": 9.0,
        "c": 5.0,
        "d": 5.0,
    }
    assert with_guesses(["a"], {}) == {"a": 1.0}
