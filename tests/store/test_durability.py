"""What was shown is there after SIGKILL (H1, H18). Real processes, killed at random instants."""

from __future__ import annotations

import contextlib
import os
import random
import re
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from swapd.store.ledger import load_tokens
from swapd.store.sessions import load_session
from swapd.store.writer import Store
from tests.store.disks import failing_fsync

SESSIONS = 4
KILLS = 5
INSTANTS = 200


@contextmanager
def child(
    role: str,
    path: Path,
    *arguments: str,
    tracer: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    command = [*tracer, sys.executable, "-m", "tests.store.children", role, str(path), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as process:
        try:
            yield process
        finally:
            process.kill()


def shown_before_kill(process: subprocess.Popen[bytes], lines: int) -> list[list[str]]:
    """Kill the process after so many lines; return all whole lines that it has written."""
    assert process.stdout is not None
    shown = [process.stdout.readline() for _ in range(lines)]
    process.kill()
    shown += process.stdout.readlines()
    return [line.decode().split() for line in shown if line.endswith(b"\n")]


@contextmanager
def restarted(path: Path) -> Iterator[sqlite3.Connection]:
    """What a coordinator finds that starts after the kill."""
    Store.open(path).close()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        yield db


def test_a_session_that_was_created_survives_a_kill_right_after_the_reply(path: Path) -> None:
    """H1"""
    for lines in (1, 5):
        with child("create", path) as process:
            shown = shown_before_kill(process, lines)
        assert len(shown) >= lines
        with restarted(path) as db:
            assert all(load_session(db, name) is not None for (name,) in shown)


def test_every_token_that_was_shown_exists_after_a_kill_at_any_instant(path: Path) -> None:
    """H18: some sessions at once, killed again and again while they decode on."""
    rng = random.Random(18)
    for _ in range(KILLS):
        with child("show", path, str(SESSIONS)) as process:
            shown = shown_before_kill(process, rng.randrange(1, 400))
        with restarted(path) as db:
            for n in range(SESSIONS):
                stored = load_tokens(db, f"s{n}")
                assert stored == [7 * pos for pos in range(1, len(stored) + 1)]
                seen = [(int(pos), int(token)) for session, pos, token in shown if session == f"s{n}"]
                assert all(stored[pos - 1] == token for pos, token in seen)
                record = load_session(db, f"s{n}")
                assert record is None or record.accepted == len(stored)


def test_at_two_hundred_instants_all_that_was_shown_would_survive_a_kill(path: Path) -> None:
    """H18: a stopped process's files are what SIGKILL at that instant would leave; each is opened as such."""
    rng = random.Random(200)
    seen: dict[str, int] = {}
    rest = b""
    with child("show", path, str(SESSIONS)) as process:
        assert process.stdout is not None
        rest += process.stdout.readline()
        output = process.stdout.fileno()
        os.set_blocking(output, False)
        for instant in range(INSTANTS):
            # Not to be in step with the writer: some instants after few lines, some after many.
            for _ in range(rng.randrange(1, 8)):
                select.select([output], [], [], 5.0)
                rest += os.read(output, rng.randrange(1, 200))
            os.kill(process.pid, signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
            with contextlib.suppress(BlockingIOError):
                while data := os.read(output, 1 << 16):
                    rest += data
            *lines, rest = rest.split(b"\n")
            for session, pos, token in (line.decode().split() for line in lines):
                assert int(token) == 7 * int(pos)
                seen[session] = max(seen.get(session, 0), int(pos))
            with image(path, path.parent / f"instant{instant}") as db:
                for session, shown in seen.items():
                    stored = load_tokens(db, session)
                    assert stored == [7 * pos for pos in range(1, len(stored) + 1)]
                    assert len(stored) >= shown
            os.kill(process.pid, signal.SIGCONT)
    assert len(seen) == SESSIONS


@contextmanager
def image(path: Path, folder: Path) -> Iterator[sqlite3.Connection]:
    """A crash image: the database and its log, without the index that a restart makes anew."""
    folder.mkdir()
    try:
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{path}{suffix}", folder / f"swapd.db{suffix}")
        with closing(sqlite3.connect(folder / "swapd.db")) as db:
            yield db
    finally:
        shutil.rmtree(folder)


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_the_disk_has_a_token_before_its_reader_does(path: Path, tmp_path: Path) -> None:
    """H18: in the trace of system calls, what was written to the log is synced before anything is shown.

    One session, so that nothing of a later token is written before the one before it was shown.
    """
    trace = tmp_path / "trace"
    tracer = ["strace", "-f", "-y", "-e", "trace=pwrite64,write,fsync,fdatasync", "-o", str(trace)]
    with child("show", path, "1", "100", tracer=tracer) as process:
        output, _ = process.communicate(timeout=60)
    assert len(output.splitlines()) == 100
    unsynced = shown = 0
    syncing: set[str] = set()
    for line in trace.read_text().splitlines():
        # `pid call(fd</path>, …) = result`, or two halves with calls of other threads in between.
        pid, call = line.split(maxsplit=1)
        if re.match(r"pwrite64\(\d+<[^>]*-wal>", call):
            unsynced += 1
        elif re.match(r"fdatasync\(\d+<[^>]*-wal>|fsync\(\d+<[^>]*-wal>", call):
            syncing.add(pid)
        elif re.match(r'write\(1<[^>]*>, "s0 ', call):
            shown += 1
            assert unsynced == 0, line
        if pid in syncing and "unfinished" not in call and call.endswith("= 0"):
            syncing.remove(pid)
            unsynced = 0
    assert shown == 100


def test_a_disk_that_is_full_stops_the_store_and_loses_nothing(path: Path) -> None:
    """H160: nothing more is acknowledged, the log stays, and after a restart with room all is there."""
    with child("fill", path, str(250_000)) as process:
        output, _ = process.communicate(timeout=30)
        assert process.returncode == 0
    lines = [line.split() for line in output.decode().splitlines()]
    shown = [int(words[1]) for words in lines if words[0] == "shown"]
    # Then one refusal of the commit that met the full disk, and one of the commit after it.
    assert [words for words in lines if words[0] == "refused"] == [["refused", "store_failed"]] * 2
    assert lines.index(["refused", "store_failed"]) == len(shown) > 2
    # A limit on a file's size is no full disk: what it does to the log, SQLite does not promise.
    assert ["because", "store_failed", "disk_error"] in lines
    assert lines[-1] == ["read", str(shown[-1])]
    assert path.with_name("swapd.db-wal").exists()
    with restarted(path) as db:
        stored = load_tokens(db, "s")
        assert stored == list(range(1, len(stored) + 1))
        assert len(stored) >= shown[-1]
    with child("show", path, "1") as process:
        assert len(shown_before_kill(process, 3)) >= 3


def test_an_fsync_that_fails_stops_the_store_for_good(path: Path, tmp_path: Path) -> None:
    """H160: nothing is acknowledged any more, the same fsync is not asked again, and the log stays."""
    env, armed = failing_fsync(tmp_path)
    with child("sync", path, str(armed), env=env) as process:
        assert process.stdout is not None
        first = b"".join(process.stdout.readline() for _ in range(3))
        armed.touch()
        output, _ = process.communicate(timeout=30)
        assert process.returncode == 0
    lines = [line.split() for line in (first + output).decode().splitlines()]
    shown = [int(line[1]) for line in lines if line[0] == "shown"]
    # One more where a commit met it and not a checkpoint.
    refused = [line for line in lines if line[0] == "refused"]
    assert refused in ([["refused", "store_failed"]] * 2, [["refused", "store_failed"]])
    assert ["because", "store_failed", "disk_error"] in lines
    assert path.with_name("swapd.db-wal").exists()
    with restarted(path) as db:
        stored = load_tokens(db, "s")
        assert stored == list(range(1, len(stored) + 1))
        # The last one may be there or not: its outcome was unknown.
        assert len(stored) - shown[-1] in (0, 32)


def test_what_a_failed_fsync_left_in_the_log_is_written_again_at_the_start(
    path: Path, tmp_path: Path
) -> None:
    """H160: the kernel may hold it for written though it never was; it is in the database before use."""
    with child("show", path, "1") as process:
        shown = shown_before_kill(process, 5)
    store = Store.open(path)
    try:
        alone = tmp_path / "without-the-log.db"
        shutil.copyfile(path, alone)
        with closing(sqlite3.connect(alone)) as db:
            assert len(load_tokens(db, "s0")) >= len(shown)
    finally:
        store.close()


def test_a_second_coordinator_is_refused_at_once(path: Path) -> None:
    """H122"""
    store = Store.open(path)
    try:
        with child("open", path) as process:
            output, _ = process.communicate(timeout=30)
        assert (output, process.returncode) == (b"coordinator_lock_held\n", 2)
    finally:
        store.close()
    with child("open", path) as process:
        process.communicate(timeout=30)
    assert process.returncode == 0


def test_a_forked_child_does_not_keep_the_store_of_its_dead_parent(path: Path) -> None:
    """H123"""
    with child("hold", path) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline()
        process.kill()
        process.wait()
        # The forked child lives: it waits for the end of its input, which this test still holds.
        Store.open(path).close()
        process.stdin.close()
