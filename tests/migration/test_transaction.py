"""The transition table of a move, and the clean-up that each phase owes (H66, H67, H69)."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from swapd.migration.transaction import (
    TRANSITIONS,
    Event,
    IllegalMove,
    Phase,
    advance,
    clean_up,
    committed,
)

STRAIGHT = [
    (Event.RESERVED, Phase.RESERVED),
    (Event.COPYING, Phase.PRECOPYING),
    (Event.FROZEN, Phase.FROZEN),
    (Event.PREPARED, Phase.PREPARED),
    (Event.COMMITTED, Phase.COMMITTED),
    (Event.ACTIVATED, Phase.ACTIVATED),
    (Event.RELEASED, Phase.RELEASED),
    (Event.FINISHED, Phase.FINISHED),
]


def test_a_move_goes_through_its_phases_in_order() -> None:
    """H66"""
    phase = Phase.PLANNED
    for event, expected in STRAIGHT:
        phase = advance(phase, event)
        assert phase is expected


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("event", list(Event))
def test_what_the_table_does_not_know_is_an_error_that_names_both(phase: Phase, event: Event) -> None:
    """H66: no phase can be skipped or entered twice by mistake."""
    if event in TRANSITIONS[phase]:
        assert advance(phase, event) is TRANSITIONS[phase][event]
    else:
        with pytest.raises(IllegalMove, match=rf"{event} in phase {phase}"):
            advance(phase, event)


@pytest.mark.parametrize("phase", [p for p in Phase if p not in (Phase.RELEASED, Phase.FINISHED)])
def test_a_failure_or_the_sessions_end_ends_a_move_in_every_phase(phase: Phase) -> None:
    """H67, x1 to x4"""
    assert advance(phase, Event.FAILED) is Phase.FINISHED
    assert advance(phase, Event.ENDED) is Phase.FINISHED


@pytest.mark.parametrize("event", [Event.COPYING, Event.NOT_READY])
def test_a_pre_copy_takes_as_many_rounds_as_it_needs(event: Event) -> None:
    """H66"""
    assert advance(Phase.PRECOPYING, event) is Phase.PRECOPYING


def test_a_finished_move_owes_nothing_and_goes_nowhere() -> None:
    """H66"""
    assert clean_up(Phase.RELEASED) == clean_up(Phase.FINISHED) == (False, False, False)
    assert TRANSITIONS[Phase.FINISHED] == {}


def test_only_a_commit_decides_for_the_target() -> None:
    """H66, H69"""
    into_committed = [
        (p, e) for p, events in TRANSITIONS.items() for e, to in events.items() if committed(to)
    ]
    assert into_committed == [
        (Phase.PREPARED, Event.COMMITTED),
        (Phase.COMMITTED, Event.ACTIVATED),
        (Phase.ACTIVATED, Event.RELEASED),
    ]


@pytest.mark.parametrize("steps", range(len(STRAIGHT)))
def test_an_abort_undoes_what_the_steps_before_it_did(steps: int) -> None:
    """H67, H69: from every phase on the straight way."""
    machine = MoveMachine()
    for event, _ in STRAIGHT[:steps]:
        machine.take(event)
    machine.teardown()


class MoveMachine(RuleBasedStateMachine):
    """One move, with two workers that remember what they hold."""

    def __init__(self) -> None:
        super().__init__()
        self.phase = Phase.PLANNED
        self.source_frozen = False
        self.target_holds = False
        self.owner_is_target = False

    @precondition(lambda self: self.phase is not Phase.FINISHED)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        self.take(data.draw(st.sampled_from(sorted(TRANSITIONS[self.phase]))))

    def take(self, event: Event) -> None:
        before, self.phase = self.phase, advance(self.phase, event)
        match event:
            case Event.RESERVED:
                self.target_holds = True
            case Event.FROZEN:
                self.source_frozen = True
            case Event.COMMITTED:
                self.owner_is_target = True
            case Event.FAILED | Event.ENDED:
                self.clean(before)
            case Event.RELEASED:
                self.source_frozen = False

    @precondition(lambda self: self.phase is Phase.FINISHED)
    @rule(event=st.sampled_from(list(Event)))
    def again(self, event: Event) -> None:
        """H67: a move that is over stays over, and a repeated abort owes nothing."""
        with pytest.raises(IllegalMove):
            advance(self.phase, event)
        assert not any(clean_up(self.phase))

    def clean(self, phase: Phase) -> None:
        owed = clean_up(phase)
        # H69: never both, and after the commit neither: there is no way back.
        assert owed.decide_forward == self.owner_is_target == committed(phase)
        if self.owner_is_target:
            assert not owed.resume_source
            assert not owed.discard_target
            return
        # H67: exactly what had an effect is undone.
        assert owed.resume_source == self.source_frozen
        assert owed.discard_target == self.target_holds
        self.source_frozen = self.target_holds = False

    @invariant()
    def nothing_stays_frozen_or_reserved_without_a_move(self) -> None:
        if self.phase is Phase.FINISHED and not self.owner_is_target:
            assert not self.source_frozen
            assert not self.target_holds

    def teardown(self) -> None:
        """A move always ends: from wherever it stands, the straight way or a failure finishes it."""
        while self.phase is not Phase.FINISHED:
            known = TRANSITIONS[self.phase]
            before = self.phase
            event = Event.FAILED if Event.FAILED in known else Event.FINISHED
            self.phase = advance(self.phase, event)
            if event is Event.FAILED:
                self.clean(before)
        self.nothing_stays_frozen_or_reserved_without_a_move()


TestMoveMachine = MoveMachine.TestCase
