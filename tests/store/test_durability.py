"""What was shown is there after SIGKILL (H1, H18). Real processes, killed at random instants."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from swapd.store.ledger import load_tokens
from swapd.store.sessions import load_session
from swapd.store.writer import Store

SESSIONS = 4
KILLS = 5


@contextmanager
def child(role: str, path: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.store.children", role, str(path), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
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


def test_a_disk_that_is_full_stops_the_store_and_loses_nothing(path: Path) -> None:
    """H160: nothing more is acknowledged, the log stays, and after a restart with room all is there."""
    with child("fill", path, str(150_000)) as process:
        output, _ = process.communicate(timeout=30)
        assert process.returncode == 0
    lines = [line.split() for line in output.decode().splitlines()]
    shown = [int(words[1]) for words in lines if words[0] == "shown"]
    # Then one refusal of the commit that met the full disk, and one of the commit after it.
    assert [words for words in lines if words[0] == "refused"] == [["refused", "store_failed"]] * 2
    assert lines.index(["refused", "store_failed"]) == len(shown) > 2
    assert lines[-1] == ["read", str(shown[-1])]
    assert path.with_name("swapd.db-wal").exists()
    with restarted(path) as db:
        stored = load_tokens(db, "s")
        assert stored == list(range(1, len(stored) + 1))
        assert len(stored) >= shown[-1]
    with child("show", path, "1") as process:
        assert len(shown_before_kill(process, 3)) >= 3


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
