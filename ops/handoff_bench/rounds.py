"""One round: sessions begin, move back and forth together under their readers' eyes, are replayed, end.

    warm up → gather on one worker → moves, each at its block position → away for 64 tokens
            → warm replay → native move back → cold replay → cancel

All times are trio's clock, read where the event's last byte arrived.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import trio

from ops.handoff_bench.deployment import WORKERS, Deployment
from ops.handoff_bench.measure import Window
from ops.handoff_bench.plan import AWAY_TOKENS, QUIET_TOKENS, WARM_TOKENS, RoundPlan, SessionPlan
from swapd.client import HttpClient
from swapd.errors import Code, SwapdError
from swapd.views import (
    DrainMode,
    DrainView,
    SessionOutcome,
    SessionView,
    WorkerView,
)

POLL_S: Final = 0.2
"""Each look at a drain costs the service some milliseconds on a core that a worker uses too."""
HEARTBEATS_S: Final = 2.5
"""Long enough for a heartbeat to bring what happened before."""
DRAIN_DEADLINE_S: Final = 300.0
TOKENS_AFTER: Final = 4
COLD_SESSIONS: Final = 2
"""So many sessions of a round at most are replayed cold: more would wait for each other, to our advantage."""
ROUND_TIMEOUT_S: Final = 3600.0


class Stream(msgspec.Struct):
    """What one client has read; `grown` is set, and made anew, at every event."""

    session: str
    plan: SessionPlan
    ids: list[int] = []
    times: list[float] = []
    ended: str | None = None
    grown: trio.Event = msgspec.field(default_factory=trio.Event)


class MoveSample(msgspec.Struct, frozen=True):
    """One drain: all sessions of the round at once. `offset_s` turns its wall-clock times into trio's."""

    window: Window
    source: str
    target: str
    mode: DrainMode
    outcomes: dict[str, SessionOutcome]
    offset_s: float
    tokens_before: dict[str, int]


class RoundResult(msgspec.Struct):
    """All that was seen. `cuts` are the tokens that a control must repeat; `during` spans the moves."""

    plan: RoundPlan
    streams: list[Stream]
    gathering: list[MoveSample]
    moves: list[MoveSample]
    during: Window
    cuts: dict[str, int]
    recomputed_tokens: int
    warm: MoveSample | None = None
    cold: MoveSample | None = None
    warm_recomputed_tokens: int = 0
    cold_recomputed_tokens: int = 0


class Round:
    """Runs one round against the service."""

    def __init__(self, deployment: Deployment, plan: RoundPlan, report: Callable[[str], None]) -> None:
        self._client: HttpClient = deployment.client
        self._plan = plan
        self._report = report
        self._block_tokens = deployment.info.block_tokens
        self._streams: list[Stream] = []

    async def run(self) -> RoundResult:
        """Raises `timeout`, the service's refusals, and `internal` for a session that ended early."""
        with trio.move_on_after(ROUND_TIMEOUT_S):
            async with self._reading():
                return await self._run()
        raise SwapdError(Code.TIMEOUT, f"a round did not end within {ROUND_TIMEOUT_S:g} s")

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            try:
                for plan in self._plan.sessions:
                    stream = await self._create(plan)
                    self._streams.append(stream)
                    # Without a reader a session does not begin.
                    nursery.start_soon(self._read, stream)
                yield
            finally:
                nursery.cancel_scope.cancel()
                with trio.move_on_after(POLL_S * 50, shield=True):
                    for stream in self._streams:
                        await self._client.request("DELETE", f"/v1/sessions/{stream.session}")

    async def _run(self) -> RoundResult:
        await self._wait_all(WARM_TOKENS)
        await self._wait_more(QUIET_TOKENS)
        gathering = await self._gather()
        source = (await self._where())[0]
        recomputed = await self._recomputed()
        began_s = trio.current_time()
        moves: list[MoveSample] = []
        left = list(self._plan.positions)
        for number in range(self._plan.moves):
            await self._wait_position(left)
            moves.append(await self._drain(source))
            source = moves[-1].target
            self._report(f"move {number + 1} of {self._plan.moves}: {_told(moves[-1])}")
            await self._wait_more(QUIET_TOKENS)
        away_s = trio.current_time()
        await self._wait_more(AWAY_TOKENS - QUIET_TOKENS)
        recomputed_now = await self._recomputed(since_s=away_s)
        during = Window(began_s, trio.current_time())
        result = RoundResult(
            plan=self._plan,
            streams=self._streams,
            gathering=gathering,
            moves=moves,
            during=during,
            cuts={stream.session: len(stream.ids) for stream in self._streams},
            recomputed_tokens=recomputed_now - recomputed,
        )
        if self._plan.replays:
            await self._replays(result, source, recomputed_now)
        return result

    async def _replays(self, result: RoundResult, away: str, before: int) -> None:
        """The target was left 64 tokens ago and still has what it computed or was given."""
        result.warm = await self._drain(away, "replay")
        await self._wait_more(TOKENS_AFTER)
        result.warm = msgspec.structs.replace(
            result.warm, window=Window(result.warm.window.began_s, trio.current_time())
        )
        after = await self._recomputed()
        result.warm_recomputed_tokens = after - before
        self._report(f"warm replay: {after - before} tokens computed again")
        await self._cancel(self._streams[COLD_SESSIONS:])
        await self._drain(result.warm.target)
        await self._wait_more(QUIET_TOKENS)
        cold = await self._drain(away, "cold_replay")
        await self._wait_more(TOKENS_AFTER)
        result.cold = msgspec.structs.replace(cold, window=Window(cold.window.began_s, trio.current_time()))
        result.cold_recomputed_tokens = await self._recomputed() - after
        self._report(f"cold replay: {result.cold_recomputed_tokens} tokens computed again")

    # Sessions and their readers ----------------------------------------------------------------

    async def _create(self, plan: SessionPlan) -> Stream:
        body = {
            "prompt": plan.prompt,
            "max_new_tokens": self._plan.budget,
            "temperature": plan.sampling.temperature,
            "repetition_penalty": plan.sampling.repetition_penalty,
            "seed": plan.sampling.seed,
            "ignore_eos": True,
            "allow_replay_fallback": True,
        }
        view = await self._client.view("POST", "/v1/sessions", SessionView, body)
        return Stream(view.id, plan)

    async def _read(self, stream: Stream) -> None:
        async with self._client.events(stream.session) as events:
            async for event in events:
                if event.name == "token":
                    stream.ids.append(int(event.json()["token_id"]))
                    stream.times.append(event.at_s)
                elif event.name != "created":
                    stream.ended = event.name
                stream.grown.set()
                stream.grown = trio.Event()

    async def _cancel(self, streams: list[Stream]) -> None:
        for stream in streams:
            await self._client.request("DELETE", f"/v1/sessions/{stream.session}")
            while stream.ended is None:
                await stream.grown.wait()

    def _alive(self) -> list[Stream]:
        return [stream for stream in self._streams if stream.ended is None]

    async def _wait_count(self, stream: Stream, tokens: int) -> None:
        while len(stream.ids) < tokens:
            if stream.ended is not None:
                raise SwapdError(
                    Code.INTERNAL, f"a session {stream.ended} after {len(stream.ids)} tokens, too early"
                )
            await stream.grown.wait()

    async def _wait_all(self, tokens: int) -> None:
        for stream in self._alive():
            await self._wait_count(stream, tokens)

    async def _wait_more(self, tokens: int) -> None:
        """Wait for so many tokens of every session from now on."""
        for stream, goal in [(stream, len(stream.ids) + tokens) for stream in self._alive()]:
            await self._wait_count(stream, goal)

    async def _wait_position(self, left: list[int]) -> None:
        """Wait until the first session stands at one of the positions that are left, and take it."""
        stream = self._streams[0]
        while (position := (len(stream.plan.prompt) + len(stream.ids)) % self._block_tokens) not in left:
            await self._wait_count(stream, len(stream.ids) + 1)
        left.remove(position)

    # Workers and drains --------------------------------------------------------------------------

    async def _where(self) -> list[str]:
        views = [
            await self._client.view("GET", f"/v1/sessions/{stream.session}", SessionView)
            for stream in self._alive()
        ]
        return [view.worker or "" for view in views]

    async def _recomputed(self, since_s: float | None = None) -> int:
        """Positions that the workers computed again until `since_s` (now), as their heartbeats told."""
        await trio.sleep_until((since_s if since_s is not None else trio.current_time()) + HEARTBEATS_S)
        _, answer = await self._client.request("GET", "/v1/workers")
        workers = msgspec.convert(answer["workers"], list[WorkerView])
        return int(sum(worker.stats["recomputed_tokens"] for worker in workers))

    async def _gather(self) -> list[MoveSample]:
        """Bring all sessions to one worker; the moves that this takes go to a busy target."""
        if len(set(await self._where())) == 1:
            return []
        sample = await self._drain((await self._where())[-1])
        self._report(f"gathered on one worker: {_told(sample)}")
        await self._wait_more(QUIET_TOKENS)
        return [sample]

    async def _drain(self, source: str, mode: DrainMode = "native") -> MoveSample:
        """Drain a worker to its end. Raises `timeout` when it is blocked past its deadline."""
        tokens_before = {stream.session: len(stream.ids) for stream in self._alive()}
        offset_s = trio.current_time() - time.time()
        began_s = trio.current_time()
        body = {"deadline_s": DRAIN_DEADLINE_S, "mode": mode}
        view = await self._client.view("POST", f"/v1/workers/{source}/drains", DrainView, body)
        while view.state == "running":
            await trio.sleep(POLL_S)
            view = await self._client.view("GET", f"/v1/drains/{view.id}", DrainView)
        if view.state != "drained":
            await self._client.request("DELETE", f"/v1/drains/{view.id}")
            reasons = ", ".join(str(outcome.reason) for outcome in view.sessions)
            raise SwapdError(Code.TIMEOUT, f"the drain of {source} is {view.state}: {reasons}")
        return MoveSample(
            window=Window(began_s, trio.current_time()),
            source=source,
            target=next(worker for worker in WORKERS if worker != source),
            mode=mode,
            outcomes={outcome.session: outcome for outcome in view.sessions},
            offset_s=offset_s,
            tokens_before=tokens_before,
        )


def _told(sample: MoveSample) -> str:
    frozen = [outcome.frozen_ms for outcome in sample.outcomes.values() if outcome.frozen_ms is not None]
    others = [str(o.outcome) for o in sample.outcomes.values() if o.outcome != "completed_native"]
    told = f"{sample.source} → {sample.target}, frozen for up to {max(frozen, default=0.0):.0f} ms"
    return ", ".join([told, *others])
