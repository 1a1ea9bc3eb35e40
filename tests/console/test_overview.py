"""The overview says what each device does, why, and what its owner can do; and does it."""

from __future__ import annotations

import html
import re

import msgspec
import pytest

from console.pages.device_words import running_on, words
from console.pages.overview import notices
from console.phrases import clock
from swapd.device_views import HeldUp, TakeBack, TakenBack
from swapd.errors import Code, SwapdError
from swapd.lending.reasons import Why
from swapd.views import Caller, SwitchesView
from tests.console.service_double import OPERATOR, TENANT
from tests.lent_devices import GIVEN_BACK, lent_device

FORM = "application/x-www-form-urlencoded"


async def text(client, path="/"):
    reply = await client.ask("GET", path, token=OPERATOR)
    assert reply.status == 200
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", reply.body.decode())))


async def post(client, path, fields="", token=OPERATOR, kind=FORM):
    return await client.ask("POST", path, fields.encode(), token=token, headers={"Content-Type": kind})


async def test_a_lent_device_says_so_with_its_load_and_its_threshold(client, service):
    """R50, R125"""
    service.lent = {"gpu0": lent_device("gpu0")}
    page = await text(client)
    assert "Lent to language models: idle, waiting for work." in page
    assert "3 % your own use now" in page
    assert "Threshold 34%, rising toward 40% (learned from 52 h)" in page
    assert "away, screen locked" in page


async def test_a_device_that_was_given_back_says_how_fast(client, service):
    """B17"""
    service.lent = {"gpu0": lent_device("gpu0", state="free", why="pressure", last_give_back=GIVEN_BACK)}
    page = await text(client)
    assert "It is yours." in page
    assert "free in 2.1 s" in page
    assert "lent again by itself" in page


async def test_a_give_back_that_was_called_off_is_not_shown_as_going_on(client, service):
    called_off = msgspec.structs.replace(GIVEN_BACK, free_in_s=None)
    service.lent = {"gpu0": lent_device("gpu0", state="vacating", last_give_back=called_off)}
    assert "being freed since" in await text(client)
    service.lent = {"gpu0": lent_device("gpu0", last_give_back=called_off)}
    assert "Last given back" not in await text(client)


async def test_calibration_shows_its_progress(client, service):
    """R125"""
    view = lent_device("gpu0", state="refused", admitting=False, why="calibrating", calibrated=False)
    learning = msgspec.structs.replace(view.profiles["locked"], warmup_have=34, calibrated=False)
    service.lent = {"gpu0": msgspec.structs.replace(view, profiles={"locked": learning})}
    assert "Learning: 34 of 60 readings" in await text(client)
    reply = await client.ask("GET", "/", token=OPERATOR)
    assert b'max="60" value="34"' in reply.body


async def test_a_stale_reading_is_not_shown_as_a_number(client, service):
    service.lent = {
        "gpu0": lent_device(
            "gpu0", state="refused", admitting=False, why="no_readings", readings="missing",
            readings_detail="no reading for 40 s", reading_pct=None, sentence="there is no valid reading",
        )
    }  # fmt: skip
    page = await text(client)
    assert "no reading for 40 s" in page
    assert "Not lent, and it needs a look." in page
    assert "gpu0: there is no valid reading." in page


async def test_without_devices_the_page_says_how_to_lend_one(client, service):
    service.lent = {}
    page = await text(client)
    assert "No device is set up for lending." in page
    assert "[[devices]]" in page


async def test_what_an_operator_switched_off_stands_above_the_cards(client, service):
    """H163"""
    service.switches_view = SwitchesView(admission=False, migration=False)
    page = await text(client)
    assert "New work is stopped" in page
    assert "Moves are switched off" in page


@pytest.mark.parametrize(
    ("choice", "asked"),
    [("3600", TakeBack(for_s=3600.0, until="time")), ("told", TakeBack(until="told")),
     ("unlock", TakeBack(until="unlock"))],
)  # fmt: skip
async def test_take_back_now_and_lend_again(client, service, choice, asked):
    service.lent = {"a": lent_device("a")}
    reply = await post(client, "/devices/a/take-back", f"for={choice}")
    assert (reply.status, reply.headers["location"]) == (303, "/#device-a")
    assert service.taken == [("a", asked)]
    reply = await post(client, "/devices/a/lend")
    assert reply.status == 303
    assert service.lent["a"].state == "lent"


async def test_a_device_kept_by_its_owner_says_until_when(client, service):
    service.lent = {
        "gpu0": lent_device("gpu0", state="free", why="taken_back", taken_back=TakenBack(1.0, "unlock"))
    }
    page = await text(client)
    assert "Yours until you unlock the screen again." in page
    assert "Lend again" in page
    assert "Take back now" not in page


@pytest.mark.parametrize(
    ("path", "fields", "kind", "status", "says"),
    [
        ("/devices/nobody/take-back", "for=told", FORM, 404, "device_unknown"),
        ("/devices/nobody/lend", "", FORM, 404, "device_unknown"),
        ("/devices/a/take-back", "for=1e9", FORM, 422, "invalid_request"),
        (
            "/devices/a/take-back",
            "for=told",
            "multipart/form-data; boundary=x",
            415,
            "unsupported_media_type",
        ),
        ("/devices/a/take-back", "&".join(f"f{n}=1" for n in range(200)), FORM, 422, "invalid_request"),
    ],
)
async def test_a_refused_action_says_why_and_does_nothing(client, service, path, fields, kind, status, says):
    reply = await post(client, path, fields, kind=kind)
    assert reply.status == status
    assert says.encode() in reply.body
    assert service.taken == []


async def test_a_tenant_sees_and_does_nothing_here(client, service):
    """H9"""
    assert (await client.ask("GET", "/", token=TENANT)).status == 403
    assert (await post(client, "/devices/a/take-back", "for=told", token=TENANT)).status == 403
    assert service.taken == []


async def test_names_and_reasons_are_shown_as_text(client, service):
    """A process chooses its own name, and its name may be a script."""
    bad = "<script>alert(1)</script>"
    service.lent = {"gpu0": lent_device("gpu0", sentence=bad, threshold_text=bad, attendance_detail=bad)}
    reply = await client.ask("GET", "/", token=OPERATOR)
    assert bad.encode() not in reply.body
    assert b"&lt;script&gt;" in reply.body


@pytest.mark.parametrize("why", list(Why))
def test_every_reason_has_a_next_step(why):
    """Every state says what the owner can do next."""
    for state in ("refused", "free", "vacating", "returning"):
        said = words(lent_device("gpu0", state=state, admitting=False, why=str(why)), 2)
        assert said.label
        assert said.next_step
        assert said.sign
    assert (
        words(lent_device("g", state="free", admitting=False, why=str(why)), 0).next_step != "Nothing to do."
    )


async def test_nobody_is_said_to_be_at_a_machine_that_is_not_watched(client, service):
    service.lent = {
        "gpu0": lent_device("gpu0", attendance="unlocked", attendance_detail="headless by configuration")
    }
    for path in ("/", "/devices/gpu0"):
        page = await text(client, path)
        assert "not watched: headless by configuration" in page
        assert "You at the machine" not in page
        assert "unlock" not in page


async def test_a_lent_device_whose_worker_is_drained_is_told_of(service):
    """H50: lent, and yet nothing new runs on it."""
    service.lent = {"a": lent_device("a", workers=("a",))}
    status = await service.status(Caller("ops", is_operator=True))
    workers = [msgspec.structs.replace(each, drain="drn_1") for each in status.workers if each.id == "a"]
    assert workers
    assert not any("drained" in each for each in notices(status))
    told = notices(msgspec.structs.replace(status, workers=tuple(workers)))
    assert any(each.startswith("Worker a is being drained") for each in told)
    dead = [msgspec.structs.replace(each, state="dead", drain=None) for each in workers]
    told = notices(msgspec.structs.replace(status, workers=tuple(dead)))
    assert any(each.startswith("a: none of its workers runs") for each in told)
    away = (lent_device("a", workers=("a",), state="vacating"),)
    told = notices(msgspec.structs.replace(status, workers=tuple(workers), devices=away))
    assert not any("drained" in each for each in told)


@pytest.mark.parametrize(
    ("reasons", "says"),
    [
        (("disk_full",), "The disk of the database is full"),
        (("store_failed", "disk_full"), "cannot be written"),
    ],
)
async def test_a_service_that_cannot_write_says_so_above_the_cards(service, reasons, says):
    """A full disk stops what is lent, so its owner is told where they look first."""
    status = msgspec.structs.replace(await service.status(Caller("ops", is_operator=True)), reasons=reasons)
    told = [each for each in notices(status) if "Diagnostics says more" in each]
    assert len(told) == 1
    assert says in told[0]


@pytest.mark.parametrize(("state", "count"), [("vacating", 2), ("free", 0)])
def test_a_device_that_is_its_owners_has_nothing_on_it(state, count):
    """A worker that was ended with a broken disk still owns its sessions; the device does not have them."""
    device = lent_device("gpu0", state=state, workers=("a", "b"))
    assert running_on(device, ["a", "b", "c", None]) == count


async def test_a_device_that_a_broken_disk_holds_up_says_what_its_owner_can_do(service, client):
    """SF: when it ends by itself, or why it must not; also where the owner took it back."""
    taken = {"taken_back": TakenBack(100.0, "told"), "why": "taken_back", "admitting": False}
    held = lent_device("gpu0", state="vacating", held_up=HeldUp(3600.0, {}), **taken)
    service.lent = {"gpu0": held}
    page = await text(client)
    assert "cannot write to its disk" in page
    assert f"At {clock(3600.0)} swapd ends what runs on it" in page
    service.lent = {"gpu0": msgspec.structs.replace(held, held_up=HeldUp(None, {"a": 4242}))}
    page = await text(client)
    assert "must not end it" in page
    assert "end process 4242 (worker a) yourself" in page


async def test_a_disk_that_cannot_be_read_takes_no_button_away(service, client):
    """Plots, reports and histories are missing then; what an owner sees and can do is not."""

    async def unreadable(*_):
        raise SwapdError(Code.DISK_ERROR, "the database cannot be read")

    service.lent = {"gpu0": lent_device("gpu0")}
    service.trend = service.device_events = service.activity = unreadable
    for path in ("/", "/devices/gpu0"):
        page = await text(client, path)
        assert "Take back now" in page
        assert "Lent to language models" in page
    assert "cannot be read just now" in page
