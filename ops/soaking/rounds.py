"""One round: clients and chaos together, then rest, then everything that must hold at rest."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, Final

import msgspec
import trio

from ops.soaking.chaos import Chaos
from ops.soaking.clients import TERMINAL, Client, Plan
from tests.e2e.deployment import Deployment

REST_S: Final = 60.0
"""Within this time after the last harm every client is at its end and nothing is held any more."""
LOSSES: Final = frozenset({"recovery_unavailable"})


class RoundResult(msgspec.Struct):
    """What a round saw. It held when `faults` is empty."""

    seed: int
    sessions: int = 0
    tokens: int = 0
    connections: int = 0
    endings: dict[str, int] = {}
    acts: dict[str, int] = {}
    moves: dict[str, int] = {}
    faults: list[str] = []


async def run_round(deployment: Deployment, seed: int, *, sessions: int, chaos_s: float) -> RoundResult:
    """Run one round. Same seed: same sessions and the same acts in the same order, at other instants."""
    rng = random.Random(seed)
    result = RoundResult(seed, faults=[])
    chaos = Chaos(deployment, random.Random(rng.random()))
    clients = [
        Client(deployment, Plan.draw(rng, chaos_s), random.Random(rng.random())) for _ in range(sessions)
    ]
    begun = await _started_at(deployment)
    try:
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(client.run)
            await chaos.run(chaos_s)
            with trio.move_on_after(REST_S) as rest:
                await _calm(deployment, chaos)
                await _end_strays(deployment, clients)
                for client in clients:
                    await client.over.wait()
            nursery.cancel_scope.cancel()
        if rest.cancelled_caught:
            waiting = [client.session for client in clients if not client.over.is_set()]
            result.faults.append(f"not at rest after {REST_S:g} s; sessions that go on: {waiting}")
            result.faults.append(str((await deployment.call("GET", "/v1/sessions"))["sessions"]))
            result.faults.append(str(await deployment.workers()))
        for client in clients:
            result.faults += await _check_client(deployment, client, chaos)
        result.faults += await _check_rest(deployment)
        result.moves = await _check_drains(deployment, begun, result)
    except* AssertionError as group:
        result.faults += [str(error) for error in leaves(group)]
    result.sessions = len(clients)
    result.tokens = sum(len(client.tokens) for client in clients)
    result.connections = sum(client.connections for client in clients)
    result.endings = Counter(client.ending[0] for client in clients if client.ending)
    result.acts = chaos.done
    return result


def leaves(group: BaseExceptionGroup[AssertionError]) -> list[BaseException]:
    """The exceptions of a group, however nested."""
    return [
        leaf
        for error in group.exceptions
        for leaf in (leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    ]


async def _started_at(deployment: Deployment) -> float:
    drains = (await deployment.call("GET", "/v1/drains"))["drains"]
    return max((drain["created_at"] for drain in drains), default=0.0)


async def _calm(deployment: Deployment, chaos: Chaos) -> None:
    """Let the service come to rest: no drains, both workers there."""
    await deployment.wait_ready(REST_S, workers=0)
    for _ in range(20):
        for drain in await chaos.open_drains():
            view = await deployment.call("DELETE", f"/v1/drains/{drain}")
            if view["state"] not in ("cancelled", "drained"):
                raise AssertionError(f"a cancelled drain is {view}")
        await chaos.clear_quarantines()
        quarantined = [view for view in (await deployment.workers()).values() if view["quarantine"]]
        if not await chaos.open_drains() and not quarantined:
            break
        await trio.sleep(0.1)
    with trio.move_on_after(8):
        await deployment.wait_ready(8)
        return
    # The back-off after many deaths is long; a new coordinator begins anew.
    await chaos.restart_coordinator()
    await deployment.wait_ready(REST_S)


async def _end_strays(deployment: Deployment, clients: list[Client]) -> None:
    """Sessions whose creation was answered to nobody: they are there, whole, and end when told to."""
    for client in clients:
        await client.created.wait()
    known = {client.session for client in clients}
    for view in (await deployment.call("GET", "/v1/sessions"))["sessions"]:
        if view["id"] not in known:
            await deployment.call("DELETE", f"/v1/sessions/{view['id']}")


async def _check_client(deployment: Deployment, client: Client, chaos: Chaos) -> list[str]:
    """What one client saw, against the reference and against what the service says now."""
    faults = list(client.faults)
    if client.session is None or not client.over.is_set():
        return faults
    name, ids = client.session, sorted(client.events)
    if ids != list(range(len(ids))):
        faults.append(f"{name}: a gap in {ids}")
    names = [client.events[at][0] for at in ids]
    if [one for one in names if one in TERMINAL] != names[-1:] or names[0] != "created":
        faults.append(f"{name}: events {Counter(names)}, last {names[-1:]}")
    reference = client.plan.reference()
    if client.tokens != reference[: len(client.tokens)]:
        wrong = next(i for i, (x, y) in enumerate(zip(client.tokens, reference, strict=False)) if x != y)
        faults.append(f"{name}: token {wrong + 1} of {len(client.tokens)} differs from the reference")
    ending = client.ending
    if ending is None:
        return faults
    state, data = ending
    view = await deployment.call("GET", f"/v1/sessions/{name}")
    told = (state, data["code"], data["finish_reason"], data["accepted"], len(ids) - 1)
    if told != (view["state"], view["code"], view["finish_reason"], len(client.tokens), view["cursor"]):
        faults.append(f"{name}: the client was told {told}, the service says {view}")
    if view["accepted"] != len(client.tokens):
        faults.append(f"{name}: {len(client.tokens)} tokens were read, {view['accepted']} accepted")
    return faults + _check_ending(client, name, state, data, len(reference), chaos)


def _check_ending(
    client: Client, name: str, state: str, data: dict[str, Any], whole: int, chaos: Chaos
) -> list[str]:
    plan = client.plan
    if state == "completed" and len(client.tokens) == whole:
        return []
    if state == "cancelled":
        if data["code"] == "session_cancelled" and plan.cancel_at is not None:
            return []
        if data["code"] == "disconnect_grace_expired" and plan.on_disconnect == "cancel":
            return []
    if (
        state == "failed"
        and data["code"] in LOSSES
        and chaos.workers_harmed
        and not plan.allow_replay_fallback
    ):
        return []
    return [f"{name}: ended {state} {data['code']} after {len(client.tokens)} of {whole} tokens"]


async def _check_rest(deployment: Deployment) -> list[str]:
    """Nothing is reserved, charged, frozen or held anywhere."""
    faults: list[str] = []
    views: dict[str, Any] = {}
    try:
        views = await deployment.wait_settled(20)
    except trio.TooSlowError:
        views = await deployment.workers()
        faults.append(f"the workers are not at rest: {views}")
    for name, view in views.items():
        if view["free_blocks"] != view["usable_blocks"] or view["committed_blocks"]:
            faults.append(f"worker {name} holds something: {view}")
        if view["drain"] or not view["admitting"] or view["state"] != "ready":
            faults.append(f"worker {name} is not open: {view}")
        if view["stats"].get("preemptions"):
            faults.append(f"worker {name} preempted: {view}")
    left = (await deployment.call("GET", "/v1/sessions"))["sessions"]
    if left:
        faults.append(f"sessions are left: {left}")
    return faults


async def _check_drains(deployment: Deployment, since: float, result: RoundResult) -> dict[str, int]:
    """Every drain has ended, each session of it with one outcome."""
    outcomes: Counter[str] = Counter()
    for drain in (await deployment.call("GET", "/v1/drains"))["drains"]:
        if drain["created_at"] <= since:
            continue
        if drain["state"] not in ("drained", "cancelled"):
            result.faults.append(f"a drain goes on: {drain}")
        for one in drain["sessions"]:
            outcomes[str(one["outcome"])] += 1
            if one["outcome"] is None:
                result.faults.append(f"a session without an outcome in an ended drain: {drain}")
            if one["outcome"] == "completed_native" and (one["reuse"] != 1.0 or one["recomputed_tokens"]):
                result.faults.append(f"a native move recomputed: {one}")
    return outcomes
