"""What a worker holds, against what the store says: one verdict an item (H144-H149). Pure.

worker has it, store agrees          → it goes on; unaccepted tokens are sent again
frozen, no commit                    → resumed under its epoch
prepared, committed                  → activated
frozen, the store has it here later  → resumed under the later epoch: the Resume was lost
frozen, new owner gone, no token     → a candidate to come home (B22), if the store agrees
old epoch, new owner is there        → released
reserved or prepared, no commit      → discarded
store does not know it, or it ended  → dropped
parked                               → as frozen, but it stays where it is (B3)
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from swapd.messages.from_worker import InventoryItem
from swapd.messages.generation import Owner
from swapd.messages.to_worker import Activate, Cancel, Discard, Release, Resume, SessionEpoch, ToWorker
from swapd.sessions.record import SessionRecord

Found = Literal[
    "resumed", "parked", "aborted", "committed_forward", "rehomed", "homeless", "released", "discarded"
]

PINNED: Final = ("frozen", "parked")
"""It makes no token there, and may have to take the session back."""


class Verdict(NamedTuple):
    """`keeps`: the worker goes on as the owner. `homeless`: `commands` hold only if it cannot come home."""

    found: Found
    keeps: bool
    commands: tuple[ToWorker, ...]


def judge(
    item: InventoryItem, record: SessionRecord | None, durable: int, here: Owner, *, owner_is_there: bool
) -> Verdict:
    """Decide about one item of the worker `here`; `record` is None for what the store does not know.

    `durable` tokens are accepted. `owner_is_there`: the session's owner is connected.
    """
    if record is None or record.terminal:
        return Verdict("discarded", False, (_drop(item),))
    if record.owner == here and item.position >= durable:
        if item.epoch == record.epoch:
            if item.phase == "parked":
                return Verdict("parked", True, ())
            if item.phase == "prepared":
                return Verdict("committed_forward", True, (Activate((SessionEpoch(record.id, item.epoch),)),))
            if item.phase == "frozen":
                return Verdict("aborted", True, (Resume(record.id, item.epoch),))
            if item.phase != "reserved":
                return Verdict("resumed", True, ())
        elif item.phase in PINNED and item.epoch < record.epoch and item.position == durable:
            return Verdict("rehomed", True, (Resume(record.id, item.epoch, record.epoch),))
    if item.phase in ("reserved", "prepared"):
        return Verdict("discarded", False, (_drop(item),))
    if item.phase in PINNED:
        comes_home = item.epoch == record.epoch - 1 and item.position == durable and not owner_is_there
        release = (Release(record.id, item.epoch),)
        return Verdict("homeless" if comes_home else "released", False, release)
    return Verdict("released", False, (Cancel(record.id, item.epoch),))


def _drop(item: InventoryItem) -> ToWorker:
    # A frozen session has a move, too, but only what came with the move goes with it.
    if item.move is not None and item.phase in ("reserved", "prepared"):
        return Discard(item.move)
    return Cancel(item.session, item.epoch)
