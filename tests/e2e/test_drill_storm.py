"""The storm drill, for a few drains: it runs, judges, cleans up, and can fail."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ops.soaking.clients import Plan
from ops.storming.client import Client, Tally
from ops.storming.storm import compare
from ops.storming.wire import WAYS, Address, Received
from tests.e2e.drills import run_drill

FEW = ("--drains=2", "--sessions=3", "--tokens=8000", "--cut", "--reconnects=5", "--step-ms=50", "--seed=3")
"""Sessions that outlive the drains on the slowest machine."""


@pytest.mark.timeout(240)
def test_clients_that_are_thrown_out_all_the_time_end_with_the_full_sequence(tmp_path: Path) -> None:
    """H21, H22, H26, H80: each way to come back, before any event too, while sessions move."""
    code, said, found = run_drill("ops/drill_storm.py", tmp_path, *FEW)
    assert code == 0, said
    assert all(claim["holds"] for claim in found["claims"]), said
    assert found["figures"]["reconnects_before_any_event"] > 0
    assert "drill_storm: ok: seed 3" in said


def client(*events: Received) -> Client:
    """One that has received just these."""
    nobody = Address("127.0.0.1", 1, "")
    one = Client(nobody, "s", random.Random(1), Tally(), lambda: True, lambda: False)
    for event in events:
        one.take(event)
    return one


def plan() -> Plan:
    return Plan(
        prompt=(1, 2, 3),
        max_new_tokens=4,
        temperature=0.0,
        seed=1,
        allow_replay_fallback=False,
        on_disconnect="pause",
        begin_after_s=0.0,
        cancel_at=None,
        restless=0.0,
    )


def whole() -> list[Received]:
    """A stream as it should be."""
    tokens = [
        Received(at, "token", json.dumps({"pos": at, "token_id": token}))
        for at, token in enumerate(plan().reference(), 1)
    ]
    return [Received(0, "created", "{}"), *tokens, Received(len(tokens) + 1, "completed", '{"accepted":4}')]


def told(*clients: Client) -> dict[str, int]:
    storm: Any = SimpleNamespace(readers=[(plan(), list(clients))])
    return {name: count for name, count in compare(storm).items() if count and name != "tokens"}


def test_a_stream_is_held_against_the_one_before_and_the_reference() -> None:
    """H21, H26: the judge can fail in each way."""
    events = whole()
    assert told(client(*events), client(*events)) == {}
    assert told(client(*events[:2], *events[3:])).keys() == {"lost", "different", "unfinished"}
    assert told(client(*events[:3], *events[2:])) == {"doubled": 1}
    assert told(client(*events[:-1])) == {"unfinished": 1}
    assert told(client()) == {"unfinished": 1}
    cut = events[3]._replace(name="cancelled", data='{"accepted":2}')
    assert told(client(*events[:3], cut)) == {}
    assert told(client(*events[:2], cut._replace(id=2))) == {"unfinished": 1}
    assert told(client(*events[:3], events[-1]._replace(id=3))).keys() == {"unfinished"}
    failed = events[3]._replace(name="failed", data='{"accepted":2}')
    assert told(client(*events[:3], failed)) == {"unfinished": 1}
    other = events[1]._replace(data=json.dumps({"pos": 1, "token_id": 0}))
    assert told(client(*events), client(events[0], other, *events[2:])) == {"different": 1, "changed": 1}
    assert told(client(*events, events[-1]._replace(id=len(events)))).keys() == {"doubled"}


@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_come_back_asks_after_the_last_event(way: Any) -> None:
    """H22: the header goes before the address; nothing is asked for before anything has come."""
    address = Address("127.0.0.1", 8080, "t")
    first, again = address.asks(way, "s", None), address.asks(way, "s", 7)
    assert "after" not in first.path
    assert ("Last-Event-ID", "7") in again.fields or again.path.endswith("?after=7")
    assert len(first.fields) == 1
