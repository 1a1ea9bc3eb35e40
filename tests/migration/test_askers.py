"""Who wants a worker empty: askers that come and go, and the words that they leave (B16)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swapd.errors import Code, SwapdError
from swapd.migration.askers import (
    MAX_REASON_CHARS,
    OWNERS,
    STRENGTH,
    Askers,
    asks,
    check_reason,
    joined,
    left,
    origin_of,
    reason_of,
    shortened,
)
from swapd.migration.drains import DrainBook
from swapd.views import Asker, DrainOrigin

OPERATOR = Asker("operator", 1.0, "a new driver")

origins = st.sampled_from(STRENGTH)
deeds = st.lists(st.tuples(st.booleans(), origins), max_size=12)


def test_every_origin_has_a_strength() -> None:
    assert sorted(STRENGTH) == sorted(DrainOrigin.__args__)


def test_a_take_back_that_joins_is_the_drains_origin_and_the_operator_stays_an_asker() -> None:
    """B16"""
    askers = joined((OPERATOR,), Asker("take_back_now", 2.0))
    assert origin_of(askers) == "take_back_now"
    assert [each.origin for each in askers] == ["operator", "take_back_now"]
    assert reason_of(askers) == "a new driver"


def test_the_same_asks_once() -> None:
    askers = joined((OPERATOR,), Asker("owner_pressure", 2.0, "first"))
    assert joined(askers, Asker("owner_pressure", 3.0, "second")) == askers


def test_pressure_that_becomes_a_take_back_is_one_owner() -> None:
    askers = joined((Asker("owner_pressure", 1.0),), Asker("take_back_now", 2.0))
    assert askers == (Asker("owner_pressure", 1.0, None, 2.0), Asker("take_back_now", 2.0))
    again = joined(askers, Asker("owner_pressure", 3.0))
    assert again == (Asker("take_back_now", 2.0, None, 3.0), Asker("owner_pressure", 3.0))


def test_who_asks_no_more_is_remembered_and_is_not_the_origin() -> None:
    askers = left(joined((OPERATOR,), Asker("take_back_now", 2.0)), OWNERS, 5.0)
    assert origin_of(askers) == "operator"
    assert askers[1] == Asker("take_back_now", 2.0, None, 5.0)
    assert not asks(askers, OWNERS)


@given(deeds)
def test_whatever_comes_and_goes_the_origin_is_the_strongest_that_asks(
    done: list[tuple[bool, DrainOrigin]],
) -> None:
    """B16: and what is kept does not grow with how often an owner comes and goes."""
    askers: Askers = (OPERATOR,)
    asking: set[DrainOrigin] = {"operator"}
    for at, (comes, origin) in enumerate(done):
        if comes:
            askers = joined(askers, Asker(origin, float(at)))
            asking = (asking - OWNERS if origin in OWNERS else asking) | {origin}
        else:
            askers = left(askers, {origin}, float(at))
            asking.discard(origin)
        assert {each.origin for each in askers if each.until is None} == asking
        if asking:
            assert origin_of(askers) == max(asking, key=STRENGTH.index)
        assert len(askers) <= len(STRENGTH)


def test_a_book_without_an_asker_that_is_left_changes_nothing() -> None:
    """It is to be cancelled then, and its record says who asked."""
    book = DrainBook("d", "a", "owner_pressure", 1.0, 60.0)
    assert not book.leave(OWNERS, 2.0)
    assert book.askers == (Asker("owner_pressure", 1.0),)
    assert book.join(Asker("operator", 3.0))
    assert book.leave(OWNERS, 4.0)
    assert book.origin == "operator"


@pytest.mark.parametrize("text", [None, "", "   "])
def test_nothing_said_is_no_reason(text: str | None) -> None:
    assert check_reason(text) is None


def test_a_reason_is_one_line_and_bounded() -> None:
    """B16"""
    assert check_reason("  RAM swap, über Mittag ") == "RAM swap, über Mittag"
    assert check_reason("x" * MAX_REASON_CHARS) == "x" * MAX_REASON_CHARS
    for text in ("x" * (MAX_REASON_CHARS + 1), "two\nlines", "\x1b[31mred", "nul\0", "\u202eright to left"):
        with pytest.raises(SwapdError) as refused:
            check_reason(text)
        assert refused.value.code is Code.INVALID_REQUEST


@given(st.text(max_size=3 * MAX_REASON_CHARS))
def test_our_own_words_always_fit(text: str) -> None:
    told = shortened(text)
    assert len(told) <= MAX_REASON_CHARS
    assert (check_reason(told) or "") == told.strip()
