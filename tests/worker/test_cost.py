"""A replay that is dropped before its first token: its worker says what it had cost, whoever asks again."""

from __future__ import annotations

from typing import cast

import pytest

from swapd.engines.sim import SimConfig, open_sim
from swapd.messages import from_worker as out
from swapd.messages import to_worker as into
from swapd.worker.book import Book
from swapd.worker.commands import Rooms
from swapd.worker.copier import CopyThread
from swapd.worker.loop import EngineLoop
from swapd.worker.mailbox import Inbox, Request, Ticket
from swapd.worker.schedule import ScheduleBook
from swapd.worker.staging import Staging
from swapd.worker.transfers import ArenaSlot, Transfers
from tests.worker.client import spec

SIM = SimConfig(step_ms=0.0, block_tokens=4, block_bytes=64, blocks=256, max_model_len=1000)


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_what_a_dropped_replay_had_computed_is_told_each_time(rounds: int) -> None:
    """H209: nothing before its first step, then as much as the engine has computed."""
    said: list[object] = []
    engine, staging, slot, inbox = open_sim(SIM), Staging(), ArenaSlot(), Inbox()

    def post(_: object, body: object) -> None:
        said.append(body)

    transfers = Transfers(engine.info, engine, slot, staging, inbox, post)
    none = cast(CopyThread, None)  # nothing is copied here
    rooms = Rooms(engine, Book(engine.info), staging, slot, transfers, none, none, ScheduleBook(False))
    loop = EngineLoop(rooms, inbox, post)
    given = spec(tuple(range(1, 301)), 20)

    def ask(body: into.ToWorker) -> None:
        inbox.put(Request(Ticket(0, 1), body, 0.0))

    ask(into.Start(given, 3, 20, (7, 8, 9)))
    if not rounds:
        ask(into.Cancel(given.session, 3))
    for _ in range(max(rounds, 1)):
        loop.round(0.0)
    spent = engine.recomputed()
    assert bool(spent) == bool(rounds)
    ask(into.Cancel(given.session, 3))
    ask(into.Cancel(given.session, 3))
    loop.round(0.0)
    assert engine.recomputed() == spent
    assert [body.recomputed for body in said if isinstance(body, out.Done)][-2:] == [spent, spent]
    assert not [body for body in said if isinstance(body, out.Tokens)]
