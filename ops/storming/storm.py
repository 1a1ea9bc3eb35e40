"""Sessions and clients that come and go while workers are drained to and fro."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import msgspec
import trio

from ops.restarting.findings import Findings
from ops.soaking.clients import Plan
from ops.storming.client import TERMINAL, Client, Tally
from ops.storming.wire import WAYS, Address
from tests.e2e.deployment import TOKEN, Deployment

DRAIN_S: Final = 120.0
TAIL_S: Final = 300.0
"""After the last drain every client is at its end by then."""
LOOK_EVERY_S: Final = 0.01
GUSTS_S: Final = (0.0, 0.02, 0.1, 0.3)
"""How long after a drain began all clients are thrown out at once."""
LEFT: Final = ("completed_native", "completed_redispatch")
"""A session left the worker: with its KV, or before it had any token."""
OVER: Final = ("cancelled", "already_finished")
"""A session that came to its end before its move."""


class Storm:
    """One storm over one deployment; `run` returns when every client has its end."""

    def __init__(
        self, deployment: Deployment, *, sessions: int, clients: int, tokens: int, seed: int, cut: bool
    ) -> None:
        """`cut`: what still runs after the last drain is cancelled instead of read to its own end."""
        self.tally = Tally()
        self.moves = 0
        self.unmoved: list[str] = []
        self.readers: list[tuple[Plan, list[Client]]] = []
        host, _, port = deployment.client.base_url.removeprefix("http://").rpartition(":")
        self._deployment = deployment
        self._address = Address(host, int(port), TOKEN)
        self._sessions = sessions
        self._clients = clients
        self._tokens = tokens
        self._cut = cut
        self._rng = random.Random(seed)
        self._storms = True
        self._draining = False

    async def run(self, drains: int, tell: Callable[[str], None]) -> None:
        """Drain so often, in a storm; then let everybody read on in peace."""
        async with trio.open_nursery() as nursery:
            for number in range(self._sessions):
                nursery.start_soon(self._relay, random.Random(f"{self._rng.random()} {number}"))
            while len(self.readers) < self._sessions:  # noqa: ASYNC110  # all of them, whoever is last
                await trio.sleep(LOOK_EVERY_S)
            for number in range(drains):
                await self._drain("ab"[number % 2])
                tell(f"drain {number + 1}/{drains}: {self.moves} moves, {self.tally.reconnects} reconnects")
            self._storms = False
            if self._cut:
                for _, (client, *_) in self.readers:
                    await self._deployment.call("DELETE", f"/v1/sessions/{client.session}")
            nursery.cancel_scope.deadline = trio.current_time() + TAIL_S

    async def _relay(self, rng: random.Random) -> None:
        """One session after another as long as it storms, each read by some clients to its end."""
        while self._storms:
            plan = self._plan(rng)
            answer = await self._deployment.call("POST", "/v1/sessions", plan.body(), 201)
            clients = [self._client(str(answer["id"]), rng) for _ in range(self._clients)]
            self.readers.append((plan, clients))
            async with trio.open_nursery() as nursery:
                for client in clients:
                    nursery.start_soon(client.run)

    def _plan(self, rng: random.Random) -> Plan:
        return Plan(
            prompt=tuple(rng.randint(1, 1000) for _ in range(rng.choice([1, 16, 17, 90, 300]))),
            max_new_tokens=rng.randint(self._tokens // 2, self._tokens),
            temperature=rng.choice([0.0, 0.8]),
            seed=rng.randrange(1 << 31),
            allow_replay_fallback=False,
            on_disconnect=rng.choice(["pause", "continue"]),
            begin_after_s=0.0,
            cancel_at=None,
            restless=0.0,
        )

    def _client(self, session: str, rng: random.Random) -> Client:
        own = random.Random(rng.random())
        return Client(self._address, session, own, self.tally, lambda: self._storms, lambda: self._draining)

    async def _drain(self, worker: str) -> None:
        """Empty one worker, with a gust on the way; it opens again by itself."""
        deployment = self._deployment
        gust_s = self._rng.choice(GUSTS_S)
        view = await deployment.call("POST", f"/v1/workers/{worker}/drains", {"deadline_s": DRAIN_S}, 202)
        self._draining = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._gust, gust_s)
            with trio.fail_after(DRAIN_S):
                while view["state"] == "running":
                    await trio.sleep(LOOK_EVERY_S)
                    view = await deployment.call("GET", f"/v1/drains/{view['id']}")
        self._draining = False
        outcomes = [(one["outcome"], one["reason"]) for one in view["sessions"]]
        self.moves += sum(outcome in LEFT for outcome, _ in outcomes)
        self.unmoved += [f"{one}" for one in outcomes if one[0] not in LEFT and one != OVER]
        if view["state"] != "drained":
            self.unmoved.append(f"the drain is {view['state']}")
        await trio.sleep(self._rng.uniform(0, 0.5))

    async def _gust(self, after_s: float) -> None:
        await trio.sleep(after_s)
        for _, clients in self.readers:
            for client in clients:
                client.throw_out()


async def judge(storm: Storm, deployment: Deployment, drains: int, reconnects: int) -> Findings:
    """What must hold of every client, and of the service when all is over."""
    found = Findings(f"storm during {drains} drains", [], {})
    tally, told = storm.tally, compare(storm)
    found.figures |= {
        "sessions": len(storm.readers),
        "clients": sum(len(clients) for _, clients in storm.readers),
        "tokens": told["tokens"],
        "moves": storm.moves,
        "reconnects": tally.reconnects,
        "reconnects_during_drains": tally.during_drains,
        "reconnects_before_any_event": tally.before_any,
    } | {f"reconnects_after_{way}": tally.ways[way] for way in WAYS}
    found.claim("every session left or had ended", not storm.unmoved, f"{storm.moves} moves, {storm.unmoved}")
    found.claim("there was something to move", storm.moves >= drains, f"{storm.moves} moves")
    during = f"{tally.during_drains} of {tally.reconnects}"
    found.claim(f"{reconnects} reconnects during drains", tally.during_drains >= reconnects, during)
    found.claim("some before any event arrived", tally.before_any > 0, f"{tally.before_any}")
    found.claim("each way to come back was used", all(tally.ways[way] for way in WAYS), f"{dict(tally.ways)}")
    for name, what in (
        ("lost", "0 events lost"),
        ("doubled", "0 events doubled"),
        ("different", "every token is that of an unmoved engine"),
        ("changed", "all clients of a session received the same bytes"),
        ("unfinished", "every client has the full sequence"),
    ):
        found.claim(what, not told[name], f"{told[name]} of {told['tokens']} tokens")
    try:
        views = await deployment.wait_settled(60)
    except trio.TooSlowError:
        views = await deployment.workers()
    held = [name for name, view in views.items() if view["free_blocks"] != view["usable_blocks"]]
    left: Any = (await deployment.call("GET", "/v1/sessions"))["sessions"]
    found.claim("nothing is left", not held and not left, f"{len(left)} sessions, blocks on {held}")
    return found


def compare(storm: Storm) -> Counter[str]:
    """Each client's stream against the reference and against the other clients of its session."""
    told: Counter[str] = Counter(dict.fromkeys(("lost", "doubled", "different", "changed", "unfinished"), 0))
    for plan, clients in storm.readers:
        # What was cancelled has as many tokens as it says that it has.
        most = max(plan.max_new_tokens if client.completed else len(client.tokens) for client in clients)
        reference = msgspec.structs.replace(plan, max_new_tokens=max(most, 1)).reference()
        for client in clients:
            told["tokens"] += len(client.tokens)
            told["lost"] += len(client.lost)
            told["doubled"] += len(client.doubled)
            told["different"] += sum(a != b for a, b in zip(client.tokens, reference, strict=False))
            told["changed"] += client.events != clients[0].events
            told["unfinished"] += client.accepted != len(client.tokens)
            told["unfinished"] += client.completed and len(client.tokens) != len(reference)
            ends = sum(event.name in TERMINAL for event in client.events)
            told["doubled"] += max(0, ends - 1)
    return told
