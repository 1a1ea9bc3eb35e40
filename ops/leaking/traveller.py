"""The session that is moved to and fro, and its client; it is replaced before its tokens run out."""

from __future__ import annotations

import random
from typing import Final

import msgspec
import trio

from ops.crashing.judge import compare
from ops.crashing.reader import Reader
from ops.crashing.stage import Stage
from ops.soaking.clients import Plan

PLANS: Final = 6
FIRST_TOKENS: Final = 3
PATIENCE_S: Final = 120.0
PROMPTS: Final = {"sim": (47, 48, 49, 90), "vllm": (96,)}
"""Lengths of prompts, of three blocks and more: there is something to copy before the freeze."""
TOKENS: Final = {"sim": 3000, "vllm": 700}
LEFT: Final = {"sim": 1500, "vllm": 300}
"""With fewer tokens to come a session begins no cycle: it might end on the way."""


class Traveller:
    """One session after another, each compared with what nobody moved."""

    def __init__(self, stage: Stage, nursery: trio.Nursery, seed: int) -> None:
        self.faults: list[str] = []
        self.sessions = 0
        self.tokens = 0
        self._stage = stage
        self._nursery = nursery
        self._engine = stage.deployment.engine
        self._plans = _plans(self._engine, seed)
        self._references: dict[int, list[int]] = {}
        self._reader: Reader | None = None
        self._plan = 0

    @property
    def session(self) -> str:
        assert self._reader is not None
        return self._reader.session

    @property
    def over(self) -> trio.Event:
        """Set when the session has ended and its client knows."""
        assert self._reader is not None
        return self._reader.over

    async def generate_references(self) -> None:
        """Have a real engine make the uninterrupted tokens; those of sim are computed when needed."""
        for number, plan in enumerate(self._plans if self._engine != "sim" else ()):
            reader = await self._begin(plan)
            with trio.fail_after(PATIENCE_S * 5):
                await reader.over.wait()
            assert len(reader.tokens) == plan.max_new_tokens, f"a reference ended early: {reader.ending}"
            self._references[number] = reader.tokens

    async def ready(self) -> None:
        """Return with a session that has enough tokens to come."""
        reader = self._reader
        left = self._plans[self._plan].max_new_tokens - (len(reader.tokens) if reader is not None else 0)
        if reader is not None and not reader.over.is_set() and left >= LEFT[self._engine]:
            return
        await self.end()
        self._plan = (self._plan + 1) % len(self._plans)
        self._reader = await self._begin(self._plans[self._plan])
        with trio.fail_after(PATIENCE_S):
            await self._reader.wait_tokens(FIRST_TOKENS)
        self.sessions += 1

    async def end(self) -> None:
        """Cancel the session, if it is there, and hold its stream against the reference."""
        reader, self._reader = self._reader, None
        if reader is None:
            return
        await self._stage.view("DELETE", f"/v1/sessions/{reader.session}")
        with trio.fail_after(PATIENCE_S):
            await reader.over.wait()
        view = await self._stage.view("GET", f"/v1/sessions/{reader.session}")
        reference = self._reference(len(reader.tokens) if view["state"] == "cancelled" else None)
        faults = compare(reader.tokens, reference, view["state"], view["accepted"])
        wrong = [f"{fault.kind}: {fault.text}" for fault in faults]
        wrong += [f"lost: {text}" for text in reader.lost] + [f"doubled: {text}" for text in reader.doubled]
        if reader.ending is None or reader.ending[0] != view["state"] or view["state"] == "failed":
            wrong.append(f"lost: the client was told {reader.ending}, it is {view['state']}")
        self.faults += [f"{reader.session} {text}" for text in wrong]
        self.tokens += len(reader.tokens)

    def _reference(self, count: int | None) -> list[int]:
        """The uninterrupted tokens of the present plan, `count` of them at least, or all."""
        plan, known = self._plans[self._plan], self._references.get(self._plan, [])
        count = plan.max_new_tokens if count is None else count
        if len(known) < count:
            known = msgspec.structs.replace(plan, max_new_tokens=count).reference()
            self._references[self._plan] = known
        return known

    async def _begin(self, plan: Plan) -> Reader:
        answer = await self._stage.view("POST", "/v1/sessions", plan.body())
        reader = Reader(self._stage.deployment.client, str(answer["id"]))
        self._nursery.start_soon(reader.run)
        return reader


def _plans(engine: str, seed: int) -> list[Plan]:
    rng = random.Random(seed)
    sim = engine == "sim"
    return [
        Plan(
            prompt=tuple(rng.randint(1, 1000) for _ in range(rng.choice(PROMPTS[engine]))),
            max_new_tokens=TOKENS[engine],
            temperature=rng.choice([0.0, 0.8]) if sim else 0.0,
            seed=seed + number,
            allow_replay_fallback=False,
            on_disconnect="pause",
            begin_after_s=0.0,
            cancel_at=None,
            restless=0.0,
        )
        for number in range(PLANS if sim else 2)
    ]
