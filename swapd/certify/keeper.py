"""The certificates of a service, and what was revoked of them: durable, and asked at every move (H136, H137).

Revoking holds before it is written, as the switches do: a crash in between never allows what was denied.
Sessions that run are not touched by it, nor by an expiry: they stay where they are.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, Literal

import trio

from swapd.certify.certificate import Certificate
from swapd.certify.registry import Bar, End, Evidence, Terms
from swapd.certify.views import CertificateView, Edge, EdgeRefusal, RevocationView
from swapd.config import Config
from swapd.errors import Code, SwapdError
from swapd.messages.snapshot import SNAPSHOT_SCHEMA
from swapd.store.revocations import load_revocations, save_revocation
from swapd.store.writer import Store

log = logging.getLogger("swapd.certify")

LOOK_EVERY_S: Final = 60.0
"""At most so long after an expiry it is told; it holds at once. The clock may be set meanwhile."""
LOOK_SOONEST_S: Final = 0.05

What = Literal["expired", "revoked"]


class CertificateKeeper:
    """`load` once, before anything is moved. Whoever issues a certificate later hands it in as these are."""

    def __init__(
        self,
        config: Config,
        store: Store,
        certificates: Sequence[Certificate] = (),
        notify: Callable[[], None] = lambda: None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`notify` is called when edges went away: drains look again."""
        self.on_event: Callable[[What, Certificate], None] = lambda what, certificate: None
        self._terms = Terms.of(config, SNAPSHOT_SCHEMA)
        self._store = store
        self._certificates = tuple(certificates)
        self._notify = notify
        self._wall = wall
        self._revoked: dict[str, float] = {}
        now = wall()
        # What had expired before the start is a warning of the start (H139).
        self._told = {each.id for each in self._certificates if each.expires_at <= now}
        self._turn = trio.Lock()

    async def load(self) -> None:
        """Take up what earlier runs were told."""
        self._revoked |= await self._store.read(load_revocations)
        for each in self._certificates:
            if each.id in self._revoked:
                log.warning("certificate is revoked: native moves on it are refused", extra=_named(each))

    async def run(self) -> None:
        """Tell of each certificate that expires while the service runs, once; returns when none can."""
        left_s = self.look()
        while left_s is not None:
            # No event could tell: it is the wall clock that is looked at, and that can be set.
            await trio.sleep(min(max(left_s, LOOK_SOONEST_S), LOOK_EVERY_S))
            left_s = self.look()

    def look(self) -> float | None:
        """Tell what has expired since the last look; seconds to the next expiry, or None."""
        now = self._wall()
        waiting = [each for each in self._evidence().registered() if each.id not in self._told]
        for each in waiting:
            if each.expires_at <= now:
                self._told.add(each.id)
                log.error("certificate expired: native moves on it are refused", extra=_named(each))
                self.on_event("expired", each)
                self._notify()
        left = [each.expires_at - now for each in waiting if each.id not in self._told]
        return min(left, default=None)

    # Moves -----------------------------------------------------------------------------------

    def bar(self, source: End, target: End) -> Bar | None:
        """Why a session may not move so now; None: it may."""
        return self._evidence().bar(source, target, self._wall())

    def plans(self, ends: Sequence[End]) -> tuple[list[Edge], list[EdgeRefusal]]:
        """What is allowed between these workers now, and what is not."""
        return self._evidence().plans(ends, self._wall())

    # Operators -------------------------------------------------------------------------------

    async def revoke(self, certificate: str) -> RevocationView:
        """Deny every edge of a certificate, for good; durable when it returns. Revoked already: unchanged.

        Raises `certificate_unknown`, `store_failed`. Cancelled: it is denied here at once, and durable with
        the write that was begun.
        """
        async with self._turn:
            known = next((each for each in self._certificates if each.id == certificate), None)
            if known is None and certificate not in self._revoked:
                raise SwapdError(Code.CERTIFICATE_UNKNOWN)
            at = self._revoked.get(certificate)
            if at is None:
                assert known is not None
                at = self._revoked[certificate] = self._wall()
                self._notify()
                log.warning("certificate revoked", extra=_named(known))
                self.on_event("revoked", known)
            # Also for one that is revoked here: the write of the first time may have failed.
            with trio.CancelScope(shield=True):  # one disk write long: what holds here must be in the store
                await self._store.commit(lambda db: save_revocation(db, certificate, at))
            return RevocationView(certificate, at)

    def views(self) -> tuple[CertificateView, ...]:
        """The certificates, whether they allow anything or not."""
        now = self._wall()
        return tuple(
            CertificateView(
                id=each.id,
                basis=each.basis,
                evidence_profile=each.evidence_profile,
                issued=each.is_issued,
                issued_at=each.issued_at,
                expires_at=each.expires_at,
                expires_in_s=each.expires_at - now,
                fingerprints=each.fingerprints,
                blocking=each.blocking,
                revoked_at=self._revoked.get(each.id),
            )
            for each in self._certificates
        )

    def expires_s(self) -> float:
        """`swapd_certificate_expires_seconds`, now (H138)."""
        return self._evidence().expires_s(self._wall())

    def registered(self) -> int:
        """`swapd_certificates_registered` (B37)."""
        return len(self._evidence().registered())

    def _evidence(self) -> Evidence:
        return Evidence(self._terms, self._certificates, self._revoked)


def _named(certificate: Certificate) -> dict[str, str]:
    return {"certificate": certificate.id, "basis": certificate.basis}
