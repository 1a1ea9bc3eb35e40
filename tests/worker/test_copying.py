"""Copy threads, the gate before reserved blocks, and what the damage switch does."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from threading import Event, Thread
from types import SimpleNamespace

import msgspec
import pytest

from swapd.config import SimConfig
from swapd.engines.base import Arrival, StepToken
from swapd.engines.sim import SimEngine, open_sim
from swapd.errors import Code, SwapdError
from swapd.messages import from_worker as out
from swapd.messages import to_worker as into
from swapd.messages.generation import GenerationSpec, Lease, Sampling
from swapd.messages.snapshot import seal
from swapd.worker import copier
from swapd.worker.copier import CopyThread
from swapd.worker.mailbox import Checked, Inbox, Ticket
from swapd.worker.settings import BreakCopy
from swapd.worker.staging import Reservation, Staging
from swapd.worker.transfers import ArenaSlot, Cargo, Transfers

CONFIG = SimConfig(step_ms=0, block_tokens=4, block_bytes=64, blocks=64)
GIVEN = GenerationSpec("s", (1, 2, 3), Sampling(temperature=0.0, ignore_eos=True), 40)
LEASE = Lease(0, 1, 0, 64 * 16)
WAIT_S = 10.0


class FakeArena:
    """Bytes and the generation in force."""

    def __init__(self) -> None:
        self.bytes = bytearray(LEASE.size)
        self.generation = LEASE.generation

    def check(self, lease: Lease) -> None:
        if lease.generation != self.generation:
            raise SwapdError(Code.LEASE_STALE)

    def region(self, lease: Lease) -> memoryview:
        self.check(lease)
        return memoryview(self.bytes)[: lease.size]


class Side:
    """One worker's copying, without threads: jobs are run by the test, block by block."""

    def __init__(self, arena: FakeArena, break_copy: BreakCopy = "") -> None:
        self.engine: SimEngine = open_sim(CONFIG)
        self.staging = Staging()
        self.inbox = Inbox()
        self.said: list[out.FromWorker] = []
        slot = ArenaSlot()
        slot.put(arena)
        self.transfers = Transfers(
            self.engine.info,
            self.engine,
            slot,
            self.staging,
            self.inbox,
            lambda ticket, body: self.said.append(body),
            break_copy,
        )


def decoded(side: Side, count: int) -> list[int]:
    side.engine.start("k", GIVEN, ())
    tokens: list[int] = []
    while len(tokens) < count:
        tokens += [token.token_id for token in side.engine.step().tokens]
    side.engine.hold("k")
    return tokens


def cargo(side: Side, first: int, end: int, lease: Lease = LEASE, *, frozen: bool = False) -> Cargo:
    made = Cargo("m", "s", 1, lease, side.engine.block_table("k"), first, end, side.engine.computed("k"))
    return made._replace(spec=GIVEN, outputs=side.engine.outputs("k")) if frozen else made


def reserved(side: Side, lease: Lease = LEASE) -> Reservation:
    side.engine.reserve("m", GIVEN)
    reservation = Reservation("m", GIVEN, 2, lease, side.engine.block_table("m"), 60.0)
    side.staging.add(reservation, 0.0)
    return reservation


def exported(side: Side, first: int, end: int, lease: Lease = LEASE, *, frozen: bool = False) -> out.Exported:
    for _ in side.transfers.export(Ticket(0, 1), cargo(side, first, end, lease, frozen=frozen)):
        pass
    answer = side.said.pop()
    assert isinstance(answer, out.Exported)
    return answer


def moved(break_copy: BreakCopy = "", at: int = 12) -> tuple[list[int], list[int]]:
    """Outputs of a session moved at `at`, and of one that was not."""
    arena = FakeArena()
    source, target = Side(arena), Side(arena, break_copy)
    outputs = decoded(source, at)
    reserved(target)
    end = -(-source.engine.computed("k") // CONFIG.block_tokens)
    manifest = exported(source, 0, end, frozen=True).manifest
    item = into.PrepareItem("m", "s", 2, manifest, tuple(outputs), 60)
    for _ in target.transfers.take_in_tails(Ticket(0, 1), into.Prepare("b", (item,))):
        pass
    [checked] = target.inbox.take(0)[0]
    assert isinstance(checked, Checked)
    assert checked.items[0][1].ok
    target.engine.activate([Arrival("m", outputs)])
    source.engine.unhold("k")
    return (
        [token.token_id for token in _drain(target.engine)],
        [token.token_id for token in _drain(source.engine)],
    )


def _drain(engine: SimEngine) -> Iterator[StepToken]:
    while engine.runnable():
        yield from engine.step().tokens


@pytest.mark.parametrize("at", [2, 9, 12])
def test_an_undamaged_move_is_identical(at: int) -> None:
    there, here = moved(at=at)
    assert there == here


@pytest.mark.parametrize("mode", ["flip", "swap", "stale"])
@pytest.mark.parametrize("at", [6, 9, 12])
def test_each_damage_changes_the_output(mode: BreakCopy, at: int) -> None:
    """The bench's `--break`: its comparison must notice."""
    there, here = moved(mode, at)
    assert there != here
    assert len(there) == len(here)


def test_a_lease_of_any_size_carries_a_session_in_pieces() -> None:
    small = msgspec.structs.replace(LEASE, size=2 * CONFIG.block_bytes)
    arena = FakeArena()
    source, target = Side(arena), Side(arena)
    decoded(source, 20)
    reservation = reserved(target, small)
    at = 0
    while at < 5:
        answer = exported(source, at, 5, small)
        assert answer.frontier == min(at + 2, 5)
        for _ in target.transfers.take_in(Ticket(0, 1), into.Import("m", answer.manifest)):
            pass
        assert isinstance(target.said.pop(), out.Imported)
        at = answer.frontier
    assert reservation.complete(20, CONFIG.block_tokens)
    assert not reservation.complete(21, CONFIG.block_tokens)
    tiny = msgspec.structs.replace(LEASE, size=CONFIG.block_bytes - 1)
    for _ in source.transfers.export(Ticket(0, 1), cargo(source, 0, 5, tiny)):
        pass
    assert source.said.pop() == out.Refused(
        Code.ARENA_TOO_SMALL, f"a block has {CONFIG.block_bytes} bytes, the lease {CONFIG.block_bytes - 1}"
    )


def test_the_lease_is_looked_at_again_between_blocks() -> None:
    """H96: a copy under way stops when its lease ends."""
    arena = FakeArena()
    source, target = Side(arena), Side(arena)
    decoded(source, 20)
    reservation = reserved(target)
    manifest = exported(source, 0, 5).manifest
    import_job = target.transfers.take_in(Ticket(0, 1), into.Import("m", manifest))
    export_job = source.transfers.export(Ticket(0, 1), cargo(source, 0, 5))
    for job in (import_job, export_job):
        next(job)
    arena.generation += 1
    for job in (import_job, export_job):
        assert list(job) == []
    for side in (source, target):
        refused = side.said.pop()
        assert isinstance(refused, out.Refused)
        assert refused.code == Code.LEASE_STALE
    assert list(reservation.filled) == [0]


def test_a_discard_in_the_middle_of_an_import_stops_it_before_the_blocks_are_freed() -> None:
    arena = FakeArena()
    source, target = Side(arena), Side(arena)
    decoded(source, 20)
    reserved(target)
    manifest = exported(source, 0, 5).manifest
    job = target.transfers.take_in(Ticket(0, 1), into.Import("m", manifest))
    next(job)
    target.staging.remove("m")
    target.engine.remove("m")
    assert list(job) == []
    assert target.said == [out.Refused(Code.LEASE_EXPIRED)]


def test_a_late_import_never_writes_into_blocks_that_the_engine_uses() -> None:
    """A repeated Prepare or Import after the seal leaves the blocks alone."""
    arena = FakeArena()
    source, target = Side(arena), Side(arena)
    outputs = decoded(source, 10)
    reservation = reserved(target)
    manifest = exported(source, 0, 3, frozen=True).manifest
    late = target.transfers.take_in(Ticket(0, 1), into.Import("m", manifest))
    next(late)
    item = into.PrepareItem("m", "s", 2, manifest, tuple(outputs), 60)
    for _ in target.transfers.take_in_tails(Ticket(0, 1), into.Prepare("b", (item,))):
        pass
    assert list(late) == []
    assert target.said == [out.Refused(Code.LEASE_EXPIRED)]
    with pytest.raises(SwapdError), reservation.writing():
        raise AssertionError("the gate is open")
    assert not reservation.expired(1e9)


def test_closing_waits_for_the_block_that_is_being_written() -> None:
    reservation = reserved(Side(FakeArena()))
    inside, leave, closed = Event(), Event(), Event()

    def write() -> None:
        with reservation.writing():
            inside.set()
            assert leave.wait(WAIT_S)
            assert not closed.is_set()

    def close() -> None:
        reservation.close()
        closed.set()

    writer, closer = Thread(target=write), Thread(target=close)
    writer.start()
    assert inside.wait(WAIT_S)
    closer.start()
    leave.set()
    writer.join(WAIT_S)
    closer.join(WAIT_S)
    assert closed.is_set()


@pytest.mark.parametrize(
    "change", [{"index": 99}, {"index": -1}, {"offset": 64 * 16}, {"offset": -64}, {"valid": 0}, {"valid": 5}]
)
def test_a_manifest_that_points_outside_is_refused(change: dict[str, int]) -> None:
    arena = FakeArena()
    source, target = Side(arena), Side(arena)
    decoded(source, 10)
    reserved(target)
    manifest = exported(source, 0, 3).manifest
    entry = msgspec.structs.replace(manifest.blocks[0], **change)
    bad = seal(msgspec.structs.replace(manifest, blocks=(entry,)))
    assert list(target.transfers.take_in(Ticket(0, 1), into.Import("m", bad))) == []
    refused = target.said.pop()
    assert isinstance(refused, out.Refused)
    assert refused.code == Code.MANIFEST_MISMATCH


def test_the_manifest_carries_the_checksum_of_what_lies_in_the_arena() -> None:
    """B21."""
    arena = FakeArena()
    source = Side(arena)
    decoded(source, 12)
    manifest = exported(source, 0, 4).manifest
    assert [entry.valid for entry in manifest.blocks] == [4, 4, 4, 2]
    for entry in manifest.blocks:
        assert entry.crc == zlib.crc32(arena.bytes[entry.offset : entry.offset + CONFIG.block_bytes])


@pytest.mark.parametrize(
    ("block_s", "expected"),
    [
        pytest.param(0.001, "aaabbb", id="what fits in a turn is copied in one"),
        pytest.param(0.011, "aabbab", id="a long one goes to the back of the queue"),
        pytest.param(0.03, "ababab", id="a turn has at least one block"),
    ],
)
def test_jobs_take_turns(monkeypatch: pytest.MonkeyPatch, block_s: float, expected: str) -> None:
    """B13: short copies end early, so that they can be taken in meanwhile; none waits for a long one."""
    clock = {"now": 0.0}
    order: list[str] = []
    begin, done = Event(), Event()

    def gate() -> Iterator[None]:
        assert begin.wait(WAIT_S)
        yield

    def job(name: str) -> Iterator[None]:
        for _ in range(3):
            order.append(name)
            clock["now"] += block_s
            yield
        if name == "b":
            done.set()

    monkeypatch.setattr(copier, "time", SimpleNamespace(monotonic=lambda: clock["now"]))
    thread = CopyThread("test")
    thread.submit(gate())
    for name in "ab":
        thread.submit(job(name))
    begin.set()
    assert done.wait(WAIT_S)
    assert "".join(order) == expected
    assert thread.stop(WAIT_S)


def test_a_job_that_fails_does_not_end_the_others() -> None:
    done = Event()

    def failing() -> Iterator[None]:
        yield
        raise ZeroDivisionError

    def job() -> Iterator[None]:
        yield
        yield
        done.set()

    thread = CopyThread("test")
    thread.submit(failing())
    thread.submit(job())
    assert done.wait(WAIT_S)
    assert thread.stop(WAIT_S)


def test_precopy_is_busy_for_its_share_of_the_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """B30: after work of 3 ms at a quarter, 9 ms of rest."""
    clock = {"now": 0.0, "slept": 0.0}
    done = Event()

    def sleep(seconds: float) -> None:
        clock["slept"] += seconds
        clock["now"] += seconds

    def job() -> Iterator[None]:
        for _ in range(10):
            clock["now"] += 0.003
            yield
        done.set()

    fake = SimpleNamespace(monotonic=lambda: clock["now"], sleep=sleep)
    monkeypatch.setattr(copier, "time", fake)
    thread = CopyThread("test", duty=0.25)
    thread.submit(job())
    assert done.wait(WAIT_S)
    assert thread.stop(WAIT_S)
    assert clock["slept"] == pytest.approx(0.030 * 3)
