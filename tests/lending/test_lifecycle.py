"""The states of a device: every order of events ends where the latest word says."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from swapd.lending.device import DeviceState, Verdict
from swapd.lending.lifecycle import TRANSITIONS, DeviceChange, IllegalChange, change, next_event

LENT = Verdict(True, True, (), "")
REFUSED = Verdict(False, True, (), "")
WANTED = Verdict(False, False, (), "")


def test_every_state_has_its_row_and_anything_else_is_an_error() -> None:
    assert set(TRANSITIONS) == set(get_args(DeviceState))
    for state in get_args(DeviceState):
        for event in get_args(DeviceChange):
            if event in TRANSITIONS[state]:
                assert change(state, event) in TRANSITIONS
            else:
                with pytest.raises(IllegalChange, match=f"{event} while {state}"):
                    change(state, event)


@pytest.mark.parametrize("state", get_args(DeviceState))
@pytest.mark.parametrize("verdict", [LENT, REFUSED, WANTED])
@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("started", [False, True])
def test_what_has_happened_is_always_legal(
    state: DeviceState, verdict: Verdict, empty: bool, started: bool
) -> None:
    event = next_event(state, verdict, empty=empty, started=started)
    assert event is None or event in TRANSITIONS[state]


class Device(RuleBasedStateMachine):
    """An owner who comes and goes at any moment, workers that end and start when they will."""

    def __init__(self) -> None:
        super().__init__()
        self.state: DeviceState = "refused"
        self.verdict = REFUSED
        self.empty = False
        self.started = False

    def settle(self) -> None:
        for _ in range(8):
            event = next_event(self.state, self.verdict, empty=self.empty, started=self.started)
            if event is None:
                return
            if event == "needed":
                self.empty = False
            if event == "released":
                self.empty = self.started = False
            self.state = change(self.state, event)
        raise AssertionError("it never settles")

    @rule(verdict=st.sampled_from([LENT, REFUSED, WANTED]))
    def judge(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self.settle()

    @rule()
    def emptied(self) -> None:
        if self.state == "vacating":
            self.empty = True
            self.settle()

    @rule()
    def ready(self) -> None:
        if self.state == "returning":
            self.started = True
            self.settle()

    @invariant()
    def the_door_is_open_only_while_it_may_be(self) -> None:
        """B12: lent if and only if nothing speaks against it and its workers are there."""
        assert (self.state == "lent") <= self.verdict.admit
        if not self.verdict.hold:
            assert self.state in ("vacating", "free")
        if self.state in ("vacating", "free"):
            assert not self.verdict.hold
        if self.state == "refused":
            assert not self.verdict.admit


TestDevice = Device.TestCase
