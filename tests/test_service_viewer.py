"""A viewer of the console sees what an operator sees, changes nothing, and reads nobody's text (H9, A27)."""

from __future__ import annotations

import inspect
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from swapd.api import Plans, Service
from swapd.device_views import TakeBack
from swapd.errors import Code, SwapdError
from swapd.messages.to_worker import Schedule
from swapd.settings.views import SettingsChange
from swapd.signin.door import CALLERS
from swapd.views import Caller, NewSession
from tests.migration.world import refusal
from tests.test_service_devices import lending

OWNER, VIEWER, TENANT = CALLERS["owner"], CALLERS["viewer"], Caller("tenant")

LOOKS: dict[str, tuple[Any, ...]] = {
    "session": ("ses_1",),
    "sessions": (),
    "workers": (),
    "drain": ("drn_none",),
    "drains": (),
    "switches": (),
    "reconciliation": (),
    "status": (),
    "devices": (),
    "device": ("gpu0",),
    "samples": ("gpu0",),
    "device_events": ("gpu0",),
    "trend": ("gpu0", 60.0, 10),
    "activity": (1.0,),
    "visit": (),
    "settings": (),
    "learning": ("gpu0",),
    "preflight": ("a",),
    "diagnostics": (),
    "metrics": (),
    "plans.view": (),
}
ACTS: dict[str, tuple[Any, ...]] = {
    "create_session": (NewSession(prompt=[1], max_new_tokens=4),),
    "cancel_session": ("ses_1",),
    "start_drain": ("a",),
    "start_drains": (["a"],),
    "cancel_drain": ("drn_none",),
    "clear_quarantine": ("a",),
    "turn_switch": ("admission",),
    "take_back": ("gpu0", TakeBack()),
    "lend": ("gpu0",),
    "schedule": ("a",),
    "preview_settings": (SettingsChange({}, ""),),
    "export_diagnostics": (),
    "log_decisions": (60.0,),
    "save_settings": (SettingsChange({}, ""),),
    "plans.revoke": ("no such certificate",),
}
NAMED: dict[str, dict[str, Any]] = {"turn_switch": {"on": False}}
SHOWS_TEXT = {"subscribe"}
ASKS_NOBODY = {"door", "authenticate", "readiness", "limits", "stopping", "wait_stopping"}


def members(facade: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(facade) if not name.startswith("_")}


def test_each_call_of_the_facade_looks_or_acts_or_shows_text() -> None:
    """A new one must be put into its class, and is tested by that."""
    public = members(Service) - {"plans"} | {f"plans.{name}" for name in members(Plans)}
    assert public == set(LOOKS) | set(ACTS) | SHOWS_TEXT | ASKS_NOBODY


async def call(service: Any, name: str, caller: Caller) -> Code | None:
    """What a call is refused with."""
    arguments = LOOKS.get(name, ACTS.get(name, ()))
    try:
        answer = attrgetter(name)(service)(caller, *arguments, **NAMED.get(name, {}))
        if inspect.isawaitable(answer):
            await answer
    except SwapdError as error:
        return error.code
    return None


@pytest.mark.parametrize("name", LOOKS)
async def test_a_viewer_may_look_and_a_tenant_may_not(name: str, tmp_path: Path) -> None:
    async with lending(tmp_path) as each:
        await each.world.session("ses_1")
        assert await call(each.service, name, VIEWER) == await call(each.service, name, OWNER)
        refused = await call(each.service, name, TENANT)
        if name not in ("session", "sessions"):
            assert refused is Code.OPERATOR_REQUIRED


@pytest.mark.parametrize("name", ACTS)
async def test_a_viewer_may_not_act(name: str, tmp_path: Path) -> None:
    async with lending(tmp_path) as each:
        await each.world.session("ses_1")
        each.world.a.always(Schedule, refusal(Code.TARGET_LOST))
        assert await call(each.service, name, VIEWER) is Code.OPERATOR_REQUIRED
        assert each.desk.asked == []
        assert each.service.switchboard.view().admission
        assert await call(each.service, name, OWNER) is not Code.OPERATOR_REQUIRED


@pytest.mark.parametrize("caller", [OWNER, VIEWER])
async def test_nobody_reads_a_session_through_the_console(caller: Caller, tmp_path: Path) -> None:
    """A27"""
    async with lending(tmp_path) as each:
        await each.world.session("ses_1")
        assert [view.id for view in await each.service.sessions(caller)] == ["ses_1"]
        with pytest.raises(SwapdError) as refused:
            async with each.service.subscribe(caller, "ses_1", None):
                pass
        assert refused.value.code is Code.SESSION_UNKNOWN


async def test_a_viewer_s_look_is_no_visit_of_the_owner(tmp_path: Path) -> None:
    async with lending(tmp_path) as each:
        assert each.service.visit(VIEWER) is None
        assert (await each.world.rows("SELECT name FROM meta WHERE name LIKE '%visit%'")) == []
        each.service.visit(OWNER)
        await each.world.store.commit(lambda db: None)
        assert (await each.world.rows("SELECT name FROM meta WHERE name LIKE '%visit%'")) != []
