"""A disk that hangs: no error comes, and nothing is promised meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from swapd.errors import Code, SwapdError
from swapd.service import SwapdService
from swapd.store import stall
from swapd.views import Caller, NewSession
from tests.migration.world import open_world
from tests.store.failing import GatedStore, opened, stalled

WAIT_S = 30.0


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall, "STUCK_S", 0.1)
    monkeypatch.setattr(stall, "LOOK_EVERY_S", 0.02)


async def until(holds: Callable[[], bool]) -> None:
    with trio.fail_after(WAIT_S):
        while not holds():  # noqa: ASYNC110  # another thread's state
            await trio.sleep(0.01)


async def test_a_write_that_hangs_is_trouble_for_as_long_as_it_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """H160: it is waited for all the same; the log says when it began and when it was over."""
    done: list[str] = []

    async def write(store: GatedStore) -> None:
        done.append(await store.commit(lambda db: "written"))

    async with opened(tmp_path / "swapd.db", GatedStore) as store, trio.open_nursery() as nursery:
        assert store.trouble() == ()
        async with stalled(store):
            nursery.start_soon(write, store)
            await until(lambda: store.trouble() == (Code.STORE_STUCK,))
            await until(lambda: "the disk does not answer a write" in caplog.text)
            assert (store.statistics().stuck_s or 0.0) > 0.1
            assert (store.failed, done) == (False, [])
        await until(lambda: done == ["written"])
        await until(lambda: store.trouble() == ())
        await until(lambda: "the disk answers again" in caplog.text)
        assert store.statistics().stuck_s is None
    assert caplog.text.count("the disk does not answer a write") == 1


async def test_a_service_whose_disk_hangs_is_not_ready(tmp_path: Path) -> None:
    """H160: new work is refused at once in place of hanging, too."""
    async with open_world(tmp_path, store_class=GatedStore) as world:
        service = SwapdService(
            world.config,
            world.store,
            world.table,
            world.ledger,
            world.admission,
            world.recovery,
            world.supervisor,
            world.links,
            None,
        )
        await until(lambda: service.readiness().ready)
        async with stalled(world.store):
            await until(lambda: "store_stuck" in service.readiness().reasons)
            with pytest.raises(SwapdError) as refused:
                await service.create_session(Caller("tenant"), NewSession(prompt=[1, 2], max_new_tokens=4))
            assert refused.value.code is Code.STORE_STUCK
        await until(lambda: service.readiness().ready)
