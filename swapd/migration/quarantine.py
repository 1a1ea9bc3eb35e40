"""Workers that are not trusted with new work, because an import failed there (H44, H78, H79, H156).

A quarantined worker gets no new session, from clients or from other workers; what runs on it goes on. It is
an incarnation that is quarantined: one that was started anew is clean. A target that is lost is dead, and its
next incarnation is another one, so a loss needs no quarantine. Only an operator ends it, once nothing that
failed moves reserved is left there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

import trio

from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import Inventory
from swapd.messages.generation import Owner
from swapd.messages.to_worker import InventoryQuery
from swapd.migration.ledger import CapacityLedger
from swapd.sessions.admission import Admission
from swapd.sessions.table import SessionTable
from swapd.store.quarantines import QuarantineRecord, lift_quarantine, load_quarantines, save_quarantine
from swapd.worker.link import WorkerLink

log = logging.getLogger("swapd.migration")

_NO_FAULT: Final = frozenset(
    {
        Code.TARGET_LOST,  # dead: its next incarnation is another one
        Code.CAPACITY,  # a want of room is no reason for distrust
        Code.TARGET_FULL,
        Code.NOT_READY,  # its copy thread is behind
        Code.LEASE_EXPIRED,  # we were too slow for it
        Code.ALREADY_FINISHED,
        Code.EPOCH_STALE,
        Code.FENCED,
    }
)


def target_fault(code: Code | str, *, imports: bool) -> Code | None:
    """What is wrong with a target that answered a step of a move so; None: nothing that is its fault.

    Without an answer it hangs, at whatever step. What it refuses is its fault only where bytes were to be
    taken in (`imports`): a target may refuse a reservation for many good reasons.
    """
    known = code if isinstance(code, Code) else Code(code) if code in set(Code) else Code.INTERNAL
    if known is Code.TIMEOUT:
        return known
    return known if imports and known not in _NO_FAULT else None


class Quarantine:
    """All quarantines of this service, durable over restarts."""

    def __init__(
        self,
        table: SessionTable,
        ledger: CapacityLedger,
        admission: Admission,
        links: Mapping[str, WorkerLink],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._table = table
        self._store = table.store
        self._ledger = ledger
        self._admission = admission
        self._links = links
        self._wall = wall
        self._held: dict[str, QuarantineRecord] = {}

    async def load(self) -> None:
        """Take up those of the last run; the workers are closed before anybody asks for them."""
        for record in await self._store.read(load_quarantines):
            self._hold(record)

    def workers(self) -> list[str]:
        """Who is quarantined."""
        return sorted(self._held)

    def of(self, worker: str) -> QuarantineRecord | None:
        """The quarantine of a worker, if it has one."""
        return self._held.get(worker)

    def put(self, owner: Owner, code: Code) -> None:
        """Quarantine an incarnation at once, durable soon; one that is gone needs none."""
        link = self._links.get(owner.worker)
        if link is None or not link.is_owner(owner) or owner.worker in self._held:
            return
        record = QuarantineRecord(owner.worker, owner.incarnation, str(code), self._wall())
        self._hold(record)
        # If the write is lost with the service, so is what it would have told: the next failure tells again.
        self._store.post(lambda db: save_quarantine(db, record), lambda _: None)
        log.error("worker quarantined", extra={"worker": owner.worker, "code": str(code)})
        self._table.notify()

    def met(self, owner: Owner) -> None:
        """An incarnation attached: a new one starts clean."""
        record = self._held.get(owner.worker)
        if record is not None and record.incarnation != owner.incarnation:
            self._store.post(lambda db: lift_quarantine(db, record), lambda _: None)
            self._release(record)

    async def clear(self, worker: str) -> None:
        """An operator trusts the worker again. Not quarantined: unchanged.

        Raises `reservations_open` while it holds more than the sessions that live there, and what the
        question for that raises where it does not answer. Cancelled: still quarantined, or cleared.
        """
        record = self._held.get(worker)
        if record is None:
            return
        link = self._links.get(worker)
        if link is not None and link.is_owner(Owner(worker, record.incarnation)):
            self._check_charges(worker)
            inventory = await link.request(InventoryQuery(), Inventory)
            held = [item.session for item in inventory.items if item.phase in ("reserved", "prepared")]
            if held:
                raise SwapdError(Code.RESERVATIONS_OPEN, f"{len(held)} imports on worker {worker}")
        with trio.CancelScope(shield=True):  # one disk write: what the store has must hold here
            await self._store.commit(lambda db: lift_quarantine(db, record))
            self._release(record)

    def _check_charges(self, worker: str) -> None:
        """H79: open reservations are back at baseline, one a session that lives there."""
        capacity = self._ledger.worker(worker)
        here = {session.id for session in self._table.owned_by(worker)}
        extra = set(capacity.charges) - here if capacity is not None else set()
        if extra:
            raise SwapdError(Code.RESERVATIONS_OPEN, f"{len(extra)} reservations on worker {worker}")

    def _hold(self, record: QuarantineRecord) -> None:
        self._held[record.worker] = record
        reason = f"worker {record.worker} is quarantined: {record.code}"
        self._admission.close(record.worker, "quarantine", reason)

    def _release(self, record: QuarantineRecord) -> None:
        if self._held.get(record.worker) is record:
            del self._held[record.worker]
            self._admission.reopen(record.worker, "quarantine")
            log.warning("quarantine ended", extra={"worker": record.worker})
            self._table.notify()
