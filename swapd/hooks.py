"""What the coordinator does when a link speaks: the wiring between links, sessions, ledger and events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from swapd.certify.certificate import Certificate
from swapd.device_views import DeviceEvent
from swapd.messages.from_worker import Inventory, Tokens
from swapd.messages.generation import Owner
from swapd.messages.to_worker import Grant
from swapd.migration.ledger import CapacityLedger
from swapd.ops.bus import EventBus
from swapd.sessions.live import LiveSession
from swapd.sessions.recovery import Recovery
from swapd.sessions.table import SessionTable
from swapd.views import DrainView
from swapd.worker.link import WorkerLink


class Hooks:
    """Implements `swapd.worker.link.LinkHooks`."""

    def __init__(
        self, table: SessionTable, ledger: CapacityLedger, recovery: Recovery, bus: EventBus
    ) -> None:
        self.on_attached: Callable[[Owner], None] = lambda owner: None
        self._table = table
        self._ledger = ledger
        self._recovery = recovery
        self._bus = bus
        table.on_event = self._session
        table.on_orphan = recovery.look_at

    def tokens(self, link: WorkerLink, message: Tokens) -> None:
        self._table.take_tokens(link, message)

    def grants(self, link: WorkerLink, sessions: Iterable[str]) -> Sequence[Grant]:
        return self._table.grants(sessions)

    def heartbeat(self, link: WorkerLink) -> None:
        self._table.notify()

    def changed(self, link: WorkerLink) -> None:
        self._bus.publish("worker", {"worker": link.name, "state": link.state, "reason": link.reason})
        self._table.notify()

    def absent(self, link: WorkerLink) -> None:
        self._recovery.introduced(link.name)

    async def attached(self, link: WorkerLink, inventory: Inventory) -> None:
        ready = link.ready
        assert ready is not None
        info = ready.info
        self.on_attached(Owner(link.name, ready.incarnation))
        self._ledger.set_worker(link.name, info.usable_blocks, info.max_num_seqs, info.block_tokens)
        await self._recovery.attached(link, inventory)
        self._table.notify()

    def lost(self, link: WorkerLink, owner: Owner) -> None:
        self._recovery.lost(owner)
        self._table.notify()

    def drain(self, view: DrainView) -> None:
        self._bus.publish(
            "drain",
            {
                "drain": view.id,
                "worker": view.worker,
                "state": view.state,
                "sessions": len(view.sessions),
                "moved": sum(s.outcome == "completed_native" for s in view.sessions),
                "origin": view.origin,
                "reason": view.reason,
                "time_to_clear_s": view.time_to_clear_s,
            },
        )

    def device(self, event: DeviceEvent) -> None:
        self._bus.publish(
            "device",
            {"device": event.device, "kind": event.kind, "why": event.why, "seconds": event.seconds},
        )

    def certificate(self, what: str, certificate: Certificate) -> None:
        self._bus.publish(
            "certificate",
            {
                "certificate": certificate.id,
                "kind": what,
                "basis": certificate.basis,
                "expires_at": certificate.expires_at,
            },
        )

    def _session(self, kind: str, session: LiveSession) -> None:
        view = session.view()
        self._bus.publish(
            kind, {"session": view.id, "state": view.state, "worker": view.worker, "epoch": view.epoch}
        )
