"""What a move borrows comes all at once or not at all, and goes back overwritten (H49, H76, H96, H97)."""

from __future__ import annotations

from pathlib import Path

import pytest

from swapd.errors import Code, SwapdError
from swapd.migration.move import Move
from tests.migration.world import BLOCK_BYTES, INFO, open_world

LEASE_BYTES = 26 * BLOCK_BYTES


@pytest.mark.parametrize("lack", ["arena", "room", "place", "size"])
async def test_what_cannot_be_lent_whole_is_not_lent_at_all(tmp_path: Path, lack: str) -> None:
    """H49, H76: nothing of it stays."""
    arena_bytes = {"arena": LEASE_BYTES, "size": LEASE_BYTES - 4096}.get(lack, 1 << 20)
    ceiling = 1 if lack == "place" else None
    async with open_world(tmp_path, arena_bytes=arena_bytes, max_concurrent_migrations=ceiling) as world:
        first, second = await world.session("first"), await world.session("second")
        loans = world.supervisor.loans
        if lack == "room":
            world.ledger.set_worker("b", 26, 8, 4)
        if lack != "size":
            loans.lend(first, "b", INFO)
        before = (world.ledger.total_charges(), world.leases.active if world.leases else 0, loans.moving)
        with pytest.raises(SwapdError) as refused:
            loans.lend(second, "b", INFO)
        assert (
            refused.value.code
            == {
                "arena": Code.ARENA_EXHAUSTED,
                "room": Code.TARGET_FULL,
                "place": Code.ARENA_EXHAUSTED,
                "size": Code.ARENA_TOO_SMALL,
            }[lack]
        )
        assert world.leases is not None
        assert (world.ledger.total_charges(), world.leases.active, loans.moving) == before


async def test_a_region_goes_back_fenced_and_overwritten(tmp_path: Path) -> None:
    """H96, H97: nobody reads it by the old lease, and nothing of the session is left in it."""
    async with open_world(tmp_path) as world:
        session = await world.session()
        lease = world.supervisor.loans.lend(session, "b", INFO)
        assert world.arena is not None
        with world.arena.region(lease) as region:
            region[:4] = b"text"
        world.supervisor.loans.give_back([lease])
        with pytest.raises(SwapdError) as stale:
            world.arena.region(lease)
        assert stale.value.code == Code.LEASE_STALE
        leases = world.leases
        assert leases is not None
        assert leases.active == 1, "it is not lent again before it is overwritten"
        await world.until(lambda: leases.active == 0)
        again = world.supervisor.loans.lend(session, "b", INFO)
        assert (again.region, again.offset) == (lease.region, lease.offset)
        with world.arena.region(again) as region:
            assert bytes(region[:4]) == bytes(4)


@pytest.mark.parametrize(("moved", "ended"), [(True, False), (False, False), (True, True), (False, True)])
async def test_a_session_is_charged_where_it_lives(tmp_path: Path, moved: bool, ended: bool) -> None:
    """H49: one worker after every move, none after its end."""
    async with open_world(tmp_path) as world:
        session = await world.session()
        lease = world.supervisor.loans.lend(session, "b", INFO)
        source, target = world.a.owner, world.b.owner
        assert source is not None
        assert target is not None
        move = Move("m", session, None, source, target, 1, lease)
        session.move = "m"
        if moved:
            world.table.change(session, owner=target, epoch=2)
        if ended:
            await world.table.finish(session, "cancelled", Code.SESSION_CANCELLED)
        session.move = None
        world.supervisor.loans.settle(move)
        world.supervisor.loans.give_back([lease])
        await world.check_baseline()
