"""The arithmetic of a cpu device, exactly."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swapd.devices.cpu_rules import (
    CoreTicks,
    Picture,
    ProcessTicks,
    Spent,
    ThreadTicks,
    share,
    spent_alone,
    spent_by_trees,
)

NOBODY = Spent({}, frozenset(), frozenset())
SINCE = 1000


def core(**ticks: int) -> CoreTicks:
    return CoreTicks(**{**dict.fromkeys(CoreTicks._fields, 0), **ticks})


def picture(*cores: CoreTicks, first: int = 0) -> Picture:
    return Picture(0.0, 0, dict(enumerate(cores, first)), {}, {})


def process(
    own: int = 0,
    *,
    parent: int = 1,
    start: int = 100,
    children: int = 0,
    core: int = 0,
    threads: Mapping[int, tuple[int, int]] | None = None,
) -> ProcessTicks:
    made = {tid: ThreadTicks(*each) for tid, each in (threads or {}).items()}
    return ProcessTicks(parent, start, own, children, core, made)


def spent(by_core: Mapping[int, float]) -> Spent:
    return Spent(by_core, frozenset(), frozenset())


def test_a_reading_is_the_owners_part_of_the_capacity() -> None:
    """R3: the lender at 95 %, the owner at 3 % gives 3."""
    before, after = picture(core()), picture(core(user=98, idle=2))
    shares = share(before, after, (0,), spent({0: 95}), NOBODY)
    assert shares == (1, 3.0, 98.0, 95.0, 0.0)


def test_ignored_processes_are_subtracted_too() -> None:
    """R3."""
    before, after = picture(core()), picture(core(user=98, idle=2))
    assert share(before, after, (0,), spent({0: 50}), spent({0: 30})) == (1, 18.0, 98.0, 50.0, 30.0)


@pytest.mark.parametrize(
    ("kind", "busy"),
    [
        ("user", True),
        ("nice", True),
        ("system", True),
        ("irq", True),
        ("softirq", True),
        ("idle", False),
        ("iowait", False),
    ],
)
def test_waiting_is_idle_and_all_else_is_work(kind: str, busy: bool) -> None:
    after = picture(core(**{kind: 100}))
    assert share(picture(core()), after, (0,), NOBODY, NOBODY).owner_pct == (100.0 if busy else 0.0)


def test_a_device_is_all_its_cores_and_no_others() -> None:
    before = picture(core(), core(), core())
    after = picture(core(user=100), core(idle=100), core(user=100))
    assert share(before, after, (0, 1), NOBODY, NOBODY).owner_pct == 50.0
    assert share(before, after, (1,), spent({0: 100.0}), NOBODY).owner_pct == 0.0


def test_a_lender_that_moved_between_the_devices_cores_is_still_subtracted() -> None:
    """Where it ran last is all that is known: 60 ticks there, 40 on the other core before."""
    before = picture(core(), core())
    after = picture(core(user=40, idle=60), core(user=60, idle=40))
    assert share(before, after, (0, 1), spent({1: 100}), NOBODY).owner_pct == 0.0


def test_lenders_never_make_a_reading_negative_nor_over_100() -> None:
    before, after = picture(core()), picture(core(user=10, idle=90))
    shares = share(before, after, (0,), spent({0: 300}), NOBODY)
    assert (shares.owner_pct, shares.lender_pct) == (0.0, 100.0)


def test_counters_that_go_back_do_not_give_time() -> None:
    """proc(5): idle and iowait may."""
    before, after = picture(core(user=10, iowait=50, idle=10)), picture(core(user=60, iowait=40, idle=60))
    assert share(before, after, (0,), NOBODY, NOBODY).owner_pct == 50.0


def test_cores_that_are_offline_do_not_count() -> None:
    before, after = picture(core()), picture(core(user=50, idle=50))
    assert share(before, after, (0, 7), NOBODY, NOBODY).owner_pct == 50.0
    assert share(before, after, (7,), NOBODY, NOBODY) == (0, None, None, None, None)
    assert share(picture(core(), first=7), after, (0, 7), NOBODY, NOBODY).cores == 0


def test_a_core_that_the_hypervisor_kept_gives_no_share() -> None:
    assert share(picture(core()), picture(core(user=9)), (0,), NOBODY, NOBODY) == (1, None, None, None, None)
    assert share(picture(core()), picture(core(user=10)), (0,), NOBODY, NOBODY).owner_pct == 100.0


def test_a_process_counts_for_the_core_it_runs_on() -> None:
    found = spent_by_trees({5: process(100, core=1)}, {5: process(160, core=1)}, SINCE)
    assert found == ({1: 60.0}, frozenset(), frozenset())


def test_each_thread_counts_for_the_core_it_ran_on_last() -> None:
    before = process(100, threads={5: (10, 0), 6: (90, 1)})
    after = process(160, threads={5: (20, 0), 6: (120, 1), 7: (20, 2)})
    assert spent_by_trees({5: before}, {5: after}, SINCE).by_core == {0: 10.0, 1: 30.0, 2: 20.0}


def test_the_processs_own_total_is_right_where_its_threads_are_rounded() -> None:
    before = process(100, threads={5: (50, 0), 6: (50, 1)})
    after = process(164, threads={5: (80, 0), 6: (80, 1)})
    assert spent_by_trees({5: before}, {5: after}, SINCE).by_core == {0: 32.0, 1: 32.0}


def test_threads_that_ended_count_for_the_core_they_ran_on() -> None:
    before = process(100, threads={5: (50, 0), 6: (50, 1)})
    after = process(170, threads={5: (60, 0)})
    assert spent_by_trees({5: before}, {5: after}, SINCE).by_core == {0: 10.0, 1: 60.0}


def test_a_process_that_started_meanwhile_counts_whole() -> None:
    found = spent_by_trees({}, {5: process(40, start=SINCE, core=3)}, SINCE)
    assert found == ({3: 40.0}, frozenset(), frozenset())


def test_a_lender_of_which_the_earlier_time_is_not_known_makes_its_cores_untold() -> None:
    """A worker that a restarted service has just found would look like its owner's demand."""
    found = spent_by_trees({}, {5: process(40, start=SINCE - 1, core=3)}, SINCE)
    assert found == ({}, frozenset(), frozenset({3}))
    idle = spent_by_trees({}, {5: process(0, start=SINCE - 1, core=3)}, SINCE)
    assert idle == NOBODY


def test_a_child_that_ended_counts_through_the_parent_that_waited() -> None:
    """Its last 30 ticks are known by then; nothing is the owner's."""
    before = {5: process(10), 6: process(70, parent=5, core=1)}
    after = {5: process(15, children=100)}
    assert spent_by_trees(before, after, SINCE) == ({0: 5.0, 1: 30.0}, frozenset(), frozenset())


def test_a_grandchild_that_ended_with_its_parent_counts_as_well() -> None:
    before = {5: process(10), 6: process(70, parent=5, core=1), 7: process(20, parent=6, core=1)}
    after = {5: process(10, children=100)}
    assert spent_by_trees(before, after, SINCE) == ({0: 0.0, 1: 10.0}, frozenset(), frozenset())


def test_children_that_came_and_went_unseen_count_for_their_parents_core() -> None:
    found = spent_by_trees({5: process(10, core=2)}, {5: process(10, children=25, core=2)}, SINCE)
    assert found == ({2: 25.0}, frozenset(), frozenset())


def test_a_lender_that_ended_and_was_waited_for_by_nobody_makes_its_cores_untold() -> None:
    """What it spent last would look like its owner's demand."""
    before = {6: process(70, parent=1, threads={6: (50, 1), 7: (20, 2), 8: (0, 3)})}
    assert spent_by_trees(before, {}, SINCE).lost == {1, 2}
    under = {5: process(10), **before}
    under[6] = process(70, parent=5, core=1)
    assert spent_by_trees(under, {5: process(10, children=69)}, SINCE).lost == {1}
    assert spent_by_trees({6: process(0)}, {}, SINCE).lost == frozenset()


def test_a_pid_that_came_back_is_another_process() -> None:
    found = spent_by_trees({5: process(900, core=1)}, {5: process(4, start=SINCE + 5)}, SINCE)
    assert found == ({0: 4.0}, frozenset({1}), frozenset())


def test_an_ignored_process_counts_without_its_children_and_not_after_its_end() -> None:
    """D23: a name means that process; what cannot be told is the owner's."""
    before = {5: process(10), 6: process(50)}
    after = {5: process(30, children=500), 7: process(99, start=SINCE - 1), 8: process(3, start=SINCE)}
    assert spent_alone(before, after, SINCE) == ({0: 23.0}, frozenset(), frozenset())


TICKS = st.integers(0, 500)


@given(
    old=st.dictionaries(st.integers(5, 12), st.tuples(TICKS, st.integers(0, 3)), max_size=6),
    more=st.dictionaries(st.integers(5, 12), st.tuples(TICKS, st.integers(0, 3)), max_size=6),
    rounding=st.integers(-5, 5),
)
def test_no_tick_is_lost_or_made_up_between_threads(
    old: dict[int, tuple[int, int]], more: dict[int, tuple[int, int]], rounding: int
) -> None:
    """Whatever the threads did: the cores' sum is what the process says of itself."""
    grown = {tid: (old.get(tid, (0, 0))[0] + ticks, core) for tid, (ticks, core) in more.items()}
    own = max(0, sum(ticks for ticks, _ in more.values()) + rounding)
    found = spent_by_trees({5: process(1000, threads=old)}, {5: process(1000 + own, threads=grown)}, SINCE)
    assert sum(found.by_core.values()) == pytest.approx(own)


@given(st.lists(TICKS, min_size=7, max_size=7), st.floats(0, 5000), st.floats(0, 5000))
def test_a_share_is_always_between_0_and_100(ticks: list[int], lent: float, passed: float) -> None:
    shares = share(picture(core()), picture(CoreTicks(*ticks)), (0,), spent({0: lent}), spent({0: passed}))
    for value in shares[1:]:
        assert value is None or 0.0 <= value <= 100.0
