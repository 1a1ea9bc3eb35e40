"""Clients of one round: each reads one session as badly as it may, and remembers everything it saw."""

from __future__ import annotations

import random
from typing import Any, Final

import msgspec
import trio

from swapd.client import Unreachable
from swapd.config import SimConfig
from swapd.engines.sim import SimEngine
from swapd.errors import SwapdError
from swapd.messages.generation import GenerationSpec, Sampling
from tests.e2e.deployment import Deployment

VOCABULARY: Final = 1000
TERMINAL: Final = frozenset({"completed", "failed", "cancelled"})


class Plan(msgspec.Struct, frozen=True):
    """What a session is asked for, and how its client behaves. Made before anything runs, from the seed."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    temperature: float
    seed: int
    allow_replay_fallback: bool
    on_disconnect: str
    begin_after_s: float
    cancel_at: int | None
    """Cancelled once so many tokens were seen."""
    restless: float
    """Chance of leaving after an event."""

    @classmethod
    def draw(cls, rng: random.Random, within_s: float) -> Plan:
        budget = rng.choice([1, 2, rng.randint(3, 60), rng.randint(60, 400), *[rng.randint(400, 2500)] * 3])
        return cls(
            prompt=tuple(rng.randint(1, VOCABULARY) for _ in range(rng.choice([1, 15, 16, 17, 300, 1500]))),
            max_new_tokens=budget,
            temperature=rng.choice([0.0, 0.8]),
            seed=rng.randrange(1 << 31),
            allow_replay_fallback=rng.random() < 0.5,
            on_disconnect=rng.choice(["pause", "continue", "cancel"]),
            begin_after_s=rng.uniform(0, within_s),
            cancel_at=rng.randint(0, budget) if rng.random() < 0.2 else None,
            restless=rng.choice([0.0, 0.0, 0.01, 0.1]),
        )

    def body(self) -> dict[str, Any]:
        return {
            "prompt": list(self.prompt),
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "ignore_eos": True,
            "allow_replay_fallback": self.allow_replay_fallback,
            "on_disconnect": self.on_disconnect,
        }

    def reference(self) -> list[int]:
        """The tokens of an engine that nobody disturbs."""
        engine = SimEngine(SimConfig(step_ms=0.0))
        sampling = Sampling(temperature=self.temperature, seed=self.seed, ignore_eos=True)
        engine.start("x", GenerationSpec("x", self.prompt, sampling, self.max_new_tokens), ())
        tokens: list[int] = []
        while engine.runnable():
            tokens += [token.token_id for token in engine.step().tokens]
        return tokens


class Client:
    """One session, read to its end over as many connections as it takes."""

    def __init__(self, deployment: Deployment, plan: Plan, rng: random.Random) -> None:
        self.plan = plan
        self.session: str | None = None
        self.events: dict[int, tuple[str, str]] = {}
        self.faults: list[str] = []
        self.connections = 0
        self.created = trio.Event()
        """Its session is there, or was refused for good."""
        self.over = trio.Event()
        self._deployment = deployment
        self._rng = rng
        self._cancelled = False

    @property
    def tokens(self) -> list[int]:
        """Token ids seen, by position."""
        return [
            int(msgspec.json.decode(data)["token_id"])
            for _, (name, data) in sorted(self.events.items())
            if name == "token"
        ]

    @property
    def ending(self) -> tuple[str, dict[str, Any]] | None:
        """The terminal event seen."""
        for name, data in self.events.values():
            if name in TERMINAL:
                return name, msgspec.json.decode(data)
        return None

    async def run(self) -> None:
        """Create the session and read it to its end."""
        await trio.sleep(self.plan.begin_after_s)
        there = await self._create()
        self.created.set()
        if there:
            await self._read_on()
        self.over.set()

    async def _read_on(self) -> None:
        while self.ending is None:
            # From any cursor that was seen, or from the start: what comes again must be the same bytes.
            after = self._rng.choice([None, *self._recent()])
            try:
                await self._read(after)
            except (Unreachable, SwapdError) as error:
                if isinstance(error, SwapdError) and not error.retryable:
                    self.faults.append(f"{self.session}: reading was refused: {error.code} {error.detail}")
                    return
                await trio.sleep(0.1)
            await trio.sleep(self._rng.choice([0, 0.01, 0.2]))

    def _recent(self) -> list[int]:
        # Mostly the end: the cursor that a client comes back with.
        last = max(self.events, default=-1)
        return [last] * 6 + [self._rng.randint(0, last)] if last >= 0 else []

    async def _create(self) -> bool:
        while True:
            try:
                status, answer = await self._deployment.client.request(
                    "POST", "/v1/sessions", self.plan.body(), timeout_s=20
                )
            except Unreachable:
                # Whether it was created is unknown; the round ends it then. Another one is created.
                await trio.sleep(0.2)
                continue
            if status == 201:
                self.session = str(answer["id"])
                return True
            if not answer["error"]["retryable"]:
                self.faults.append(f"creation was refused: {answer}")
                return False
            await trio.sleep(0.2)

    async def _read(self, after: int | None) -> None:
        assert self.session is not None
        self.connections += 1
        expected = 0 if after is None else after + 1
        async with self._deployment.client.events(self.session, after) as events:
            async for event in events:
                if event.id is None:
                    continue
                if event.id != expected:
                    self.faults.append(f"{self.session}: event {event.id} after {expected - 1}")
                expected = event.id + 1
                seen = self.events.setdefault(event.id, (event.name, event.data))
                if seen != (event.name, event.data):
                    self.faults.append(f"{self.session}: event {event.id} changed: {seen} {event}")
                await self._perhaps_cancel()
                if self._rng.random() < self.plan.restless:
                    return

    async def _perhaps_cancel(self) -> None:
        at = self.plan.cancel_at
        if at is None or self._cancelled or len(self.events) <= at:
            return
        self._cancelled = True
        try:
            await self._deployment.client.request("DELETE", f"/v1/sessions/{self.session}", timeout_s=20)
        except Unreachable:
            self._cancelled = False
