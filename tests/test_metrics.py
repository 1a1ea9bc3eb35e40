"""Metrics: names, closed labels, and counts that are right across a restart (H178-H180)."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from swapd.config import LimitConfig
from swapd.device_views import GiveBackView
from swapd.errors import Code, SwapdError
from swapd.lending.view import device_view
from swapd.messages.from_worker import TokenRun, Tokens
from swapd.messages.generation import Owner
from swapd.metrics import DEVICE, METRICS, OTHER
from swapd.scrape import Scrape, UnknownLabel, put_device
from swapd.sessions.record import MoveRecord
from swapd.store.ledger import assign_owner
from swapd.store.moves import plan_move
from swapd.views import Caller, NewSession
from tests.lending.test_view import config, device, summary
from tests.migration.world import ScriptedLink, open_world
from tests.test_service import OPERATOR, service
from tests.test_service_devices import lending

ROOT = Path(__file__).parent.parent
TENANT = Caller("tenant")

# What H179 asks for.
MINIMUM = {
    "swapd_sessions": {"state"},
    "swapd_tokens_accepted_total": set(),
    "swapd_migrations_total": {"outcome"},
    "swapd_migration_phase_seconds": {"phase"},
    "swapd_frozen_pause_seconds": set(),
    "swapd_reused_tokens_total": set(),
    "swapd_recomputed_tokens_total": set(),
    "swapd_drains_total": {"state"},
    "swapd_admission_refusals_total": {"reason"},
    "swapd_open_reservations": set(),
    "swapd_arena_bytes": {"kind"},
    "swapd_store_commit_seconds": set(),
    "swapd_fenced_messages_total": {"reason"},
    "swapd_certificate_expires_seconds": set(),
    "swapd_log_fields_dropped_total": set(),
    "swapd_sweep_reclaimed_total": set(),
    "swapd_ready": set(),
    "swapd_pressure_reading_pct": {"device", "profile"},
    "swapd_pressure_threshold_pct": {"device", "profile"},
    "swapd_pressure_baseline_pct": {"device", "profile"},
    "swapd_pressure_target_pct": {"device", "profile"},
    "swapd_pressure_engaged": {"device"},
    "swapd_readings_total": {"device", "result"},
}


def series(text: bytes) -> dict[str, float]:
    """Every sample by its name and labels, as the text has them."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            key = f"{sample.name}{{{labels}}}" if labels else sample.name
            assert key not in found, key
            found[key] = sample.value
    return found


def test_every_metric_of_the_minimum_set_is_there_with_its_labels() -> None:
    """H179"""
    known = {metric.name: set(metric.labels) for metric in METRICS}
    assert MINIMUM.items() <= known.items()


def test_the_page_lists_exactly_the_metrics_that_there_are() -> None:
    """H179: name, kind and labels."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(swapd_\w+)` \| (\w+) \|([^|]*)\|", page, re.MULTILINE)
    told = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert told == {metric.name: (metric.kind, set(metric.labels)) for metric in METRICS}
    for metric in METRICS:
        for label, values in metric.labels.items():
            if values is not DEVICE and label != "reason":
                assert all(f"`{value}`" in page for value in values), (metric.name, label)


def test_a_label_value_outside_its_set_raises_in_tests_and_is_other_in_production() -> None:
    """H178"""
    with pytest.raises(UnknownLabel):
        Scrape(("gpu0",), strict=True).put("swapd_sessions", 1.0, "dreaming")
    scrape = Scrape(("gpu0",))
    scrape.put_all("swapd_admission_refusals_total", {"because": 2, "so": 3, "capacity": 1})
    scrape.put("swapd_pressure_engaged", 1.0, "somebody's card")
    found = series(scrape.text())
    assert found['swapd_admission_refusals_total{reason="other"}'] == 5.0
    assert found['swapd_admission_refusals_total{reason="capacity"}'] == 1.0
    assert found['swapd_pressure_engaged{device="other"}'] == 1.0
    assert not any("because" in key or "somebody" in key for key in found)


def test_no_closed_set_contains_what_names_a_client_or_a_place() -> None:
    """H178"""
    values = {value for metric in METRICS for each in metric.labels.values() for value in each}
    assert OTHER not in values
    assert all(re.fullmatch(r"[a-z_]+|<device>", value) for value in values)


async def test_there_are_as_many_series_with_a_thousand_sessions_as_with_none(tmp_path: Path) -> None:
    """H178"""
    async with lending(tmp_path) as each:
        before = series(each.service.metrics(OPERATOR))
        record = (await each.world.session(tokens=0)).record
        for number in range(1_000):
            each.world.table.add(msgspec.structs.replace(record, id=f"s{number}"))
        after = series(each.service.metrics(OPERATOR))
        assert after.keys() == before.keys()
        assert after['swapd_sessions{state="created"}'] + after['swapd_sessions{state="running"}'] == 1_001.0
        assert "tenant" not in each.service.metrics(OPERATOR).decode()


async def test_every_token_that_is_not_taken_is_counted_by_its_reason(tmp_path: Path) -> None:
    """H19, H40, H104: not the owner's, not of its epoch, not the next one, or refused by the store."""
    async with open_world(tmp_path) as world:
        doors = service(world)
        session = await world.session(tokens=6)

        def said(link: ScriptedLink, epoch: int, first: int) -> None:
            world.table.take_tokens(link, Tokens(1, (TokenRun("s", epoch, first, (9,)),)))

        said(world.b, 1, 7)  # another worker
        said(world.a, 2, 7)  # an epoch to come
        said(world.a, 0, 7)  # an old epoch
        said(world.a, 1, 8)  # a gap
        said(world.a, 1, 100)
        world.b.fenced = 4  # of incarnations before, as its link counts them
        # The store has the last word: another owner was written, and the table does not know of it yet.
        await world.store.commit(lambda db: assign_owner(db, "s", 1, Owner("b", "b.1")))
        said(world.a, 1, 7)
        await world.until(lambda: world.table.fenced["store"] == 1)
        found = series(doors.metrics(OPERATOR))
        by_reason = {
            reason: found[f'swapd_fenced_messages_total{{reason="{reason}"}}']
            for reason in ("incarnation", "owner", "gap", "store")
        }
        assert by_reason == {"incarnation": 4.0, "owner": 3.0, "gap": 2.0, "store": 1.0}
        assert session.durable == 6
        assert await world.transcript() == [101, 102, 103, 104, 105, 106]


async def test_what_the_actors_counted_is_told(tmp_path: Path) -> None:
    """H179"""
    async with open_world(tmp_path, limits=LimitConfig(max_new_tokens=100)) as world:
        doors = service(world)
        await world.session(tokens=6)
        for request, code in (
            (NewSession(prompt=[], max_new_tokens=1), Code.PROMPT_EMPTY),
            (NewSession(prompt=[1], max_new_tokens=1, model="none"), Code.MODEL_UNKNOWN),
        ):
            with pytest.raises(SwapdError) as refused:
                await doors.create_session(TENANT, request)
            assert refused.value.code is code
        world.table.fenced["gap"] += 2
        world.a.fenced = 1
        world.a.swept = 4
        found = series(doors.metrics(OPERATOR))
        assert found["swapd_ready"] == 1.0
        assert found["swapd_tokens_accepted_total"] == 6.0
        assert found["swapd_open_reservations"] == 1.0
        assert found['swapd_admission_refusals_total{reason="prompt_empty"}'] == 1.0
        assert found['swapd_admission_refusals_total{reason="model_unknown"}'] == 1.0
        assert found['swapd_fenced_messages_total{reason="gap"}'] == 2.0
        assert found['swapd_fenced_messages_total{reason="incarnation"}'] == 1.0
        assert found["swapd_sweep_reclaimed_total"] == 4.0
        assert found['swapd_arena_bytes{kind="total"}'] == found['swapd_arena_bytes{kind="free"}'] > 0
        assert found["swapd_store_commit_seconds_count"] >= 1.0
        assert (
            found['swapd_store_commit_seconds_bucket{le="+Inf"}'] == found["swapd_store_commit_seconds_count"]
        )


async def test_a_move_is_counted_with_its_outcome_its_pause_and_its_parts(tmp_path: Path) -> None:
    """H179, H180"""
    async with open_world(tmp_path) as world:
        doors = service(world)
        await world.session(tokens=6)
        drain = await doors.start_drain(OPERATOR, "a")
        b = world.b
        await world.until(lambda: len(world.table.owned_by("b")) == 1)
        b.speak("s", 107)
        await world.until(
            lambda: world.supervisor.tally.moves.total() == world.supervisor.tally.drains.total() == 1
        )
        assert (await doors.drain(OPERATOR, drain.id)).state == "drained"
        found = series(doors.metrics(OPERATOR))
        assert found['swapd_migrations_total{outcome="completed_native"}'] == 1.0
        assert found['swapd_drains_total{state="drained"}'] == 1.0
        assert found['swapd_drains_open{state="running"}'] == 0.0
        assert found["swapd_frozen_pause_seconds_count"] == 1.0
        assert found["swapd_reused_tokens_total"] > 0.0
        while (await doors.drain(OPERATOR, drain.id)).time_to_clear_s is None:
            await world.table.wait_activity(0.02)
        assert series(doors.metrics(OPERATOR))["swapd_drain_clear_seconds_count"] == 1.0  # B17
        for phase in ("precopy", "freeze", "prepare", "commit", "activate", "first_token"):
            assert found[f'swapd_migration_phase_seconds_count{{phase="{phase}"}}'] == 1.0, phase


async def test_outcomes_of_earlier_runs_are_counted_from_their_records(tmp_path: Path) -> None:
    """H180: a record whose count was lost in a crash is counted by the next start, and none twice."""
    move = MoveRecord(
        "m1", "s", None, Owner("a", "1"), Owner("b", "1"), 1, "released", "finished",
        "completed_native", None, None, 1.0, 2.0,
    )  # fmt: skip
    async with open_world(tmp_path) as world:
        await world.store.commit(lambda db: plan_move(db, move))
        await world.session(tokens=0)
        drain = await world.supervisor.start("b", 60.0, "operator")
        await world.until(lambda: world.supervisor.tally.drains.total() == 1)
        assert (await world.supervisor.view(drain.id)).state == "drained"
        assert world.supervisor.tally.moves["completed_native"] == 0
        assert world.supervisor.tally.drains == {"drained": 1}
    async with open_world(tmp_path) as world:
        assert world.supervisor.tally.moves == {"completed_native": 1}
        assert world.supervisor.tally.drains == {"drained": 1}


def test_a_device_tells_what_was_learned_in_each_profile() -> None:
    """H179: `device` is the configured name; what is not known has no series."""
    each = device(summary("locked"), summary("unlocked", threshold_pct=25.0, baseline_pct=None))
    each.readings.update(ok=7, failed=2)
    each.give_back = GiveBackView("pressure", 1.0, 2.5, ())
    scrape = Scrape(("gpu0",), strict=True)
    put_device(scrape, device_view(each, config(), 1.0, 5_000.0), each.readings)
    found = series(scrape.text())
    assert found['swapd_pressure_reading_pct{device="gpu0",profile="locked"}'] == 3.0
    assert 'swapd_pressure_reading_pct{device="gpu0",profile="unlocked"}' not in found
    assert found['swapd_pressure_threshold_pct{device="gpu0",profile="locked"}'] == 33.6
    assert found['swapd_pressure_threshold_pct{device="gpu0",profile="unlocked"}'] == 25.0
    assert 'swapd_pressure_baseline_pct{device="gpu0",profile="unlocked"}' not in found
    assert found['swapd_pressure_target_pct{device="gpu0",profile="locked"}'] == 40.0
    assert found['swapd_pressure_engaged{device="gpu0"}'] == 0.0
    assert found['swapd_readings_total{device="gpu0",result="ok"}'] == 7.0
    assert found['swapd_readings_total{device="gpu0",result="asleep"}'] == 0.0
    assert found['swapd_device_state{device="gpu0",state="lent"}'] == 1.0
    assert found['swapd_device_state{device="gpu0",state="free"}'] == 0.0
    assert found['swapd_give_back_seconds{device="gpu0"}'] == 2.5
