"""Who comes in, how long one stays, and who has to go."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from swapd.errors import Code, SwapdError
from swapd.signin.attempts import FREE_TRIES
from swapd.signin.codes import VALID_S
from swapd.signin.door import ConsoleDoor
from swapd.signin.rules import IDLE_S, LASTS_S, MAX_SIGNED_IN, TOUCH_S, digest
from swapd.signin.tokens import TokenFiles
from swapd.store.sign_ins import load_sign_ins
from swapd.store.writer import Store
from swapd.views import Caller
from tests.signin.memory import OWNER_TOKEN, VIEWER_TOKEN, MemoryDoor, MemoryStore

OPERATOR, TENANT = Caller("ops", True), Caller("tenant")
HERE, THERE = "192.0.2.1", "192.0.2.2"


def code_of(url: str) -> str:
    return url.partition("#")[2]


async def refusal(door: ConsoleDoor, secret: str, peer: str = HERE) -> SwapdError:
    with pytest.raises(SwapdError) as refused:
        await door.sign_in(secret, peer)
    return refused.value


def is_in(door: ConsoleDoor, cookie: str) -> bool:
    try:
        door.signed_in(cookie)
    except SwapdError:
        return False
    return True


async def test_a_token_lets_in_as_its_role() -> None:
    door = MemoryDoor()
    for token, role, caller in (
        (OWNER_TOKEN, "owner", Caller("(owner)", is_operator=True)),
        (f" {VIEWER_TOKEN}\n", "viewer", Caller("(viewer)", is_viewer=True)),
    ):
        made = await door.sign_in(token, HERE)
        signed = door.signed_in(made.cookie)
        assert (made.role, signed.role, signed.caller) == (role, role, caller)


async def test_a_link_lets_one_browser_in_and_no_second() -> None:
    door = MemoryDoor()
    door.listens("0.0.0.0", 8099)
    link = door.link(OPERATOR, "viewer")
    assert link.url.startswith("http://127.0.0.1:8099/sign-in#")
    made = await door.sign_in(code_of(link.url), HERE)
    assert door.signed_in(made.cookie).role == "viewer"
    assert (await refusal(door, code_of(link.url))).code is Code.SIGN_IN_REFUSED


async def test_a_link_expires() -> None:
    door = MemoryDoor()
    link = door.link(OPERATOR, "owner")
    door.clocks.now += VALID_S
    assert (await refusal(door, code_of(link.url))).code is Code.SIGN_IN_REFUSED


@pytest.mark.parametrize("caller", [TENANT, Caller("(viewer)", is_viewer=True)])
async def test_only_an_operator_makes_links_and_ends_others_sign_ins(caller: Caller) -> None:
    door = MemoryDoor()
    made = await door.sign_in(OWNER_TOKEN, HERE)
    with pytest.raises(SwapdError) as refused:
        door.link(caller, "viewer")
    assert refused.value.code is Code.OPERATOR_REQUIRED
    for call in (door.sign_out_everywhere, door.new_tokens):
        with pytest.raises(SwapdError) as refused:
            await call(caller)
        assert refused.value.code is Code.OPERATOR_REQUIRED
    assert is_in(door, made.cookie)


@pytest.mark.parametrize(
    "secret", ["", " ", "wrong", OWNER_TOKEN[:-1], OWNER_TOKEN + "x", "é" * 40, "x" * 10_000]
)
async def test_anything_else_is_refused(secret: str) -> None:
    door = MemoryDoor()
    assert (await refusal(door, secret)).code is Code.SIGN_IN_REFUSED


async def test_wrong_tries_make_their_peer_wait_and_nobody_else() -> None:
    """While it waits, the right token is not looked at either; elsewhere it is."""
    door = MemoryDoor()
    for _ in range(FREE_TRIES):
        await refusal(door, "wrong")
    limited = await refusal(door, OWNER_TOKEN)
    assert limited.code is Code.SIGN_IN_LIMITED
    assert limited.retry_after_s == 1.0
    await door.sign_in(OWNER_TOKEN, THERE)
    door.clocks.now += 1.0
    await door.sign_in(OWNER_TOKEN, HERE)


async def test_a_link_opens_whoever_is_guessing_from_the_same_address() -> None:
    """Another user of this machine cannot lock its owner out."""
    door = MemoryDoor()
    for _ in range(FREE_TRIES):
        await refusal(door, "wrong")
    link = door.link(OPERATOR, "owner")
    assert is_in(door, (await door.sign_in(code_of(link.url), HERE)).cookie)


async def test_guessing_from_everywhere_does_not_lock_the_right_token_out() -> None:
    door = MemoryDoor()
    for n in range(2000):
        await refusal(door, "wrong", f"10.0.{n // 250}.{n % 250}")
    await door.sign_in(OWNER_TOKEN, HERE)


async def test_a_sign_in_ends_when_nobody_looked_for_a_week_and_after_a_month_anyway() -> None:
    door = MemoryDoor()
    made = await door.sign_in(OWNER_TOKEN, HERE)
    for _ in range(4):
        door.clocks.now += IDLE_S - 1
        assert is_in(door, made.cookie)
    door.clocks.now += LASTS_S - 4 * (IDLE_S - 1)
    assert not is_in(door, made.cookie)
    made = await door.sign_in(OWNER_TOKEN, HERE)
    door.clocks.now += IDLE_S
    assert not is_in(door, made.cookie)


async def test_looking_writes_once_a_minute() -> None:
    door = MemoryDoor()
    made = await door.sign_in(OWNER_TOKEN, HERE)
    before = door.store.writes
    for _ in range(100):
        door.clocks.now += TOUCH_S / 40
        door.signed_in(made.cookie)
    assert door.store.writes - before == 2


async def test_only_so_many_sign_ins_at_once_and_the_one_that_was_away_longest_ends() -> None:
    door = MemoryDoor()
    cookies = []
    for _ in range(MAX_SIGNED_IN):
        cookies.append((await door.sign_in(OWNER_TOKEN, HERE)).cookie)
        door.clocks.now += 1.0
    door.clocks.now += TOUCH_S
    door.signed_in(cookies[0])
    await door.sign_in(VIEWER_TOKEN, HERE)
    assert is_in(door, cookies[0])
    assert not is_in(door, cookies[1])
    assert len(load_sign_ins(door.store.db)) == MAX_SIGNED_IN


async def test_signing_out_ends_one_sign_in_and_everywhere_ends_all() -> None:
    door = MemoryDoor()
    first, second, third = [(await door.sign_in(OWNER_TOKEN, HERE)).cookie for _ in range(3)]
    await door.sign_out(first)
    await door.sign_out(first)
    await door.sign_out(None)
    assert [is_in(door, cookie) for cookie in (first, second, third)] == [False, True, True]
    link = door.link(OPERATOR, "owner")
    assert await door.sign_out_everywhere(OPERATOR) == 2
    assert not is_in(door, second)
    assert (await refusal(door, code_of(link.url))).code is Code.SIGN_IN_REFUSED
    assert load_sign_ins(door.store.db) == []


async def test_who_is_being_let_in_while_all_are_signed_out_goes_as_well() -> None:
    """The store and the door agree, whichever write comes first."""
    door = MemoryDoor()
    write = door.store.commit
    writing, may_write = trio.Event(), trio.Event()

    async def slowly(op: Any) -> Any:
        writing.set()
        await may_write.wait()
        result = await write(op)
        await trio.testing.wait_all_tasks_blocked()
        return result

    door.store.commit = slowly  # type: ignore[method-assign]
    cookies: list[str] = []

    async def come() -> None:
        cookies.append((await door.sign_in(OWNER_TOKEN, HERE)).cookie)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(come)
        await writing.wait()
        nursery.start_soon(door.sign_out_everywhere, OPERATOR)
        await trio.testing.wait_all_tasks_blocked()
        may_write.set()
    assert load_sign_ins(door.store.db) == []
    assert not is_in(door, cookies[0])


async def test_new_tokens_end_every_sign_in_and_the_old_tokens_are_nothing() -> None:
    door = MemoryDoor()
    made = await door.sign_in(VIEWER_TOKEN, HERE)
    await door.new_tokens(OPERATOR)
    assert not is_in(door, made.cookie)
    assert (await refusal(door, OWNER_TOKEN)).code is Code.SIGN_IN_REFUSED
    await door.sign_in(door.keys.tokens["owner"], HERE)


async def test_a_sign_in_that_the_store_did_not_take_is_none() -> None:
    door = MemoryDoor()
    door.store.fail_with = SwapdError(Code.STOPPING)
    assert (await refusal(door, OWNER_TOKEN)).code is Code.STOPPING
    door.store.fail_with = None
    assert load_sign_ins(door.store.db) == []


async def test_a_failed_store_keeps_no_owner_out_until_the_next_start() -> None:
    """H160: whoever wants a device back comes in; nothing claims to be written that is not."""
    door = MemoryDoor()
    door.store.fail_with = SwapdError(Code.STORE_FAILED)
    made = await door.sign_in(OWNER_TOKEN, HERE)
    assert door.signed_in(made.cookie).role == "owner"
    assert load_sign_ins(door.store.db) == []
    with pytest.raises(SwapdError):
        await door.sign_out(made.cookie)
    assert not is_in(door, made.cookie)


async def test_nothing_but_a_digest_of_the_cookie_is_kept_and_no_secret_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    door = MemoryDoor()
    with caplog.at_level(logging.DEBUG):
        link = door.link(OPERATOR, "owner")
        made = await door.sign_in(code_of(link.url), HERE)
        await refusal(door, "a-wrong-secret")
        door.signed_in(made.cookie)
    written = "".join(str(record.__dict__) for record in caplog.records)
    dump = "".join(door.store.db.iterdump())
    for secret in (code_of(link.url), made.cookie, OWNER_TOKEN, "a-wrong-secret"):
        assert secret not in written
        assert secret not in dump
    assert digest(made.cookie).hex().upper() in dump.upper()


async def test_each_sign_in_has_a_form_token_of_its_own() -> None:
    door = MemoryDoor()
    first, second = [(await door.sign_in(OWNER_TOKEN, HERE)).cookie for _ in range(2)]
    assert door.signed_in(first).csrf != door.signed_in(second).csrf
    assert door.signed_in(first).csrf == door.signed_in(first).csrf
    assert door.signed_in(first).csrf not in first


async def test_a_sign_in_survives_a_restart_and_a_removed_token_file_ends_it(tmp_path: Path) -> None:
    cookies = {}
    files = TokenFiles(tmp_path)
    store = MemoryStore()

    async def restarted() -> ConsoleDoor:
        door = ConsoleDoor(store, files)  # type: ignore[arg-type]
        await door.load()
        return door

    door = await restarted()
    for role, token in files.load().items():
        cookies[role] = (await door.sign_in(token, HERE)).cookie
    door = await restarted()
    assert is_in(door, cookies["owner"])
    assert is_in(door, cookies["viewer"])
    files.path("owner").unlink()
    door = await restarted()
    assert not is_in(door, cookies["owner"])
    assert is_in(door, cookies["viewer"])
    assert len(load_sign_ins(store.db)) == 1


async def test_a_token_file_removed_while_it_runs_ends_the_sign_ins_that_hung_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that cannot be used changes nothing; the sentence is in the log once."""
    monkeypatch.setattr("swapd.signin.door.LOOK_EVERY_S", 0.002)
    files = TokenFiles(tmp_path)
    door = ConsoleDoor(MemoryStore(), files)  # type: ignore[arg-type]
    await door.load()
    made = await door.sign_in(files.load()["owner"], HERE)

    def complaints() -> int:
        return sum("token file" in record.message for record in caplog.records)

    async with trio.open_nursery() as nursery:
        await nursery.start(door.run)
        with trio.fail_after(30):
            files.path("owner").chmod(0o644)
            while not complaints():  # noqa: ASYNC110
                await trio.sleep(0.001)
            await trio.sleep(0.02)
            assert complaints() == 1
            assert is_in(door, made.cookie)
            files.path("owner").unlink()
            while is_in(door, made.cookie):  # noqa: ASYNC110
                await trio.sleep(0.001)
            assert files.path("owner").exists()
        nursery.cancel_scope.cancel()


async def test_a_sign_in_is_durable_before_its_cookie_leaves(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "data" / "swapd.db")
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        files = TokenFiles(tmp_path / "data")
        door = ConsoleDoor(store, files)
        await door.load()
        made = await door.sign_in(files.load()["owner"], HERE)
        (record,) = await store.read(load_sign_ins)
        assert record.id == digest(made.cookie)
        nursery.cancel_scope.cancel()
