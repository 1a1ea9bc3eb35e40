"""What is told of plans and certificates, field by field (H132)."""

from __future__ import annotations

from typing import Literal

import msgspec

Basis = Literal["evaluated", "quick", "self_issued"]
"""evaluated: a certificate of a whole evaluation; quick: one of smaller floors (decision 18);
self_issued: the operator vouches for equal fingerprints, `self_certify` (H133)."""
RefusalCode = Literal[
    "not_configured",
    "id_mismatch",
    "mock_refused",
    "not_issued",
    "profile_mismatch",
    "snapshot_schema_mismatch",
    "fingerprint_mismatch",
    "revoked",
    "expired",
]
"""Why no move is allowed from one worker to another (H130). Of several the first in this order is told."""


class Pair(msgspec.Struct, frozen=True):
    """From which worker to which: edges are directed (H131)."""

    source: str
    target: str


class Edge(msgspec.Struct, frozen=True):
    """A way that sessions may move, and on what grounds. `expires_at`: None while nothing ends it (A31)."""

    edge: Pair
    basis: Basis
    certificate: str | None = None
    expires_at: float | None = None


class EdgeRefusal(msgspec.Struct, frozen=True):
    """A way that they may not move. `detail` names the worker or the values, for people."""

    edge: Pair
    code: RefusalCode
    detail: str
    certificate: str | None = None


class CertificateView(msgspec.Struct, frozen=True):
    """A certificate that this service has read, whether it allows anything or not."""

    id: str
    basis: Basis
    evidence_profile: str
    issued: bool
    issued_at: float
    expires_at: float
    expires_in_s: float
    """Negative once it has expired (H135)."""
    fingerprints: tuple[str, ...]
    blocking: tuple[str, ...]
    revoked_at: float | None = None


class Transfer(msgspec.Struct, frozen=True):
    """How KV crosses between workers (H91). `refusal`: why it cannot, where `kind` is none."""

    kind: Literal["arena", "none"]
    bytes: int
    page_locked: bool
    refusal: str | None = None


class PlansView(msgspec.Struct, frozen=True):
    """`GET /v1/plans`: which moves are allowed between the workers that are there, and why others are not.

    `migration_enabled` is what holds, switch and configuration; edges are listed whatever it says (H134).
    """

    edges: tuple[Edge, ...]
    certification_refusals: tuple[EdgeRefusal, ...]
    migration_enabled: bool
    transfer: Transfer
    certificates: tuple[CertificateView, ...]
    no_target: bool = False
    """Fewer than two workers are there: nothing can move anywhere (H116)."""


class RevocationView(msgspec.Struct, frozen=True):
    """A certificate that holds nowhere any more; `revoked_at` is when it was first revoked."""

    certificate: str
    revoked_at: float
