"""Records and messages as the store's tests need them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

from swapd.messages.generation import Owner, Sampling
from swapd.sessions.record import MoveRecord, SessionRecord, Terminal
from swapd.store.ledger import Append, append_tokens, assign_owner
from swapd.store.sessions import insert_session

ALICE = Owner("gpu0", "incarnation-a")
BOB = Owner("gpu1", "incarnation-b")
DONE = Terminal("completed", "eos", None, 50.0)


def record(session: str, **changes: Any) -> SessionRecord:
    fields: dict[str, Any] = {
        "namespace": "tenant",
        "model": "small",
        "state": "created",
        "prompt": (11, 12, 13),
        "sampling": Sampling(temperature=0.5, seed=7, stop_token_ids=(2, 3)),
        "max_new_tokens": 100,
        "stop": ("\n\n", "ENDE \u00fc"),
        "allow_replay_fallback": False,
        "on_disconnect": "pause",
        "max_lifetime_s": 3600.0,
        "owner": None,
        "epoch": 0,
        "accepted": 0,
        "created_at": 10.0,
    }
    return SessionRecord(id=session, **(fields | changes))


def move(move_id: str, session: str, epoch: int = 1, **changes: Any) -> MoveRecord:
    fields: dict[str, Any] = {
        "drain": None,
        "source": ALICE,
        "target": BOB,
        "phase": "planned",
        "state": "planned",
        "outcome": None,
        "reason": None,
        "stats": None,
        "created_at": 20.0,
        "finished_at": None,
    }
    return MoveRecord(id=move_id, session=session, epoch=epoch, **(fields | changes))


def append(
    session: str,
    first_pos: int,
    ids: tuple[int, ...],
    *,
    owner: Owner = ALICE,
    epoch: int = 1,
    terminal: Terminal | None = None,
) -> Append:
    return Append(session, owner, epoch, first_pos, ids, terminal)


def running(session: str, tokens: int = 0) -> Callable[[sqlite3.Connection], None]:
    """An operation that makes a session which ALICE runs under epoch 1, with tokens 1001, 1002, …"""

    def op(db: sqlite3.Connection) -> None:
        insert_session(db, record(session))
        assert assign_owner(db, session, 0, ALICE) == 1
        if tokens:
            append_tokens(db, append(session, 1, tuple(range(1001, 1001 + tokens))))

    return op
