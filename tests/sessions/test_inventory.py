"""Verdicts on what a worker holds (H144-H149, B22)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swapd.messages.from_worker import InventoryItem, Phase
from swapd.messages.generation import Owner
from swapd.messages.to_worker import Activate, Cancel, Discard, Release, Resume, SessionEpoch, ToWorker
from swapd.sessions.inventory import judge
from swapd.sessions.record import SessionRecord
from tests.sessions.test_live import OWNER, live

OTHER = Owner("b", "b.1")


def record(owner: Owner = OWNER, epoch: int = 2) -> SessionRecord:
    return msgspec.structs.replace(live().record, owner=owner, epoch=epoch)


def item(phase: Phase, epoch: int = 2, position: int = 5, move: str | None = None) -> InventoryItem:
    return InventoryItem("s", epoch, phase, position, (), move)


@pytest.mark.parametrize(
    ("held", "of", "there", "found", "keeps", "commands"),
    [
        # H144: alive, at or past what is durable
        (item("running"), record(), True, "resumed", True, ()),
        (item("held", position=9), record(), True, "resumed", True, ()),
        (item("waiting", position=5), record(), True, "resumed", True, ()),
        (item("finished", position=6), record(), True, "resumed", True, ()),
        # H145: it lost what the store has
        (item("running", position=4), record(), True, "released", False, (Cancel("s", 2),)),
        # H146, H148: frozen without a commit
        (item("frozen", move="m"), record(), True, "aborted", True, (Resume("s", 2),)),
        # H147: prepared, and the store decided for it
        (
            item("prepared", move="m"),
            record(),
            True,
            "committed_forward",
            True,
            (Activate((SessionEpoch("s", 2),)),),
        ),
        # H146: prepared or reserved, and it did not
        (item("prepared", epoch=3, move="m"), record(OTHER), True, "discarded", False, (Discard("m"),)),
        (
            item("reserved", epoch=3, position=0, move="m"),
            record(OTHER),
            True,
            "discarded",
            False,
            (Discard("m"),),
        ),
        (
            item("reserved", epoch=3, position=0, move="m"),
            record(OTHER),
            False,
            "discarded",
            False,
            (Discard("m"),),
        ),
        # B22: the new owner is gone, and no token came from it
        (item("frozen", epoch=1, move="m"), record(OTHER), False, "homeless", False, (Release("s", 1),)),
        # the new owner is there
        (item("frozen", epoch=1, move="m"), record(OTHER), True, "released", False, (Release("s", 1),)),
        # a token came
        (item("frozen", epoch=1, position=4), record(OTHER), False, "released", False, (Release("s", 1),)),
        # not the transfer before
        (item("frozen", epoch=1), record(OTHER, 3), False, "released", False, (Release("s", 1),)),
        # the store gave it back, the Resume was lost
        (item("frozen", epoch=1, move="m"), record(OWNER, 3), True, "rehomed", True, (Resume("s", 1, 3),)),
        (item("frozen", epoch=1, position=4), record(OWNER, 3), True, "released", False, (Release("s", 1),)),
        # H104: an old epoch that decodes
        (item("running", epoch=1), record(), True, "released", False, (Cancel("s", 1),)),
        (item("running", epoch=1), record(OTHER), False, "released", False, (Cancel("s", 1),)),
    ],
)
def test_the_store_says_what_is_true(
    held: InventoryItem,
    of: SessionRecord,
    there: bool,
    found: str,
    keeps: bool,
    commands: tuple[ToWorker, ...],
) -> None:
    """H144-H148, B22"""
    verdict = judge(held, of, 5, OWNER, owner_is_there=there)
    assert (verdict.found, verdict.keeps, verdict.commands) == (found, keeps, commands)


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize(
    ("held", "command"),
    [
        (item("running"), Cancel("s", 2)),
        (item("finished"), Cancel("s", 2)),
        # A frozen source has a move too, but Discard would free nothing of it.
        (item("frozen", move="m"), Cancel("s", 2)),
        (item("reserved", move="m"), Discard("m")),
        (item("prepared", move="m"), Discard("m")),
    ],
)
def test_what_the_store_does_not_know_is_dropped_in_every_phase(
    ended: bool, held: InventoryItem, command: ToWorker
) -> None:
    """H149: unknown, or ended meanwhile."""
    of = msgspec.structs.replace(record(), state="cancelled", finished_at=1.0) if ended else None
    verdict = judge(held, of, 5, OWNER, owner_is_there=True)
    assert (verdict.found, verdict.keeps, verdict.commands) == ("discarded", False, (command,))


PHASES: tuple[Phase, ...] = ("waiting", "running", "held", "frozen", "prepared", "reserved", "finished")


@given(
    phase=st.sampled_from(PHASES),
    held_epoch=st.integers(1, 4),
    position=st.integers(0, 8),
    owner=st.sampled_from([OWNER, OTHER, Owner("a", "a.0")]),
    epoch=st.integers(1, 4),
    there=st.booleans(),
)
def test_no_worker_keeps_what_the_store_gave_to_another(
    phase: Phase, held_epoch: int, position: int, owner: Owner, epoch: int, there: bool
) -> None:
    """H69, H104: in any situation; who keeps it has every accepted token, who does not is told to let go."""
    held = item(phase, held_epoch, position, "m")
    verdict = judge(held, record(owner, epoch), 5, OWNER, owner_is_there=there)
    if verdict.keeps:
        assert owner == OWNER
        assert position >= 5
    else:
        assert any(isinstance(c, Cancel | Discard | Release) for c in verdict.commands)
    for command in verdict.commands:
        if isinstance(command, Resume):
            assert owner == OWNER
            assert (command.new_epoch or command.epoch) == epoch
        if isinstance(command, Activate):
            assert (owner, held_epoch) == (OWNER, epoch)
