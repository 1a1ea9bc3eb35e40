"""Sessions that a device's drains do not get away: each is looked at and taken a step down the ladder."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import trio

from swapd.config import Config
from swapd.errors import Code
from swapd.lending.ladder import Leaver, fallback
from swapd.migration.supervisor import MigrationSupervisor
from swapd.parking.setting_down import set_down
from swapd.sessions.live import LiveSession
from swapd.sessions.recovery import Recovery
from swapd.sessions.table import SessionTable
from swapd.worker.link import WorkerLink

log = logging.getLogger("swapd.lending")

_CODES: Final = frozenset(map(str, Code))


class Leavers:
    """The sessions of one device. `others` are the links of all other devices' workers."""

    def __init__(
        self,
        device: str,
        config: Config,
        table: SessionTable,
        recovery: Recovery,
        supervisor: MigrationSupervisor,
        others: Sequence[WorkerLink],
    ) -> None:
        self._device = device
        self._owner = config.owner
        self._grace_s = config.limits.disconnect_grace_s
        self._table = table
        self._recovery = recovery
        self._supervisor = supervisor
        self._others = others

    def left(self, worker: str) -> list[LiveSession]:
        """Sessions that are still on a worker."""
        return [session for session in self._table.owned_by(worker) if not session.ended]

    async def step(self, session: LiveSession, waiting_s: float) -> None:
        """One step for a session, `waiting_s` after its device was wanted back. Raises `store_failed`."""
        step = fallback(self._seen(session), self._owner, waiting_s=waiting_s, grace_s=self._grace_s)
        if step == "anew":
            self._supervisor.begin_anew_soon(session)
        elif step == "replay":
            self._recovery.send_to_another(session, cold=False)
        elif step == "park":
            self._supervisor.park_soon(session)
        elif step == "free":
            await set_down(self._table, session)
        elif step == "end":
            extra = {"session": session.id, "device": self._device}
            log.warning("session ends with its device", extra=extra)
            await self._table.finish(session, "failed", Code.DEVICE_TAKEN_BACK)

    def _seen(self, session: LiveSession) -> Leaver:
        owner = session.record.owner
        book = self._supervisor.draining(owner.worker) if owner is not None else None
        outcome = book.outcomes.get(session.id) if book is not None else None
        reason = outcome.reason if outcome is not None else None
        if book is not None:
            reason = book.refused.get(session.id) or reason
        unread = session.unread_since
        busy = session.over or session.recovering or session.move is not None
        return Leaver(
            busy=busy or not self._recovery.reconciled,
            received=len(session.received),
            producing=session.producing,
            unread_s=trio.current_time() - unread if unread is not None else 0.0,
            replay_permitted=session.record.allow_replay_fallback,
            reason=Code(reason) if reason in _CODES else None,
            room=self._recovery.again.has_room(session),
            others_starting=any(link.state == "starting" for link in self._others),
            can_park=self._supervisor.can_park(session),
        )
