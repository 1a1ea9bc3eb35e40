"""Processes that the store's tests start and kill: `python -m tests.store.children ROLE PATH [NUMBER…]`.

They write one line for each thing that a client would have been shown.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path

import trio

from swapd.errors import SwapdError
from swapd.store.ledger import Appended, append_tokens, load_tokens
from swapd.store.sessions import insert_session, load_session
from swapd.store.writer import Store
from tests.store.failing import opened
from tests.store.records import append, record, running


def say(*words: object) -> None:
    """One write, so that a line is there whole or not at all."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def create(path: Path) -> None:
    """Create sessions for ever and say each one's name once it is durable (H1)."""
    async with opened(path) as store:
        for n in range(1_000_000):
            name = f"{os.getpid()}-{n}"
            await store.commit(lambda db, name=name: insert_session(db, record(name)))  # type: ignore[misc]
            say(name)


async def show(path: Path, sessions: int, last_pos: int) -> None:
    """Decode in some sessions at once and say each token once it is durable (H18); 0: for ever."""
    async with opened(path) as store, trio.open_nursery() as nursery:
        for n in range(sessions):
            nursery.start_soon(_decode, store, f"s{n}", last_pos)


async def _decode(store: Store, session: str, last_pos: int) -> None:
    if await store.read(lambda db: load_session(db, session)) is None:
        await store.commit(running(session))
    pos = len(await store.read(lambda db: load_tokens(db, session)))
    while not last_pos or pos < last_pos:
        pos += 1
        # The token is a function of its position, so that a wrong one would show.
        batch = append(session, pos, (pos * 7,))
        got = await store.commit(lambda db, batch=batch: append_tokens(db, batch))  # type: ignore[misc]
        assert got == Appended("accepted", pos), got
        say(session, pos, pos * 7)


async def fill(path: Path, limit_bytes: int) -> None:
    """Append until files may not grow any more, then try again, and say what happened (H160)."""
    async with opened(path) as store:
        await store.commit(running("s"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, resource.RLIM_INFINITY))
        pos = await _append_until_failed(store)
        # There is room again, but the outcome of the last commit is still unknown.
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await _try_again(store, pos)


async def sync(path: Path, armed: Path) -> None:
    """Append until fsync fails, which is from when `armed` is there; then try again (H160)."""
    async with opened(path) as store:
        await store.commit(running("s"))
        pos = await _append_until_failed(store)
        # It would succeed now, and mean nothing.
        os.unlink(armed)
        await _try_again(store, pos)


async def _append_until_failed(store: Store) -> int:
    """Returns how many tokens were acknowledged."""
    pos = 0
    while not store.failed:
        batch = append("s", pos + 1, tuple(range(pos + 1, pos + 33)))
        try:
            got = await store.commit(lambda db, batch=batch: append_tokens(db, batch))  # type: ignore[misc]
        except SwapdError as error:
            say("refused", error.code)
        else:
            pos = got.accepted
            say("shown", pos)
    return pos


async def _try_again(store: Store, pos: int) -> None:
    await store.wait_failed()
    say("because", *store.trouble())
    try:
        await store.commit(lambda db: append_tokens(db, append("s", pos + 1, (0,))))
    except SwapdError as error:
        say("refused", error.code)
    say("read", len(await store.read(lambda db: load_tokens(db, "s"))))


def hold(path: Path) -> None:
    """Open the store, fork a child that does not exec and says that it lives, and wait (H123)."""
    store = Store.open(path)
    if os.fork() == 0:
        say("forked")
        sys.stdin.read()
        os._exit(0)
    time.sleep(60)
    store.close()


def main() -> None:
    role, path = sys.argv[1], Path(sys.argv[2])
    if role == "sync":
        trio.run(sync, path, Path(sys.argv[3]))
        return
    number, other = (*map(int, sys.argv[3:]), 0, 0)[:2]
    try:
        if role == "create":
            trio.run(create, path)
        elif role == "show":
            trio.run(show, path, number, other)
        elif role == "fill":
            trio.run(fill, path, number)
        elif role == "hold":
            hold(path)
        elif role == "open":
            Store.open(path).close()
    except SwapdError as error:
        say(error.code)
        sys.exit(2)


if __name__ == "__main__":
    main()
