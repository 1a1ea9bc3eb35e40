"""Any history of moves, drains, faults and restarts, by the whole of swapd below its doors (B25).

The coordinator's actors, the store, the arena, the workers' control, book, copies and `sim` engine are the
real ones; wires, threads, clock and processes are the test's (`model`). `Truth` holds after every event; at
the end nobody is hurt any more, and everything must come to its end and leave nothing behind.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Final

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from swapd.messages import from_worker as out
from swapd.messages import to_worker as into
from swapd.views import DrainMode, DrainOrigin
from tests.migration.model.clients import Client
from tests.migration.model.lab import NAMES, Lab

pytestmark = [pytest.mark.timeout(300), pytest.mark.once]

STEPS: Final = (
    into.Reserve, out.Reserved, into.Export, out.Exported, into.Import, out.Imported, into.Quiesce,
    into.Freeze, out.Frozen, into.Prepare, out.Prepared, into.Activate, out.Activated, into.Release,
    into.Resume, into.Discard, out.Tokens, into.Start, out.Started, into.Cancel,
)  # fmt: skip
CLIENTS: Final = 4

names = st.sampled_from(NAMES)
steps = st.sampled_from(STEPS)
origins: st.SearchStrategy[DrainOrigin] = st.sampled_from(["operator", "owner_pressure"])
modes: st.SearchStrategy[DrainMode] = st.sampled_from(["native", "native", "park", "replay"])
disks = st.sampled_from(["", "", "before-move", "after-move"])
clients = st.builds(
    Client,
    prompt=st.lists(st.integers(1, 60), min_size=1, max_size=9).map(tuple),
    count=st.integers(2, 24),
    seed=st.integers(0, 3),
    replay=st.booleans(),
    goes_on=st.booleans(),
)


class Model(RuleBasedStateMachine):
    @initialize(client=clients, before=st.integers(1, 9), at=steps, where=names, disk=disks)
    def begin(self, client: Client, before: int, at: type, where: str, disk: str) -> None:
        """Every history begins with a session that is on its way somewhere, held at some step."""
        self.folder = Path(tempfile.mkdtemp(prefix="swapd-model-"))
        self.lab = lab = Lab(self.folder)
        lab.do(lab.create, client)
        for name in NAMES:
            lab.do(lab.decode, name, before)
        lab.do(lab.hold, where, at)
        lab.do(lab.fail_store, disk)
        source = lab.site.worker_of(client.session or "") if lab.site is not None else None
        if source is not None:
            lab.do(lab.drain, source, "operator", "native", 60.0)

    def teardown(self) -> None:
        if not hasattr(self, "lab"):
            return
        try:
            self.lab.do(self.lab.rest)
        finally:
            self.lab.close()
            shutil.rmtree(self.folder)

    def client(self, data: st.DataObject) -> Client:
        return data.draw(st.sampled_from(self.lab.clients))

    def up(self) -> bool:
        return self.lab.site is not None

    # Sessions --------------------------------------------------------------------------------

    @precondition(lambda self: self.up() and len(self.lab.clients) < CLIENTS)
    @rule(client=clients)
    def create(self, client: Client) -> None:
        self.lab.do(self.lab.create, client)

    @rule(name=names, count=st.integers(1, 6))
    def decode(self, name: str, count: int) -> None:
        self.lab.do(self.lab.decode, name, count)

    @precondition(lambda self: self.lab.clients)
    @rule(data=st.data())
    def leave_or_come_back(self, data: st.DataObject) -> None:
        client = self.client(data)
        self.lab.do(self.lab.leave if client.present else self.lab.come_back, client)

    @precondition(lambda self: self.up() and self.lab.clients)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.lab.do(self.lab.cancel, self.client(data))

    # Drains ----------------------------------------------------------------------------------

    @precondition(up)
    @rule(name=names, origin=origins, mode=modes, deadline_s=st.sampled_from([1.0, 60.0]))
    def drain(self, name: str, origin: DrainOrigin, mode: DrainMode, deadline_s: float) -> None:
        """Of a target, too: its owner comes back in the middle of a move."""
        self.lab.do(self.lab.drain, name, origin, mode, deadline_s)

    @precondition(up)
    @rule(name=names)
    def cancel_drain(self, name: str) -> None:
        self.lab.do(self.lab.cancel_drain, name)

    @precondition(up)
    @rule(name=names)
    def trust(self, name: str) -> None:
        self.lab.do(self.lab.trust, name)

    # Wires -----------------------------------------------------------------------------------

    @rule(name=names, kind=steps)
    def hold(self, name: str, kind: type) -> None:
        self.lab.do(self.lab.hold, name, kind)

    @rule(name=names)
    def let_go(self, name: str) -> None:
        self.lab.do(self.lab.hold, name, None)

    @rule(name=names, kind=steps)
    def lose(self, name: str, kind: type) -> None:
        self.lab.do(self.lab.lose, name, kind)

    @rule(name=names, back=st.integers(0, 40))
    def say_again(self, name: str, back: int) -> None:
        self.lab.do(self.lab.say_again, name, back)

    @rule(name=names, back=st.integers(0, 40))
    def ask_late(self, name: str, back: int) -> None:
        self.lab.do(self.lab.ask_late, name, back)

    @rule(name=names)
    def ask_twice(self, name: str) -> None:
        self.lab.do(self.lab.ask_twice, name)

    # Workers ---------------------------------------------------------------------------------

    @rule(name=names)
    def kill(self, name: str) -> None:
        self.lab.do(self.lab.kill, name)

    @rule(name=names)
    def stop_or_go_on(self, name: str) -> None:
        self.lab.do(self.lab.stop, name, not self.lab.wires[name].stopped)

    @rule(name=names, on=st.booleans())
    def slow(self, name: str, on: bool) -> None:
        self.lab.do(self.lab.slow, name, on)

    @rule(name=names)
    def forget_imports(self, name: str) -> None:
        self.lab.do(self.lab.forget_imports, name)

    # The coordinator -------------------------------------------------------------------------

    @precondition(up)
    @rule(on=st.booleans())
    def hold_store(self, on: bool) -> None:
        self.lab.do(self.lab.hold_store, on)

    @precondition(up)
    @rule(how=st.sampled_from(["before", "after", "before-move", "after-move"]))
    def fail_store(self, how: str) -> None:
        self.lab.do(self.lab.fail_store, how)

    @precondition(up)
    @rule()
    def crash(self) -> None:
        self.lab.do(self.lab.crash)

    @precondition(up)
    @rule()
    def stop_cleanly(self) -> None:
        self.lab.do(self.lab.stop_cleanly)

    @precondition(lambda self: not self.up())
    @rule()
    def start(self) -> None:
        self.lab.do(self.lab.start)

    @rule(seconds=st.sampled_from([0.25, 1.0, 3.0, 11.0]))
    def pass_time(self, seconds: float) -> None:
        self.lab.do(self.lab.pass_time, seconds)


@pytest.mark.parametrize("kind", STEPS, ids=lambda kind: kind.__name__)
def test_a_crash_at_any_message_of_a_move_loses_and_leaves_nothing(tmp_path: Path, kind: type) -> None:
    """B25, H71, H143, H154: the coordinator dies while it is on its way; workers keep what they have."""
    lab = Lab(tmp_path)
    try:
        client = Client(prompt=(7, 8, 9), count=20, seed=1, replay=False, goes_on=False)
        lab.do(lab.create, client)
        for name in NAMES:
            lab.do(lab.decode, name, 6)
            lab.do(lab.hold, name, kind)
        assert lab.site is not None
        source = lab.site.worker_of(client.session or "")
        assert source is not None
        lab.do(lab.drain, source, "operator", "native", 60.0)
        lab.do(lab.crash)
        for name in NAMES:
            lab.do(lab.decode, name, 2)
            lab.do(lab.hold, name, None)
        lab.do(lab.rest)
        assert client.end == "completed"
    finally:
        lab.close()


@pytest.mark.parametrize("who", ["coordinator", "source", "target", "source and target", "client"])
@pytest.mark.parametrize("kind", [into.Start, out.Started, into.Cancel], ids=lambda kind: kind.__name__)
def test_whoever_goes_while_a_session_begins_anew_leaves_one_owner(
    tmp_path: Path, kind: type, who: str
) -> None:
    """B18, B25: held on the way; workers step on, and what the old owner makes reaches nobody."""
    lab = Lab(tmp_path)
    try:
        client = Client(prompt=(7, 8, 9), count=20, seed=1, replay=False, goes_on=False)
        lab.do(lab.create, client)
        assert lab.site is not None
        source = lab.site.worker_of(client.session or "")
        assert source is not None
        target = next(name for name in NAMES if name != source)
        for name in NAMES:
            lab.do(lab.hold, name, kind)
        lab.do(lab.drain, source, "operator", "native", 60.0)
        assert lab.site.worker_of(client.session or "") == target, "the store has it there"
        lab.do(lab.decode, source, 3)
        if who == "coordinator":
            lab.do(lab.crash)
        elif who == "client":
            lab.do(lab.cancel, client)
        for name in NAMES:
            if (name == source and "source" in who) or (name == target and "target" in who):
                lab.do(lab.kill, name)
        for name in NAMES:
            lab.do(lab.decode, name, 2)
            lab.do(lab.hold, name, None)
        lab.do(lab.rest)
        if who == "coordinator":
            # H180: told by its row, unless it had come to its end before.
            why = None if kind is into.Cancel else "coordinator_restart"
            assert lab.truth.moves()[0] == ("completed_redispatch", why)
        if who == "client":
            assert client.end == "cancelled"
        else:
            # With both gone it may have to end; it is begun by the next one if that comes in time.
            assert client.end == "completed" or who == "source and target"
    finally:
        lab.close()


def test_what_a_target_says_after_the_session_has_gone_home_reaches_nobody(tmp_path: Path) -> None:
    """B25, H40, B33: its tokens, forged here, come at the position that the source goes on from."""
    lab = Lab(tmp_path)
    try:
        client = Client(prompt=(7, 8, 9), count=20, seed=1, replay=False, goes_on=False)
        lab.do(lab.create, client)
        lab.do(lab.decode, "a", 6)
        assert lab.site is not None
        assert lab.site.worker_of(client.session or "") == "a"
        lab.do(lab.hold, "b", out.Activated)
        lab.do(lab.drain, "a", "operator", "native", 60.0)
        lab.do(lab.decode, "b", 3)
        lab.do(lab.pass_time, 9.25)
        assert lab.site.worker_of(client.session or "") == "a", "it came home"
        before = len(client.shown)
        lab.do(lab.hold, "b", None)
        assert len(client.shown) == before
        assert lab.site.table.fenced["owner"]
        lab.do(lab.rest)
        assert client.end == "completed"
    finally:
        lab.close()


TestModel = Model.TestCase
TestModel.__doc__ = "B25: one owner an epoch, tokens appended without a gap, nothing left at rest."
TestModel.settings = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    # Making a failure smaller takes minutes: whoever looks into one adds Phase.shrink.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
