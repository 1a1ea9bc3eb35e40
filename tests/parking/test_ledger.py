"""The park's promises and its order, over all sequences of what can happen."""

from __future__ import annotations

import mmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swapd.parking.ledger import KEEP_FREE_BYTES, ParkLedger, disk_room, whole_pages

PAGE = mmap.PAGESIZE
NAMES = st.sampled_from("abcdef")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["promise", "keep", "remove", "touch", "withdraw"]), NAMES, st.integers(1, 6 * PAGE)
    ),
    max_size=40,
)


@given(STEPS, st.booleans())
def test_no_promise_is_given_that_could_not_be_kept(steps: list[tuple[str, str, int]], spills: bool) -> None:
    """B3: promises and what is in memory never exceed it together, or, with a folder, promises alone."""
    ledger = ParkLedger(10 * PAGE, spills=spills)
    promised: dict[str, int] = {}
    resident: list[str] = []
    for step, name, size in steps:
        pages = whole_pages(size)
        match step:
            case "promise":
                could = ledger.could_take(pages)
                assert ledger.promise(name, pages) is (could or name in promised)
                if could:
                    promised.setdefault(name, pages)
            case "keep" if name in promised and name not in resident:
                size = promised.pop(name)
                ledger.withdraw(name)
                while ledger.resident_bytes + size > ledger.capacity_bytes:
                    assert spills, "a promise without a folder needs nobody to leave"
                    victim = ledger.oldest(set(resident))
                    assert victim == resident[0], "the least recently used goes first"
                    ledger.remove(resident.pop(0))
                ledger.keep(name, size)
                resident.append(name)
            case "touch" if name in resident:
                ledger.touch(name)
                resident.remove(name)
                resident.append(name)
            case "remove":
                ledger.remove(name)
                resident = [one for one in resident if one != name]
            case "withdraw":
                ledger.withdraw(name)
                promised.pop(name, None)
        ledger.check_integrity()
        assert ledger.promised_bytes == sum(promised.values())
        assert ledger.sessions == set(resident)


def test_with_a_folder_a_full_memory_is_only_a_matter_of_time() -> None:
    """An owner's device must not end a session that has only to wait for the others on their way."""
    for spills in (True, False):
        ledger = ParkLedger(10 * PAGE, spills=spills)
        assert ledger.promise("move", 8 * PAGE)
        assert not ledger.could_take(4 * PAGE)
        assert ledger.could_take_soon(4 * PAGE) is spills
        assert not ledger.could_take_soon(11 * PAGE)


def test_who_is_being_copied_is_passed_over() -> None:
    ledger = ParkLedger(10 * PAGE, spills=True)
    for name in "abc":
        ledger.keep(name, PAGE)
    assert ledger.oldest({"b", "c"}) == "b"
    assert ledger.oldest(set()) is None


def test_memory_is_counted_in_whole_pages() -> None:
    assert [whole_pages(n) for n in (1, PAGE, PAGE + 1)] == [PAGE, PAGE, 2 * PAGE]


def test_an_overfull_ledger_is_noticed() -> None:
    ledger = ParkLedger(PAGE, spills=True)
    ledger.keep("a", 2 * PAGE)
    with pytest.raises(AssertionError):
        ledger.check_integrity()


def test_with_a_folder_memory_and_disk_together_are_the_limit() -> None:
    """B3: nobody is frozen for a place that neither of them has."""
    ledger = ParkLedger(10 * PAGE, spills=True)
    ledger.disk_room_bytes = 3 * PAGE
    ledger.keep("a", 8 * PAGE)
    assert ledger.promise("b", 5 * PAGE)
    assert not ledger.could_take(PAGE)
    assert not ledger.could_take_soon(PAGE)
    ledger.remove("a")  # on disk now
    ledger.disk_room_bytes = 0
    assert ledger.could_take(5 * PAGE)
    assert not ledger.could_take(6 * PAGE)


GIB = 1 << 30


@pytest.mark.parametrize(
    ("limit", "held", "total", "free", "room"),
    [
        (0, 0, 100 * GIB, 50 * GIB, 50 * GIB - KEEP_FREE_BYTES),
        (0, 0, 10 * GIB, GIB, GIB // 2),
        (0, 0, 10 * GIB, GIB // 4, 0),
        (8 * GIB, 5 * GIB, 100 * GIB, 50 * GIB, 3 * GIB),
        (8 * GIB, 9 * GIB, 100 * GIB, 50 * GIB, 0),
        (8 * GIB, 0, 100 * GIB, 2 * GIB, GIB),
    ],
)
def test_the_folder_leaves_some_of_its_disk_free(
    limit: int, held: int, total: int, free: int, room: int
) -> None:
    """B3, B40: the database may lie on it."""
    assert disk_room(limit, held, total, free) == room
