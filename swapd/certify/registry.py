"""Which worker may hand sessions to which, by what evidence, and why another may not (H129-H131). Pure.

An edge a→b is there if and only if one certificate keeps every term at once, or the operator vouches for
equal fingerprints (`self_certify`). Nothing is kept between two questions: each is answered from the
certificates, the fingerprints of the workers as they are now, what is revoked, and the clock. So an expiry
or a revocation holds from the next question on, and no registration can outlive its reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from swapd.certify.certificate import VALID_S, Certificate, Profile, id_of
from swapd.certify.views import Edge, EdgeRefusal, Pair, RefusalCode
from swapd.errors import Code

SOON_S: Final = 7 * 86_400
"""A certificate that ends within this is warned about (H139)."""
_SHOWN_CHARS: Final = 16

WORDS: Final[Mapping[RefusalCode, str]] = {
    "not_configured": "there is no certificate, and self_certify is false",
    "id_mismatch": "the certificate is not the one that was issued, or not the configured one",
    "mock_refused": "the certificate's evidence is of the sim engine",
    "not_issued": "the certificate was not issued",
    "profile_mismatch": "the certificate is of another evidence profile",
    "snapshot_schema_mismatch": "the certificate is of another snapshot schema",
    "fingerprint_mismatch": "the workers are not what the certificate covers",
    "revoked": "the certificate was revoked",
    "expired": "the certificate has expired",
}
"""Each code in words."""

_CODES: Final[Mapping[str, Code]] = {
    "revoked": Code.CERTIFICATE_REVOKED,
    "expired": Code.CERTIFICATE_EXPIRED,
}
_TERMS: Final = tuple(WORDS)
"""In the order in which they are looked at: of two broken terms the first is told."""


class End(NamedTuple):
    """One end of an edge: a worker, or the park, and the fingerprint of the KV that it makes or keeps."""

    worker: str
    fingerprint: str


class Bar(NamedTuple):
    """Why an edge may not be used now, as a drain says it (H55)."""

    code: Code
    detail: str


class _Configured(Protocol):
    @property
    def certificate_id(self) -> str | None: ...
    @property
    def evidence_profile(self) -> Profile: ...
    @property
    def self_certify(self) -> bool: ...


class Terms(NamedTuple):
    """What the configuration asks of a certificate, and the schema that this build moves."""

    certificate_id: str | None
    profile: Profile
    self_certify: bool
    snapshot_schema: int

    @classmethod
    def of(cls, config: _Configured, snapshot_schema: int) -> Terms:
        return cls(config.certificate_id, config.evidence_profile, config.self_certify, snapshot_schema)


class Evidence(NamedTuple):
    """All that allows moves: certificates, and what is revoked of them (id to when)."""

    terms: Terms
    certificates: Sequence[Certificate] = ()
    revoked: Mapping[str, float] = {}

    def judge(self, source: End, target: End, now: float) -> Edge | EdgeRefusal:
        """The edge from one to another, on the best grounds that there are, or why there is none.

        A worker has no edge to itself; the caller does not ask for it.
        """
        pair = Pair(source.worker, target.worker)
        if self.terms.self_certify:
            if source.fingerprint == target.fingerprint:
                return Edge(pair, "self_issued")
            return EdgeRefusal(pair, "fingerprint_mismatch", _differ(source, target))
        good: list[Certificate] = []
        bad: list[EdgeRefusal] = []
        for certificate in self.certificates:
            broken = self._broken(certificate, source, target, now)
            if broken is None:
                good.append(certificate)
            else:
                bad.append(EdgeRefusal(pair, *broken, certificate.id))
        if good:
            best = max(good, key=lambda each: (each.basis == "evaluated", each.expires_at))
            return Edge(pair, best.basis, best.id, float(best.expires_at))
        if bad:
            # The one that comes nearest to allowing it says what is missing.
            return max(bad, key=lambda each: _TERMS.index(each.code))
        return EdgeRefusal(pair, "not_configured", "set certificate_path, or self_certify")

    def bar(self, source: End, target: End, now: float) -> Bar | None:
        """What keeps a session from moving so; None: nothing does."""
        found = self.judge(source, target, now)
        if isinstance(found, Edge):
            return None
        way = f"{source.worker} to {target.worker}: {found.code}"
        return Bar(_CODES.get(found.code, Code.NO_EDGE), f"{way}; {found.detail}")

    def plans(self, ends: Sequence[End], now: float) -> tuple[list[Edge], list[EdgeRefusal]]:
        """Every ordered pair of workers, in the order of their names (H131)."""
        edges: list[Edge] = []
        refusals: list[EdgeRefusal] = []
        for source in sorted(ends):
            for target in sorted(ends):
                if source.worker == target.worker:
                    continue
                found = self.judge(source, target, now)
                if isinstance(found, Edge):
                    edges.append(found)
                else:
                    refusals.append(found)
        return edges, refusals

    def registered(self) -> list[Certificate]:
        """Whose expiry means something: as issued, no mock, not revoked; also expired ones (A8)."""
        return [
            each
            for each in self.certificates
            if next(self._own_terms(each), None) is None and each.id not in self.revoked
        ]

    def expires_s(self, now: float) -> float:
        """Seconds until the first registered one expires: negative after that, 0 only without any (H138)."""
        left = [each.expires_at - now for each in self.registered()]
        return (min(left) or -1e-3) if left else 0.0

    def warnings(self, now: float) -> Iterator[str]:
        """What a person should know at start (H139)."""
        for certificate in self.certificates:
            broken = next(self._own_terms(certificate), None)
            if broken is not None:
                code, detail = broken
                yield f"the certificate allows no native move: {code} ({detail})"
        known = self.registered()
        if known and all(each.expires_at <= now for each in known):
            latest = max(each.expires_at for each in known)
            ago = _span(now - latest)
            yield f"every certificate has expired, the last one {ago} ago: native moves are refused"
        for each in known:
            if now < each.expires_at < now + SOON_S:
                yield f"the certificate {_short(each.id)} expires in {_span(each.expires_at - now)}: renew it"

    def _broken(
        self, certificate: Certificate, source: End, target: End, now: float
    ) -> tuple[RefusalCode, str] | None:
        """The first term that fails; None: the certificate allows the edge."""
        for own in self._own_terms(certificate):
            return own
        for end in (source, target):
            if end.fingerprint not in certificate.fingerprints:
                return "fingerprint_mismatch", f"{end.worker} has {end.fingerprint}, which is not covered"
        if source.fingerprint != target.fingerprint:
            # Both may be covered, and yet the bytes of the one mean nothing to the other (H108).
            return "fingerprint_mismatch", _differ(source, target)
        if (at := self.revoked.get(certificate.id)) is not None:
            return "revoked", f"{_short(certificate.id)} was revoked {_span(now - at)} ago"
        if now >= certificate.expires_at:
            return "expired", f"{_short(certificate.id)} expired {_span(now - certificate.expires_at)} ago"
        return None

    def _own_terms(self, certificate: Certificate) -> Iterator[tuple[RefusalCode, str]]:
        """What is wrong with a certificate whatever the workers, in order."""
        terms = self.terms
        if certificate.id != id_of(certificate):
            yield "id_mismatch", "its id is not the digest of the rest: it was changed after it was issued"
        elif certificate.expires_at != certificate.issued_at + VALID_S:
            yield "id_mismatch", f"it is not valid for {_span(VALID_S)}, as every issued one is"
        elif terms.certificate_id is not None and certificate.id != terms.certificate_id:
            yield "id_mismatch", "certificate_id names another one"
        if certificate.engine == "sim":
            yield "mock_refused", "its evidence is of the sim engine"
        if not certificate.is_issued:
            yield "not_issued", f"blocked by {', '.join(certificate.blocking) or 'its own verdicts'}"
        if certificate.evidence_profile != terms.profile:
            yield (
                "profile_mismatch",
                f"it is {certificate.evidence_profile}, evidence_profile is {terms.profile}",
            )
        if certificate.snapshot_schema != terms.snapshot_schema:
            yield (
                "snapshot_schema_mismatch",
                f"it is of schema {certificate.snapshot_schema}, this build moves {terms.snapshot_schema}",
            )


def _differ(source: End, target: End) -> str:
    return (
        f"{target.worker} has {_short(target.fingerprint)}, {source.worker} has {_short(source.fingerprint)}"
    )


def _short(name: str) -> str:
    """A digest as people compare it: its head and its first digits."""
    head, colon, digest = name.rpartition(":")
    return f"{head}{colon}{digest[:_SHOWN_CHARS]}" + ("…" if len(digest) > _SHOWN_CHARS else "")


def _span(seconds: float) -> str:
    """A span in whole days, hours or minutes."""
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"
