"""What drains and pre-flights are called, in words for people."""

from __future__ import annotations

import msgspec
import pytest

from console.pages.drain_words import (
    MODES,
    OFFERED,
    fate,
    foreseen,
    outcomes,
    reasons,
    tell,
    why,
)
from console.pages.reason_words import reason
from swapd.errors import REASONS, Code
from swapd.migration.transaction import Phase
from swapd.views import (
    Asker,
    DrainMode,
    DrainOrigin,
    DrainState,
    DrainView,
    Foreseen,
    Outcome,
    SessionOutcome,
)


def each(session: str, outcome: Outcome | None = None, code: str | None = None, **fields) -> SessionOutcome:
    return SessionOutcome(session, outcome, code, fields.pop("phase", "planned"), **fields)


def drain(*sessions: SessionOutcome, state: DrainState = "running") -> DrainView:
    over = state in ("drained", "cancelled")
    return DrainView("d1", "gpu0", state, "operator", 100.0, 60.0, 103.0 if over else None, sessions)


def moved(number: int, pause_ms: float = 48.0) -> SessionOutcome:
    return each(f"m{number}", "completed_native", target="b", frozen_ms=pause_ms, phase="finished")


def moving(number: int, phase: str = "precopying") -> SessionOutcome:
    return each(f"g{number}", target="b", phase=phase)


@pytest.mark.parametrize(
    ("view", "sentence"),
    [
        (
            drain(*map(moved, range(5)), *map(moving, range(3))),
            "Moving 3 of 8 generations away from gpu0; 5 done, longest pause 48 ms.",
        ),
        (drain(*map(moving, range(3))), "Moving 3 generations away from gpu0."),
        (drain(each("w", code="not_eligible")), "1 generation waits to leave gpu0."),
        (
            drain(each("w", "blocked", "no_target"), moved(1), state="blocked"),
            "1 of 2 generations cannot leave gpu0 yet; 1 done, longest pause 48 ms.",
        ),
        (drain(state="drained"), "gpu0 was empty already."),
        (drain(), "gpu0 is being closed."),
        (drain(moved(1), state="drained"), "gpu0 is empty: 1 generation left it, longest pause 48 ms."),
        (
            drain(moved(1), each("s", "cancelled", "drain_cancelled"), state="cancelled"),
            "Cancelled: 1 of 2 generations had left gpu0, longest pause 48 ms.",
        ),
    ],
)
def test_a_drain_is_told_in_one_sentence(view: DrainView, sentence: str) -> None:
    """H54"""
    assert tell(view).sentence == sentence


def test_a_drain_that_a_take_back_joined_says_so() -> None:
    """B16: it no longer says that an operator asked, and nothing else."""
    asked = (Asker("operator", 100.0, "a new driver"), Asker("take_back_now", 101.0, "gpu0: taken back"))
    view = msgspec.structs.replace(drain(), origin="take_back_now", askers=asked)
    assert why(view) == "an operator asked for it and the owner took it back"
    assert reasons(view) == ["a new driver", "gpu0: taken back"]
    gone = (asked[0], msgspec.structs.replace(asked[1], until=102.0))
    assert why(msgspec.structs.replace(view, origin="operator", askers=gone)) == (
        "an operator asked for it and the owner took it back for a while"
    )


def test_a_drain_of_an_earlier_version_names_its_origin() -> None:
    assert why(msgspec.structs.replace(drain(), origin="owner_pressure")) == "the owner's work came back"


@pytest.mark.parametrize("origin", DrainOrigin.__args__)
def test_every_origin_has_words_while_it_asks_and_after(origin: DrainOrigin) -> None:
    told = {
        why(msgspec.structs.replace(drain(), askers=(Asker(origin, 1.0, None, until),)))
        for until in (None, 2.0)
    }
    assert len(told) == 2


def test_the_longest_pause_is_that_of_any_session() -> None:
    assert tell(drain(moved(1, 20.0), moved(2, 1250.0), moved(3, 30.0))).pause_ms == 1250.0
    assert tell(drain(moving(1))).pause_ms is None


def test_who_is_under_way_stands_first_and_who_is_done_last() -> None:
    rows = tell(drain(moved(1), each("w", code="no_target"), moving(1))).rows
    assert [row.session for row in rows] == ["g1", "w", "m1"]


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in ("released", "finished")])
def test_every_phase_of_a_move_has_words(phase: str) -> None:
    row = tell(drain(moving(1, phase))).rows[0]
    assert row.tag.label == "Moving"
    assert row.what != "On its way"


@pytest.mark.parametrize("outcome", Outcome.__args__)
def test_every_outcome_has_words_and_a_sign(outcome: Outcome) -> None:
    """Colour never speaks alone."""
    view = drain(each("s", outcome))
    row = tell(view).rows[0]
    assert row.tag.label
    assert row.tag.sign
    assert row.tag.label.lower() in outcomes(view)


@pytest.mark.parametrize("code", list(Code))
def test_every_reason_is_a_sentence(code: Code) -> None:
    told = reason(code, "with numbers")
    assert told[0].isupper() or not told[0].isalpha()
    assert told.endswith("(with numbers).")
    assert REASONS[code].sentence[1:].rstrip(".") in told


def test_a_reason_that_nobody_knows_is_shown_as_it_is() -> None:
    """A record of a later version stays readable."""
    assert reason("from_tomorrow") == "from_tomorrow"
    assert reason(None) == ""


def test_a_session_that_stayed_because_of_a_cancel_has_not_ended() -> None:
    """H61"""
    row = tell(drain(each("s", "cancelled", "drain_cancelled"), state="cancelled")).rows[0]
    assert row.tag.label == "Stayed"
    assert tell(drain(each("s", "cancelled", "already_finished"))).rows[0].tag.label == "Ended"


def test_what_began_anew_has_left_and_lost_nothing() -> None:
    """B18"""
    told = tell(drain(each("s", "completed_redispatch"), state="drained"))
    assert (told.rows[0].tag.label, told.rows[0].what) == ("Begun anew", "Nothing had come of it yet.")
    assert told.done == 1
    lost = tell(drain(each("s", "completed_redispatch", "source_lost"), state="drained"))
    assert lost.rows[0].what == "The source worker is gone."


def test_what_moved_without_its_source_did_not_go_wrong() -> None:
    """RF: the note says what happened, the sentence that nothing came of it."""
    [row] = tell(drain(each("s", "completed_native", "source_lost"), state="drained")).rows
    assert (row.tag.label, row.code) == ("Moved", "source_lost")
    assert row.what.startswith("Nothing computed again")


def test_history_counts_what_became_of_the_sessions() -> None:
    view = drain(moved(1), moved(2), each("p", "parked"), state="drained")
    assert outcomes(view) == "2 moved, 1 parked"
    assert outcomes(drain(state="drained")) == "nothing was on it"


AHEAD = Foreseen("s", "running", 6, 100, 2, 8192, "move", target="b")


@pytest.mark.parametrize(
    ("changes", "label", "told"),
    [
        ({}, "Moves", "To b, with all it has computed."),
        ({"would": "park", "target": None}, "Is parked", "To host memory, until a worker has room."),
        ({"would": "replay"}, "Is rebuilt", "On b, from its text so far."),
        ({"would": "anew"}, "Begins anew", "On b, from its prompt: nothing has come of it yet."),
        (
            {"would": "wait", "then": "move", "reason": "arena_exhausted"},
            "Waits",
            "The shared memory for moves is in use; the move waits. Then it moves to b.",
        ),
        (
            {"would": "wait", "then": "park", "target": None},
            "Waits",
            "It is just on its way. Then it is parked.",
        ),
        (
            {"would": "stay", "target": None, "reason": "no_target", "detail": "b is closed"},
            "Stays",
            "No other worker can take the session (b is closed). "
            "It goes on where it is; the drain waits for it.",
        ),
        (
            {"would": "end", "target": None, "reason": "already_finished"},
            "Ends",
            "Its last tokens are on their way.",
        ),
    ],
)
def test_what_a_drain_would_do_is_said_with_its_reason(changes: dict, label: str, told: str) -> None:
    tag, words = fate(msgspec.structs.replace(AHEAD, **changes))
    assert (tag.label, words) == (label, told)


@pytest.mark.parametrize(
    ("would", "sentence"),
    [
        ([], "Nothing runs on it: it is empty at once."),
        (["move"], "The one generation on it would move."),
        (["end"], "The one generation on it is about to end."),
        (["anew"] * 2, "Both generations would begin anew elsewhere."),
        (["move"] * 4, "All 4 generations would move."),
        (
            ["move"] * 3 + ["stay"] + ["park"] * 2,
            "Of 6 generations 3 would move, 2 would be parked and 1 would stay.",
        ),
    ],
)
def test_a_preflight_is_told_in_one_sentence(would: list, sentence: str) -> None:
    assert foreseen([msgspec.structs.replace(AHEAD, would=how) for how in would]) == sentence


def test_every_mode_has_a_name_and_what_it_means() -> None:
    assert set(MODES) == set(DrainMode.__args__)
    assert set(OFFERED) < set(MODES)


def test_who_waits_without_its_kv_is_told_from_those_that_have_it() -> None:
    told = tell(drain(each("p", "parked"), each("q", "parked", "park_full"), state="drained"))
    assert [row.what for row in told.rows] == [
        "In host memory until a worker has room.",
        "It waits without its KV, which is computed again once a worker has room.",
    ]


def test_who_stayed_when_a_drain_was_cancelled_is_not_counted_as_gone() -> None:
    """The large number and the sentence agree."""
    told = tell(drain(moved(1), each("s", "cancelled", "drain_cancelled"), state="cancelled"))
    assert told.done == 1
    assert tell(drain(moved(1), each("s", "cancelled"), state="drained")).done == 2


def test_a_reason_tells_few_of_many_names() -> None:
    told = reason(Code.TARGET_FULL, "held by s1, s2, s3, s4, s5")
    assert told.endswith("(held by s1, s2, s3 and 2 more).")
    assert reason(Code.TARGET_FULL, "held by s1, s2, s3").endswith("(held by s1, s2, s3).")
