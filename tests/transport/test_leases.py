"""LeaseBook against a model: what is lent never overlaps, what comes back is whole again."""

from __future__ import annotations

import mmap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from swapd.messages.generation import Lease
from swapd.transport.leases import LeaseBook

PAGE = mmap.PAGESIZE
BASE = 4 * PAGE


def pages(size: int) -> int:
    return -(-size // PAGE)


class LeaseBookMachine(RuleBasedStateMachine):
    """B27, H96: grants, releases and repeated releases in any order."""

    CAPACITY_PAGES = 16
    REGIONS = 5
    leases = Bundle("leases")
    released = Bundle("released")

    def __init__(self) -> None:
        super().__init__()
        self.book = LeaseBook(self.CAPACITY_PAGES * PAGE + 17, base_offset=BASE, regions=self.REGIONS)
        self.active: list[Lease] = []
        self.newest = dict.fromkeys(range(self.REGIONS), 0)

    @rule(target=leases, size=st.integers(1, CAPACITY_PAGES * PAGE + 1))
    def grant(self, size: int) -> Lease | None:
        lease = self.book.grant(size)
        if lease is None:
            used = {p for x in self.active for p in range(x.offset // PAGE, x.offset // PAGE + pages(x.size))}
            first = BASE // PAGE
            free = "".join("#" if p in used else "." for p in range(first, first + self.CAPACITY_PAGES))
            assert len(self.active) == self.REGIONS or "." * pages(size) not in free
            return None
        assert self.book.fits(size)
        assert lease.size == size
        assert lease.offset % PAGE == 0
        assert lease.offset >= BASE
        assert lease.offset + size <= BASE + self.CAPACITY_PAGES * PAGE
        for other in self.active:
            assert lease.region != other.region
            assert lease.offset + lease.size <= other.offset or other.offset + other.size <= lease.offset
        assert lease.generation == self.newest[lease.region] + 1
        self.newest[lease.region] = lease.generation
        self.active.append(lease)
        return lease

    @rule(target=released, lease=consumes(leases))
    def release(self, lease: Lease | None) -> Lease | None:
        if lease is not None:
            self.book.release(lease)
            self.active.remove(lease)
        return lease

    @rule(lease=released)
    def release_again(self, lease: Lease | None) -> None:
        if lease is not None:
            before = self.book.free_bytes
            self.book.release(lease)
            assert self.book.free_bytes == before

    @invariant()
    def adds_up(self) -> None:
        self.book.check_integrity()
        assert self.book.active == len(self.active)
        lent = sum(pages(lease.size) for lease in self.active) * PAGE
        assert self.book.free_bytes == self.book.capacity_bytes - lent

    def teardown(self) -> None:
        for lease in self.active:
            self.book.release(lease)
        self.book.check_integrity()
        # Coalesced: the whole capacity can be lent as one piece again.
        assert self.book.grant(self.book.capacity_bytes) is not None


TestLeaseBook = LeaseBookMachine.TestCase
TestLeaseBook.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@given(st.integers(0, 40 * PAGE), st.integers(1, 41 * PAGE))
def test_fits_says_what_an_empty_arena_would_grant(capacity: int, size: int) -> None:
    book = LeaseBook(capacity, base_offset=0, regions=1)
    assert book.fits(size) == (book.grant(size) is not None)


def test_a_forged_lease_releases_nothing() -> None:
    """H96"""
    book = LeaseBook(8 * PAGE, base_offset=0, regions=2)
    lease = book.grant(PAGE)
    assert lease is not None
    book.release(Lease(lease.region, lease.generation + 1, lease.offset, lease.size))
    book.release(Lease(lease.region, lease.generation, lease.offset, 8 * PAGE))
    book.release(Lease(99, 1, 0, PAGE))
    assert book.active == 1


def test_integrity_names_an_overlap() -> None:
    book = LeaseBook(8 * PAGE, base_offset=0, regions=2)
    book.grant(PAGE)
    book._free[0] = book._free[0]._replace(offset=0)
    with pytest.raises(AssertionError):
        book.check_integrity()


@pytest.mark.parametrize(("capacity", "base", "regions"), [(-1, 0, 1), (PAGE, 1, 1), (PAGE, 0, -1)])
def test_a_book_that_makes_no_sense_is_refused(capacity: int, base: int, regions: int) -> None:
    with pytest.raises(ValueError, match="page-aligned"):
        LeaseBook(capacity, base_offset=base, regions=regions)


@pytest.mark.parametrize("size", [0, -1])
def test_an_empty_lease_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="one byte"):
        LeaseBook(PAGE, base_offset=0, regions=1).grant(size)


def test_no_region_left_means_waiting_even_with_room() -> None:
    book = LeaseBook(8 * PAGE, base_offset=0, regions=1)
    first = book.grant(PAGE)
    assert first is not None
    assert book.grant(PAGE) is None
    book.release(first)
    assert book.grant(PAGE) is not None
