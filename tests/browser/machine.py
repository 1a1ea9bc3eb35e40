"""A machine as its owner has it: the whole service over two cards that a test loads as it likes.

Real processes; what is not real is the cards' driver (tests/devices/fake_nvml) and the model (the sim).
Everything here is synchronous, as the browser's interface is.
"""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import trio

from tests.devices.fake_nvml import FakeCard, FakeNvml, FakeUse
from tests.e2e.deployment import TENANT, TOKEN, Deployment

WAIT_S: Final = 90.0
"""For anything to come; far above what it takes on a busy machine."""
CARDS: Final = {
    "desk": "GPU-00000000-0000-0000-0000-00000000000a",
    "attic": "GPU-00000000-0000-0000-0000-00000000000b",
}
LENT: Final = {"a": "desk", "b": "attic"}

FIXED: Final = 'mode = "fixed"\nthreshold_pct = 50.0\nsustain_s = 1.0\nrelease_s = 1.0'

_SETTINGS: Final = """
[[devices]]
name = "desk"
kind = "nvml"
selector = "{desk}"

[[devices]]
name = "attic"
kind = "nvml"
selector = "{attic}"

[owner]
# The owner's own remark, which saving settings must keep.
consent = true
presence = "headless"
gamemode = false
resume_after_s = 0.5

[owner.gpu_pressure]
poll_ms = 250
{pressure}

[sim]
step_ms = 20.0

[timers]
freeze_s = 10.0
prepare_s = 20.0
heartbeat_s = 0.25
dead_s = 60.0
"""


class Machine:
    """One service, its cards, and whoever uses either."""

    def __init__(self, folder: Path, pressure: str = FIXED) -> None:
        self.driver = FakeNvml(folder)
        cards = [
            FakeCard(uuid=uuid, pci=f"00000000:0{number}:00.0")
            for number, uuid in enumerate(CARDS.values(), start=1)
        ]
        self.driver.set(devices=cards)
        self.deployment = Deployment(
            "sim", extra=_SETTINGS.format(pressure=pressure, **CARDS), lent=LENT, env=self.driver.env()
        )

    def start(self, workers: int = 2) -> None:
        """Start it, or start it again, and wait until so many workers are ready."""
        # In a thread of its own: the browser's interface holds this one's.
        _apart(lambda: trio.run(lambda: self.deployment.start(ready_s=2 * WAIT_S, workers=workers)))

    def launch(self) -> None:
        """Start it again and wait until it listens."""
        self.deployment.launch()
        _apart(lambda: trio.run(self.deployment.announced_again))

    def kill(self) -> None:
        """End the service as a crash does; its workers stay."""
        self.deployment.kill_coordinator()

    def close(self) -> None:
        self.deployment.close()

    @property
    def url(self) -> str:
        return self.deployment.client.base_url

    @property
    def config(self) -> Path:
        return self.deployment.config

    def key(self, role: str = "owner") -> str:
        """The token of `role` for the console."""
        return (self.deployment.folder / f"{role}-token").read_text().strip()

    # What the owner does at the machine ------------------------------------------------------

    def use(self, card: str, load_pct: int) -> None:
        """The owner's own program uses a card so much from now on."""
        uses = [FakeUse(os.getpid(), sm=load_pct)] if load_pct else []
        index = list(CARDS).index(card)
        cards = list(self.driver.state.devices)
        cards[index] = FakeCard(uuid=cards[index].uuid, pci=cards[index].pci, util=load_pct, uses=uses)
        self.driver.set(devices=cards)

    # The API ---------------------------------------------------------------------------------

    def call(self, method: str, path: str, body: object = None, *, token: str = TOKEN) -> Any:
        """One request and its answer; fails the test where it is refused."""
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=WAIT_S)
        try:
            headers = {"Authorization": f"Bearer {token}"}
            if body is not None:
                headers["Content-Type"] = "application/json"
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            raw = answer.read()
            assert answer.status < 400, (method, path, answer.status, raw)
            return json.loads(raw)
        finally:
            connection.close()

    def device(self, card: str) -> Any:
        return self.call("GET", f"/v1/devices/{card}")

    def until(self, what: Callable[[], Any], within_s: float = WAIT_S) -> Any:
        """What `what` returns once that is true."""
        deadline = time.monotonic() + within_s
        while not (found := what()):
            assert time.monotonic() < deadline, (
                found,
                self.call("GET", "/v1/devices"),
                self.deployment.log(),
            )
            time.sleep(0.05)
        return found

    def is_lent(self, *cards: str) -> bool:
        return all(self.device(card)["state"] == "lent" for card in cards)

    def generation(self, on: str, tokens: int = 12_000) -> str:
        """A generation on a card that goes on by itself, for minutes unless it is cancelled."""
        others: list[str] = []
        # The emptiest worker gets the next one.
        while (card := self.where(session := self.created(tokens))) != on:
            others.append(session)
            assert len(others) < 8, (card, self.deployment.log())
        for other in others:
            self.cancel(other)
        return session

    def created(self, tokens: int) -> str:
        """A session whose client has read its first token and left."""
        body = {
            "prompt": [(position * 7) % 1000 + 1 for position in range(200)],
            "max_new_tokens": tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "on_disconnect": "continue",
        }
        session = str(self.call("POST", "/v1/sessions", body, token=TENANT)["id"])
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=WAIT_S)
        try:
            connection.request(
                "GET", f"/v1/sessions/{session}/events", headers={"Authorization": f"Bearer {TENANT}"}
            )
            answer = connection.getresponse()
            while b"event: token" not in answer.readline():
                pass
        finally:
            connection.close()
        return session

    def where(self, session: str) -> str | None:
        """The card that a session is on."""
        worker = self.call("GET", f"/v1/sessions/{session}", token=TENANT)["worker"]
        return None if worker is None else LENT[worker]

    def cancel(self, session: str) -> None:
        self.call("DELETE", f"/v1/sessions/{session}", token=TENANT)

    def rest(self) -> None:
        """Back to how it was: nobody uses the cards, nothing runs, both are lent."""
        for card in CARDS:
            self.use(card, 0)
            if self.device(card)["taken_back"] is not None:
                self.call("DELETE", f"/v1/devices/{card}/take-back")
        for drain in self.call("GET", "/v1/drains")["drains"]:
            if drain["finished_at"] is None:
                self.call("DELETE", f"/v1/drains/{drain['id']}")
        for session in self.call("GET", "/v1/sessions", token=TENANT)["sessions"]:
            self.cancel(session["id"])
        self.until(lambda: self.is_lent(*CARDS))


def _apart(work: Callable[[], object]) -> None:
    """Run it in a thread and wait for its end."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
