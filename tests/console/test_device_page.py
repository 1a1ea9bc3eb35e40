"""A device's page: its load, what is normal on it and what learning cannot tell, and what happened."""

from __future__ import annotations

import html
import re

import msgspec
import pytest

from console.pages.event_words import event_words
from console.plots import HEIGHT, bars
from swapd.device_views import Absorption, DeviceEvent, LearningView, TrendPoint
from tests.console.service_double import OPERATOR, TENANT
from tests.lent_devices import lent_device


async def text(client, path="/devices/gpu0"):
    reply = await client.ask("GET", path, token=OPERATOR)
    assert reply.status == 200
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", reply.body.decode())))


async def test_what_is_normal_and_what_cannot_be_told(client, service):
    """R9, R125"""
    service.lent = {"gpu0": lent_device("gpu0")}
    page = await text(client)
    assert "For 75% of the time you used 13% or less, as learned from 52 h." in page
    assert "Your work is noticed from 34% on. Less than that is never noticed" in page
    assert "A steady load of 34% would be taken for normal after 13 h of it, one of 39% after 18 h" in page
    assert "from 40% on, never" in page
    assert "rising toward 40%" in page
    assert "Not enough is known yet: 3 min of readings so far." in page


async def test_a_threshold_at_its_cap_absorbs_nothing(client, service):
    service.lent = {"gpu0": lent_device("gpu0")}
    at_cap = msgspec.structs.replace(service.learnt.profiles[0], absorption=())
    service.learnt = msgspec.structs.replace(service.learnt, profiles=(at_cap,))
    assert "A load that is noticed is never taken for normal" in await text(client)
    never = msgspec.structs.replace(at_cap, absorption=(Absorption(34.0, None),))
    service.learnt = msgspec.structs.replace(service.learnt, profiles=(never,))
    assert "The threshold does not rise by itself" in await text(client)


async def test_a_fixed_threshold_learns_nothing(client, service):
    service.lent = {"gpu0": lent_device("gpu0", mode="fixed", threshold_pct=30.0, profiles={})}
    service.learnt = LearningView("fixed", 0.75, 72.0, 25.0, 40.0, ())
    assert "the threshold is fixed at 30%" in await text(client)


async def test_what_happened_stands_in_words(client, service):
    service.lent = {"gpu0": lent_device("gpu0")}
    service.happened = [
        DeviceEvent(200.0, "gpu0", "free", "pressure", 2.1),
        DeviceEvent(100.0, "gpu0", "engaged", "<b>owner load 71 %</b>"),
    ]
    page = await text(client)
    assert "It was yours your own load, after 2.1 s" in page
    assert "Your work came first <b>owner load 71 %</b>" in page
    assert b"<b>owner" not in (await client.ask("GET", "/devices/gpu0", token=OPERATOR)).body


@pytest.mark.parametrize("kind", ["lent", "free", "engaged", "something_new"])
def test_every_event_has_words(kind):
    said = event_words(DeviceEvent(1.0, "a", kind, None, 3.0))
    assert said.what
    assert said.rising == (kind == "engaged")


async def test_the_plot_gets_its_columns(client, service):
    """R128"""
    service.lent = {"gpu0": lent_device("gpu0")}
    service.stretches = [TrendPoint(0.0, 3.14159, 34.0, False), TrendPoint(30.0, None, None, True)]
    reply = await client.ask("GET", "/devices/gpu0/load", token=OPERATOR)
    assert reply.json == {
        "at": [0.0, 30.0],
        "load_pct": [3.1, None],
        "threshold_pct": [34.0, None],
        "engaged": [None, 100.0],
    }


@pytest.mark.parametrize("path", ["/devices/nobody", "/devices/nobody/load", "/live/device/nobody"])
async def test_an_unknown_device_is_not_there_and_tenants_see_none(client, path):
    """H9"""
    assert (await client.ask("GET", path, token=OPERATOR)).status == 404
    assert (await client.ask("GET", path, token=TENANT)).status == 403


def test_a_histogram_is_drawn_in_its_box_and_by_its_weights():
    drawn = bars(((0, 1.0), (1, 1.0), (199, 6.0)))
    assert drawn.bars == ((0, pytest.approx(HEIGHT / 3, abs=0.1), 0.25), (98, HEIGHT, 0.75))
    assert bars(()).bars == ()
