"""Switches, quarantine and the report of a start, over the ops socket."""

from __future__ import annotations

from pathlib import Path

import pytest

from swapd.errors import Code, SwapdError
from swapd.ops.client import open_ops
from swapd.ops.server import OPERATOR
from swapd.views import Reconciled, ReconciliationView, SwitchesView
from tests.ops.test_ops_server import folder, running

__all__ = ["folder"]


async def test_both_switches_are_turned_and_shown_in_the_status(folder: Path) -> None:
    """H163, A13"""
    async with running(folder) as bench, open_ops(folder) as client:
        assert await client.switches() == SwitchesView()
        stopped = await client.turn_switch("admission", on=False)
        assert (stopped.admission, stopped.admission_off_since) == (False, 100.0)
        off = await client.turn_switch("migration", on=False)
        assert (await client.status()).switches == off == bench.service.switches_view
        assert (await client.turn_switch("admission", on=True)).admission


async def test_a_quarantine_is_cleared_by_the_workers_name(folder: Path) -> None:
    """H79"""
    async with running(folder) as bench, open_ops(folder) as client:
        assert (await client.clear_quarantine("b")).id == "b"
        assert bench.service.cleared == ["b"]
        with pytest.raises(SwapdError) as refused:
            await client.clear_quarantine("c")
        assert refused.value.code is Code.WORKER_UNKNOWN


async def test_the_report_of_the_start_comes_as_it_is(folder: Path) -> None:
    """H152"""
    async with running(folder) as bench, open_ops(folder) as client:
        entry = Reconciled("ses_1", "replayed", "worker_absent", "b", 2, 40, 71)
        bench.service.report = ReconciliationView(
            "done", 1.0, 2.0, {"a": "absent", "b": "found"}, 1.5, 0.01, {"replayed": 1}, (entry,), 0
        )
        assert await client.reconciliation() == bench.service.report


async def test_plans_come_as_they_are_and_a_certificate_is_revoked_by_its_id(folder: Path) -> None:
    """H132, H137"""
    async with running(folder) as bench, open_ops(folder) as client:
        double = bench.service.plans
        plans = await client.plans()
        assert plans == await double.view(OPERATOR)
        assert [each.edge.target for each in plans.edges] == ["b", "a"]
        assert (await client.revoke(double.known.id)).revoked_at == 100.0
        assert (await client.plans()).edges == ()
        with pytest.raises(SwapdError) as refused:
            await client.revoke("another")
        assert refused.value.code is Code.CERTIFICATE_UNKNOWN
