"""A sampler that is lost takes only its own readings with it, and comes back by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio
import zmq

from swapd.config import (
    Config,
    CredentialConfig,
    DeviceConfig,
    ModelConfig,
    OwnerConfig,
    PressureConfig,
    WorkerConfig,
)
from swapd.devices import link as link_module
from swapd.devices.link import Kind, SamplerLink
from swapd.devices.sampler_process import SamplerProcess
from swapd.messages.sampler import (
    MAX_SAMPLER_FRAME_BYTES,
    Measurement,
    Sample,
    SampledDevice,
    SamplerSettings,
    decode_measured,
    encode_sampling,
)
from swapd.transport.sockets import Context, open_socket

WAIT_S = 30.0
HANGS_S = 2.0
"""When no answer means that a sampler hangs, where a test has one hang; elsewhere none is only slow."""
DEVICES = (DeviceConfig("one", "cpu", cores=(0,)), DeviceConfig("none", "cpu", cores=(4095,)))


def config(folder: Path, poll_ms: int = 250) -> Config:
    return Config(
        database_path=str(folder / "swapd.db"),
        socket_dir=str(folder),
        workers=(WorkerConfig("a", engine="sim"),),
        models=(ModelConfig("m", "."),),
        credentials=(CredentialConfig("n", token="t"),),
        devices=DEVICES,
        owner=OwnerConfig(gpu_pressure=PressureConfig(poll_ms=poll_ms)),
    )


class Heard:
    """What a link has told, and a way to wait for more."""

    def __init__(self) -> None:
        self.all: list[Measurement] = []
        self._more = trio.Event()

    def __call__(self, measurement: Measurement) -> None:
        self.all.append(measurement)
        self._more.set()
        self._more = trio.Event()

    def of(self, device: str) -> list[Measurement]:
        return [each for each in self.all if each.device == device]

    async def until(self, enough: Callable[[], bool]) -> None:
        with trio.fail_after(WAIT_S):
            while not enough():
                await self._more.wait()

    async def result(self, result: str, device: str = "one") -> Measurement:
        """The next measurement with that result."""
        start = len(self.all)
        found: list[Measurement] = []

        def has() -> bool:
            found[:] = [each for each in self.all[start:] if (each.device, each.result) == (device, result)]
            return bool(found)

        await self.until(has)
        return found[0]


@asynccontextmanager
async def running(
    folder: Path,
    heard: Callable[[Measurement], None],
    *,
    poll_ms: int = 250,
    deadline_s: float = WAIT_S,
    kind: Kind = "cpu",
    devices: tuple[DeviceConfig, ...] = DEVICES,
) -> AsyncIterator[SamplerLink]:
    context: Context = zmq.Context()
    try:
        link = SamplerLink(
            config(folder, poll_ms), kind, devices, context, tuple, heard, deadline_s=deadline_s
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(link.run)
            yield link
            nursery.cancel_scope.cancel()
    finally:
        context.term()


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def pid_of(link: SamplerLink) -> int:
    pid = link.statistics().pid
    assert pid is not None
    return pid


async def test_fifty_polls_of_the_real_cpu_give_fifty_readings(folder: Path) -> None:
    """Every device at every tick, one after the other; a device without cores that are online fails alone."""
    heard = Heard()
    async with running(folder, heard) as link:
        await heard.until(lambda: len(heard.of("one")) >= 50)
        statistics = link.statistics()
    one = heard.of("one")[:50]
    assert one[0].result == "first"
    readings = [each.reading_pct for each in one if each.result == "ok"]
    # A busy machine may be late with one poll, and the next is too early then.
    assert len(readings) >= 40
    assert all(reading is not None and 0.0 <= reading <= 100.0 for reading in readings)
    assert [each.at_s for each in one] == sorted(each.at_s for each in one)
    assert {each.result for each in heard.of("none")} <= {"first", "failed", "invalid"}
    assert "failed" in {each.result for each in heard.of("none")}
    assert (statistics.starts, statistics.ended, statistics.unanswered, statistics.refused) == (1, 0, 0, 0)
    assert files(folder) == ["sampler-cpu.log"]


async def test_a_measurement_can_be_asked_for_before_the_next_tick(folder: Path) -> None:
    """D38: whoever waits for a change need not wait for the pace, which stays as it is."""
    heard = Heard()
    async with running(folder, heard, poll_ms=600_000) as link:
        await heard.until(lambda: len(heard.of("one")) == 1)
        with trio.fail_after(WAIT_S):
            while len(heard.of("one")) < 3:
                link.ask_soon()
                await trio.sleep(0.2)
        assert [each.result for each in heard.of("one")[:1]] == ["first"]


async def test_a_measurement_that_is_asked_for_at_a_busy_moment_is_not_forgotten(folder: Path) -> None:
    """D38: else whoever waits would wait for the next tick after all."""
    heard = Heard()
    wishes: list[Callable[[], None]] = []

    def on_measured(measurement: Measurement) -> None:
        heard(measurement)
        if wishes:
            wishes.pop()()  # now, when the link waits for no tick

    async with running(folder, on_measured, poll_ms=600_000) as link:
        wishes.append(link.ask_soon)
        await heard.until(lambda: len(heard.of("one")) == 2)


async def test_its_files_are_the_users_alone(folder: Path) -> None:
    """H107: settings, log and socket."""
    heard = Heard()
    async with running(folder, heard):
        await heard.result("ok")
        modes = {name: os.stat(folder / name).st_mode & 0o777 for name in files(folder)}
    assert modes == dict.fromkeys(("sampler-cpu.log", "sampler-cpu.settings.json", "sampler-cpu.sock"), 0o600)


async def test_a_killed_sampler_fails_its_readings_at_once_and_is_started_anew(folder: Path) -> None:
    heard = Heard()
    async with running(folder, heard) as link:
        await heard.result("ok")
        before = await pid_of(link)
        os.kill(before, signal.SIGKILL)
        failed = await heard.result("failed")
        assert failed.reason == "the sampler process ended"
        await heard.result("ok")
        after = await pid_of(link)
        assert after != before
        assert (link.statistics().ended, link.statistics().starts) == (1, 2)
    assert not alive(before)
    assert not alive(after)
    assert files(folder) == ["sampler-cpu.log"]


async def test_a_sampler_that_hangs_is_killed_and_its_readings_fail_meanwhile(folder: Path) -> None:
    heard = Heard()
    async with running(folder, heard, deadline_s=HANGS_S) as link:
        await heard.result("ok")
        before = await pid_of(link)
        os.kill(before, signal.SIGSTOP)
        failed = await heard.result("failed")
        assert failed.reason == "the sampler does not answer"
        # Ticks go on while nobody can be asked.
        await heard.result("failed")
        await heard.result("ok")
        assert not alive(before)
        # More than once where the machine itself stood still.
        assert link.statistics().unanswered >= 1
        assert link.statistics().ended == 0


async def test_a_link_that_is_cancelled_ends_a_sampler_that_hangs(folder: Path) -> None:
    heard = Heard()
    async with running(folder, heard) as link:
        await heard.result("ok")
        pid = await pid_of(link)
        os.kill(pid, signal.SIGSTOP)
    assert not alive(pid)
    assert files(folder) == ["sampler-cpu.log"]


async def test_a_sampler_that_cannot_start_gives_failed_readings(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the service lives on; it is tried again, ever less often."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    heard = Heard()
    async with running(folder, heard) as link:
        await heard.until(lambda: len(heard.of("one")) >= 4)
        assert {each.reason for each in heard.all} == {"the sampler process cannot be started"}
        monkeypatch.undo()
        await heard.result("first")
        assert link.statistics().starts == 1


async def test_what_cannot_be_killed_is_left_and_not_too_many_of_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver may hold a process in the kernel: nobody waits for it, and it is noticed when it goes."""
    monkeypatch.setattr(link_module, "MAX_ABANDONED", 1)

    async def survives(*_: object, **__: object) -> bool:
        return False

    heard = Heard()
    async with running(folder, heard, deadline_s=HANGS_S) as link:
        await heard.result("ok")
        pid = await pid_of(link)
        monkeypatch.setattr(SamplerProcess, "end", survives)
        try:
            os.kill(pid, signal.SIGSTOP)
            await heard.result("failed")
            await heard.until(lambda: link.statistics().abandoned == 1)
            # Beyond the first back-off, where another would be started.
            start = len(heard.of("one"))
            await heard.until(lambda: len(heard.of("one")) >= start + 8)
            assert {each.result for each in heard.of("one")[start:]} == {"failed"}
            assert (link.statistics().starts, link.statistics().pid) == (1, None)
        finally:
            monkeypatch.undo()
            os.kill(pid, signal.SIGKILL)
        await heard.result("ok")
        assert link.statistics().abandoned == 0


COORDINATOR = """
import sys, trio, zmq
from pathlib import Path
from swapd.devices.link import Kind, SamplerLink
from swapd.devices.sampler_process import SamplerProcess
from tests.devices.test_link import DEVICES, config
link = SamplerLink(config(Path(sys.argv[1])), "cpu", DEVICES, zmq.Context(), tuple, lambda m: tell())
def tell():
    print(link.statistics().pid, flush=True)
trio.run(link.run)
"""


def start_coordinator(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", COORDINATOR, str(folder)], stdout=subprocess.PIPE)


async def test_a_sampler_ends_when_its_coordinator_is_killed(folder: Path) -> None:
    with start_coordinator(folder) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        pidfd = os.pidfd_open(pid)
        try:
            parent.kill()
            parent.wait()
            with trio.fail_after(WAIT_S):
                await trio.lowlevel.wait_readable(pidfd)
        finally:
            os.close(pidfd)
    assert "sampler-cpu.sock" not in files(folder)


def start_sampler(folder: Path, parent_pid: int) -> subprocess.Popen[bytes]:
    """A sampler by itself, as the link starts it; listens on `x.sock`."""
    folder.mkdir(mode=0o700)
    device = SampledDevice("one", cores=(0,))
    settings = SamplerSettings("cpu", f"ipc://{folder}/x.sock", (device,), parent_pid=parent_pid)
    path = folder / "settings.json"
    path.write_bytes(msgspec.json.encode(settings))
    command = [sys.executable, "-m", "swapd", "sampler", "--settings", str(path)]
    return subprocess.Popen(command, stderr=subprocess.PIPE)


async def test_garbage_is_thrown_away_and_the_next_question_answered(folder: Path) -> None:
    context: Context = zmq.Context()
    good = encode_sampling(Sample(1, 7, ()))
    garbage = [
        [b""],
        [b"\x00\xff"],
        [b"[]"],
        [b'{"type":"sample"}'],
        [good.replace(b'"v":1', b'"v":2')],
        [good, good],
        [good[:-1] + b',"more":1}'],
        [b"[" * 100_000],
        [b'{"x":' + b"[" * 100_000],
    ]
    endpoint = f"ipc://{folder}/x.sock"
    with start_sampler(folder, os.getpid()) as process:
        async with open_socket(context, zmq.DEALER, connect=endpoint, linger_ms=0) as socket:
            with trio.fail_after(WAIT_S):
                for frames in garbage:
                    await socket.send_multipart(frames)
                await socket.send_multipart([good])
                (frame,) = await socket.recv_multipart()
        measured = decode_measured(frame)
        assert (measured.number, measured.devices[0].result) == (7, "first")
        async with open_socket(context, zmq.DEALER, connect=endpoint, linger_ms=0) as socket:
            await socket.send_multipart([b"x" * (MAX_SAMPLER_FRAME_BYTES + 1)])
        async with open_socket(context, zmq.DEALER, connect=endpoint, linger_ms=0) as socket:
            with trio.fail_after(WAIT_S):
                await socket.send_multipart([good])
                assert decode_measured((await socket.recv_multipart())[0]).number == 7
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        said = process.stderr.read()
        assert process.wait() == 0
    context.term()
    assert said.count(b"question refused") == len(garbage)
    assert b"Traceback" not in said
    assert files(folder) == ["settings.json"]


def test_a_sampler_whose_parent_is_another_process_does_not_start(folder: Path) -> None:
    with start_sampler(folder, parent_pid=1) as process:
        _, said = process.communicate()
    assert process.returncode == 2
    assert b"the parent is gone" in said
    assert files(folder) == ["settings.json"]


async def test_an_answer_that_is_none_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old number, no JSON, a reading out of range, a device left out: no reading comes of any of them."""
    script = f"""
import sys, json, zmq
s = zmq.Context().socket(zmq.ROUTER)
s.bind("ipc://{folder}/sampler-cpu.sock")
while True:
    peer, frame = s.recv_multipart()
    n = json.loads(frame)["number"]
    def answer(n, *devices):
        s.send_multipart([peer, json.dumps(
            dict(type="measured", v=1, number=n, took_ms=0, devices=devices)).encode()])
    s.send_multipart([peer, b"?"])
    answer(n - 1, dict(device="one", result="ok", at_s=1, reading_pct=50))
    answer(n, dict(device="one", result="ok", at_s=1, reading_pct=101 if n % 2 else None),
           dict(device="stranger", result="ok", at_s=1, reading_pct=1))
"""

    def impostor(*_: object) -> SamplerProcess:
        process = subprocess.Popen([sys.executable, "-c", script])
        started.append(process)
        return SamplerProcess(process.pid, os.pidfd_open(process.pid))

    started: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(SamplerProcess, "start", impostor)
    heard = Heard()
    try:
        async with running(folder, heard) as link:
            await heard.until(lambda: len(heard.of("one")) >= 4)
            assert link.statistics().refused >= 8
    finally:
        for each in started:
            each.kill()
            each.wait()
    assert {each.result for each in heard.of("one")} == {"invalid"}
    assert {each.reason for each in heard.of("none")} == {"the sampler did not measure it"}
    assert {each.device for each in heard.all} == {"one", "none"}
