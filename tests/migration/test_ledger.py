"""Capacity: nothing is promised twice, and what is taken back is there again (H46, H49)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from swapd.migration.ledger import CapacityLedger, blocks_for


@given(tokens=st.integers(0, 10_000), block_tokens=st.integers(1, 64))
def test_blocks_are_counted_with_the_partial_one(tokens: int, block_tokens: int) -> None:
    """H46"""
    blocks = blocks_for(tokens, block_tokens)
    assert (blocks - 1) * block_tokens < tokens <= blocks * block_tokens or tokens == blocks == 0


def ledger(usable: int = 10, slots: int = 3) -> CapacityLedger:
    made = CapacityLedger()
    made.set_worker("w", usable, slots, 4)
    return made


def test_a_budget_fits_to_the_last_block_and_not_one_token_more() -> None:
    """H46: the boundary."""
    assert ledger().charge("w", "s", 40)
    full = ledger()
    assert not full.charge("w", "s", 41)
    assert full.total_charges() == 0


def test_sessions_fit_to_the_last_slot() -> None:
    """H41: `max_num_seqs` bounds them as the blocks do."""
    made = ledger()
    assert [made.charge("w", f"s{i}", 4) for i in range(4)] == [True, True, True, False]


def test_a_repeated_charge_or_free_changes_nothing() -> None:
    """H46, H49: no promise is counted twice, none is taken back twice."""
    made = ledger(usable=10, slots=1)
    assert made.charge("w", "s", 40)
    assert made.charge("w", "s", 40)
    capacity = made.worker("w")
    assert capacity is not None
    assert capacity.committed == 10
    made.free("w", "s")
    made.free("w", "s")
    made.free("nobody", "s")
    assert (capacity.committed, made.total_charges()) == (0, 0)


def test_an_unknown_worker_has_no_room() -> None:
    made = CapacityLedger()
    assert not made.charge("w", "s", 1)
    made.restore("w", "s", 1)
    assert made.total_charges() == 0


def test_what_a_worker_is_known_to_hold_is_charged_without_asking() -> None:
    """H144: after a restart it is there already, even if the worker has less room now."""
    made = ledger(usable=2)
    made.restore("w", "s", 40)
    assert not made.charge("w", "t", 1)


def test_a_new_incarnation_keeps_charges_that_someone_has_still_to_take_back() -> None:
    """H49: a move or a replay under way frees what it charged, whatever became of the worker."""
    made = ledger()
    assert made.charge("w", "s", 4)
    made.set_worker("w", 20, 3, 4)
    assert made.total_charges() == 1
    made.forget("w")
    assert made.total_charges() == 0


def test_a_budget_that_no_empty_worker_could_hold_is_told_apart_from_a_full_one() -> None:
    """H46"""
    made = ledger()
    assert made.charge("w", "s", 40)
    capacity = made.worker("w")
    assert capacity is not None
    assert capacity.could_hold(40)
    assert not capacity.could_hold(41)
    assert not capacity.room_for(1)


class LedgerMachine(RuleBasedStateMachine):
    """Against a dictionary that is too simple to be wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = CapacityLedger()
        self.model: dict[tuple[str, str], int] = {}
        for name in ("a", "b"):
            self.ledger.set_worker(name, 12, 4, 4)

    names = st.sampled_from("ab")
    sessions = st.sampled_from("rstuvw")

    @rule(worker=names, session=sessions, tokens=st.integers(1, 60))
    def charge(self, worker: str, session: str, tokens: int) -> None:
        held = {key: blocks for key, blocks in self.model.items() if key[0] == worker}
        known = (worker, session) in held
        fits = sum(held.values()) + blocks_for(tokens, 4) <= 12 and len(held) < 4
        assert self.ledger.charge(worker, session, tokens) == (known or fits)
        if fits and not known:
            self.model[worker, session] = blocks_for(tokens, 4)

    @rule(worker=names, session=sessions)
    def free(self, worker: str, session: str) -> None:
        self.ledger.free(worker, session)
        self.model.pop((worker, session), None)

    @rule(worker=names)
    def reattach(self, worker: str) -> None:
        self.ledger.set_worker(worker, 12, 4, 4)

    @invariant()
    def agrees(self) -> None:
        assert self.ledger.total_charges() == len(self.model)
        for name in ("a", "b"):
            capacity = self.ledger.worker(name)
            assert capacity is not None
            assert capacity.committed == sum(b for (w, _), b in self.model.items() if w == name)
            assert capacity.committed <= capacity.usable_blocks


TestLedgerMachine = LedgerMachine.TestCase
