"""The plans and certificates of a service, as operators see and revoke them (H132, H137)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from swapd.callers import require_operator, require_reader
from swapd.certify.keeper import CertificateKeeper
from swapd.certify.registry import End
from swapd.certify.views import PlansView, RevocationView, Transfer
from swapd.views import Caller
from swapd.worker.link import WorkerLink


class PlanDesk:
    """Implements `swapd.api.Plans`."""

    def __init__(
        self,
        certificates: CertificateKeeper,
        links: Mapping[str, WorkerLink],
        transfer: Callable[[], object],
        migration_on: Callable[[], bool],
    ) -> None:
        """`transfer`: how KV crosses, as `Loans` says; `migration_on`: what holds, by both switches."""
        self._certificates = certificates
        self._links = links
        self._transfer = transfer
        self._migration_on = migration_on

    async def view(self, caller: Caller) -> PlansView:
        require_reader(caller)
        live = [
            End(link.name, link.ready.info.fingerprint)
            for link in self._links.values()
            if link.state == "ready" and link.ready is not None
        ]
        edges, refusals = self._certificates.plans(live)
        return PlansView(
            edges=tuple(edges),
            certification_refusals=tuple(refusals),
            migration_enabled=self._migration_on(),
            transfer=msgspec.convert(self._transfer(), Transfer),
            certificates=self._certificates.views(),
            no_target=len(live) < 2,
        )

    async def revoke(self, caller: Caller, certificate: str) -> RevocationView:
        require_operator(caller)
        return await self._certificates.revoke(certificate)
