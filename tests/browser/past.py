"""Fifty-two hours before a machine's first start, as the service itself would have kept them.

Made up is only the owner's day: what was learned from it, and when pressure engaged, is what the pure core
says, written by the functions that the service writes with.
"""

from __future__ import annotations

import random
import sqlite3
import time
from contextlib import closing
from typing import Final

from swapd.config import PressureConfig
from swapd.device_views import DeviceEvent, GiveBackView, SamplePoint
from swapd.pressure.cache import Entry, encode_cache, encode_profile
from swapd.pressure.calibration import DevicePressure
from swapd.store.activity import add_activity
from swapd.store.devices import add_device_event, add_samples, save_give_back
from swapd.store.schema import migrate
from tests.browser.machine import CARDS, Machine

HOUR_S: Final = 3600.0
PAST_H: Final = 52.0
SHOWN_H: Final = 6.0
COARSE_S: Final = 60.0
FINE_S: Final = 10.0
# What the owner does on the first card in the last six hours: from when, until when (hours ago), how much.
WORK: Final = ((5.2, 4.6, 13.0), (4.1, 3.7, 72.0), (2.9, 2.2, 19.0), (1.3, 1.1, 86.0), (0.8, 0.3, 11.0))
TOKENS_AN_HOUR: Final = 21_000
FREE_IN_S: Final = 2.1


def give_past(machine: Machine) -> None:
    """Write it where `machine`, which has never run, looks for it."""
    now = time.time()
    entries = []
    with closing(sqlite3.connect(machine.deployment.folder / "swapd.db")) as db, db:
        migrate(db)
        for name, uuid in CARDS.items():
            pressure = _lived(db, name, now)
            profiles = {profile: encode_profile(state) for profile, state in pressure.completed().items()}
            entries.append(Entry(name, uuid, (), profiles))
    (machine.deployment.folder / "swapd.db").chmod(0o600)
    cache = machine.deployment.folder / "swapd-pressure.json"
    cache.write_bytes(encode_cache(entries))
    cache.chmod(0o600)


def _lived(db: sqlite3.Connection, name: str, now: float) -> DevicePressure:
    """One card's hours: readings, what followed from them, and for how long it was lent."""
    chance = random.Random(name)
    pressure = DevicePressure(PressureConfig(poll_ms=int(COARSE_S * 1000)), headless=True)
    at = now - PAST_H * HOUR_S
    engaged = False
    while at < now - FINE_S:
        shown = now - at < SHOWN_H * HOUR_S
        value = _use(name, (now - at) / HOUR_S, chance)
        decision = pressure.observe(at, value, "unlocked")
        if shown:
            sample = SamplePoint(at, "ok", "unlocked", value, decision.threshold_pct, decision.engaged)
            add_samples(db, [(name, sample)])
            if decision.engaged != engaged:
                kind = "engaged" if decision.engaged else "released"
                why = (
                    f"owner load {value:.0f} % ≥ {decision.threshold_pct:.0f} %" if decision.engaged else None
                )
                add_device_event(db, DeviceEvent(at, name, kind, why))
                if decision.engaged:
                    save_give_back(
                        db, name, GiveBackView("pressure", at, FREE_IN_S, (), 4.0, memory_back=True)
                    )
            if not decision.engaged:
                add_activity(db, at, "lent_s", FINE_S, name)
                add_activity(db, at, "tokens", TOKENS_AN_HOUR * FINE_S / HOUR_S)
        engaged = decision.engaged
        at += FINE_S if shown else COARSE_S
    return pressure


def _use(name: str, hours_ago: float, chance: random.Random) -> float:
    work = 3.0
    if name == "desk":
        doing = [load for begin, end, load in WORK if end < hours_ago <= begin]
        work = doing[0] if doing else 3.0 if hours_ago < SHOWN_H else chance.choice((2.0, 6.0, 9.0, 13.0))
    return min(max(chance.gauss(work, 0.6 + work / 12), 0.0), 100.0)
