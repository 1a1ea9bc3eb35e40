"""Failpoints: no-ops unless armed, taken once, and refused where real clients may come (A36)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
import trio

from swapd import failpoints
from swapd.config import Config, CredentialConfig, ModelConfig, WorkerConfig
from swapd.config_rules import problems
from swapd.errors import Code, SwapdError
from swapd.host_checks import check
from swapd.worker.spawn import settings_for


@pytest.fixture
def armed(tmp_path: Path) -> Iterator[Path]:
    failpoints.arm(tmp_path / "f", "a")
    yield tmp_path / "f"
    failpoints.disarm()


def config(**changes: object) -> Config:
    base = Config(
        database_path="/d/db",
        socket_dir="/d/s",
        workers=(WorkerConfig("a", engine="sim"), WorkerConfig("b", engine="sim")),
        models=(ModelConfig("m", "/m"),),
        credentials=(CredentialConfig("n", token="a-long-enough-token"),),
        allow_sim_engine=True,
        allow_failpoints=True,
    )
    return msgspec.structs.replace(base, **changes)


def test_a_point_does_nothing_where_nobody_armed_it(armed: Path) -> None:
    failpoints.reach("K.before")
    failpoints.disarm()
    (armed / "a.K.before.arm").write_text("refuse internal")
    failpoints.reach("K.before")


async def test_a_point_holds_its_task_until_it_is_let_go_and_only_once(armed: Path) -> None:
    passed: list[int] = []

    async def go_through() -> None:
        for number in range(2):
            await failpoints.pass_by("K.before")
            passed.append(number)

    (armed / "a.K.before.arm").write_text("hold")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(go_through)
        while not (armed / "a.K.before.reached").exists():  # noqa: ASYNC110  # a file
            await trio.sleep(0.001)
        assert passed == []
        (armed / "a.K.before.go").touch()
    assert passed == [0, 1]


async def test_a_point_in_a_thread_holds_the_thread(armed: Path) -> None:
    (armed / "a.X.before.arm").write_text("hold")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, failpoints.reach, "X.before")
        while not (armed / "a.X.before.reached").exists():  # noqa: ASYNC110  # a file
            await trio.sleep(0.001)
        (armed / "a.X.before.go").touch()


def test_a_refusal_is_raised_as_the_step_s_own(armed: Path) -> None:
    (armed / "a.C.before.arm").write_text("refuse arena_exhausted")
    with pytest.raises(SwapdError) as refused:
        failpoints.reach("C.before")
    assert refused.value.code is Code.ARENA_EXHAUSTED
    failpoints.reach("C.before")


def test_a_point_of_another_role_is_not_ours(armed: Path) -> None:
    (armed / "b.C.before.arm").write_text("refuse arena_exhausted")
    failpoints.reach("C.before")


@pytest.mark.parametrize(("how", "rows"), [("before", 0), ("after", 1), ("after-move", None)])
def test_a_commit_can_fail_before_and_after_it_took_effect(armed: Path, how: str, rows: int | None) -> None:
    path = armed / "db"
    (armed / "store.fail").write_text(how)
    connection = sqlite3.connect(path, isolation_level=None, factory=failpoints.FailingConnection)
    with closing(connection) as db:
        db.execute("CREATE TABLE t (x)")
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO t VALUES (?)", (1,))
        if rows is None:  # this transaction hands nobody over
            db.execute("COMMIT")
            return
        with pytest.raises(sqlite3.OperationalError):
            db.execute("COMMIT")
        if db.in_transaction:
            db.execute("ROLLBACK")
        assert db.execute("SELECT count(*) FROM t").fetchone() == (rows,)


@pytest.mark.parametrize("changes", [{"allow_sim_engine": False}, {"host": "0.0.0.0"}])
def test_a_service_for_clients_has_no_failpoints(changes: dict[str, object]) -> None:
    """A36: the switch is refused where the service is not one for tests."""
    assert not [p for p in problems(config()) if p.path == ("allow_failpoints",)]
    assert [p for p in problems(config(**changes)) if p.path == ("allow_failpoints",)]
    assert not [
        p for p in problems(config(**changes, allow_failpoints=False)) if p.path == ("allow_failpoints",)
    ]


def test_check_config_says_that_failpoints_are_on() -> None:
    """A36."""
    assert any("allow_failpoints" in line for line in check(config(), mode=0o600, name="f"))
    off = config(allow_failpoints=False)
    assert not any("allow_failpoints" in line for line in check(off, mode=0o600, name="f"))


def test_workers_are_told_of_failpoints_only_where_they_are_allowed() -> None:
    """A36."""
    worker = config().workers[0]
    assert settings_for(config(), worker).failpoints == "/d/s/failpoints"
    assert settings_for(config(allow_failpoints=False), worker).failpoints == ""
