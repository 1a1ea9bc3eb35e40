"""CERTIFICATE.json: dated evidence that a native move between two workers changes nothing (H128). Pure.

    id           <profile>:sha256:<schema>:<digest>; the digest is over every other field, so that whoever
                 changes one makes another certificate, which no configuration names (H140)
    validity     30 days from `issued_at` on; at `expires_at` exactly it has expired (H136)
    evidence     which engine, which fingerprints, and each gate with the digest of what it saw

Whatever evaluates makes one with `issue`, which decides nothing: gates come in as they went, and a
certificate is issued exactly where none of them blocks it. `swapd.certify.registry` says what follows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Final, Literal, get_args

import msgspec
from msgspec import Meta

from swapd.errors import Code, SwapdError

CERTIFICATE_SCHEMA: Final = 1
"""Raised when a field is added or comes to mean something else."""
ALGORITHM: Final = "sha256"
VALID_S: Final = 30 * 86_400
MAX_CERTIFICATE_BYTES: Final = 256 << 10
MAX_TOLD_CHARS: Final = 160

Profile = Literal["cuda_release", "cpu_release", "dev"]
"""Where the evidence was made; `dev` never issues (A30)."""
PROFILES: Final[tuple[Profile, ...]] = get_args(Profile)
Floor = Literal["evaluated", "quick"]
"""How much was shown: all that the gates ask for, or the smaller floors of a quick one (decision 18)."""
EngineName = Literal["vllm", "sim"]

_Id = Annotated[str, Meta(min_length=1, max_length=160)]
_Word = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.+-]{1,64}$")]
_Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
_Fingerprint = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_]{1,128}$")]
_Second = Annotated[int, Meta(ge=0, le=1 << 40)]


class Gate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One gate of the evaluation: how it went, and the SHA-256 of the evidence for that."""

    name: _Word
    verdict: Literal["passed", "failed", "not_run"]
    evidence: _Sha256 | None = None


class Certificate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file, field by field. Times are whole seconds since 1970."""

    id: _Id
    issued: bool
    issued_at: _Second
    expires_at: _Second
    evidence_profile: Profile
    snapshot_schema: Annotated[int, Meta(ge=0, le=1 << 31)]
    engine: EngineName
    """That made the evidence. What the sim shows is a mock: it proves nothing of one that serves."""
    basis: Floor
    fingerprints: Annotated[tuple[_Fingerprint, ...], Meta(max_length=64)]
    """Workers of these are covered."""
    gates: Annotated[tuple[Gate, ...], Meta(max_length=64)]
    build: Annotated[str, Meta(min_length=1, max_length=128)]
    """Which swapd was evaluated."""
    blocking: Annotated[tuple[_Word, ...], Meta(max_length=64)] = ()
    """Gates for which it was not issued."""

    @property
    def is_issued(self) -> bool:
        """Whether its own words allow anything: nothing blocks it, no gate failed, and it is no `dev`."""
        failed = any(gate.verdict == "failed" for gate in self.gates)
        return self.issued and not self.blocking and not failed and self.evidence_profile != "dev"

    @property
    def is_whole(self) -> bool:
        """Whether it is as it was made: its id is the digest of the rest, and it lives 30 days (H140)."""
        return self.id == id_of(self) and self.expires_at == self.issued_at + VALID_S


def issue(
    *,
    issued_at: int,
    evidence_profile: Profile,
    snapshot_schema: int,
    engine: EngineName,
    basis: Floor,
    fingerprints: Sequence[str],
    gates: Sequence[Gate],
    build: str,
    blocking: Sequence[str] = (),
) -> Certificate:
    """A certificate of what was shown; issued where nothing blocks it. Fingerprints are put in order."""
    made = Certificate(
        id="-",
        issued=not blocking and evidence_profile != "dev",
        issued_at=issued_at,
        expires_at=issued_at + VALID_S,
        evidence_profile=evidence_profile,
        snapshot_schema=snapshot_schema,
        engine=engine,
        basis=basis,
        fingerprints=tuple(sorted(set(fingerprints))),
        gates=tuple(gates),
        build=build,
        blocking=tuple(blocking),
    )
    return msgspec.structs.replace(made, id=id_of(made))


def id_of(certificate: Certificate) -> str:
    """The id that its other fields make (A29)."""
    return f"{certificate.evidence_profile}:{ALGORITHM}:{CERTIFICATE_SCHEMA}:{digest_of(certificate)}"


def digest_of(certificate: Certificate) -> str:
    """SHA-256 over every field but the id, as JSON with sorted keys: the layout of the file is free."""
    fields = msgspec.to_builtins(certificate)
    del fields["id"]
    return hashlib.sha256(msgspec.json.encode(fields, order="sorted")).hexdigest()


def write(certificate: Certificate) -> bytes:
    """The file's bytes, for people to read as well."""
    return msgspec.json.format(msgspec.json.encode(certificate), indent=2) + b"\n"


def parse(raw: bytes, name: str) -> Certificate:
    """Read a file's bytes, whether it allows anything or not. Raises `certificate_unreadable`."""
    if len(raw) > MAX_CERTIFICATE_BYTES:
        raise SwapdError(Code.CERTIFICATE_UNREADABLE, f"{name} is over {MAX_CERTIFICATE_BYTES} bytes")
    try:
        return _decoder.decode(raw)
    except msgspec.DecodeError as error:
        # Depth is no concern: every level has its type, and what has none is refused where it begins.
        raise SwapdError(Code.CERTIFICATE_UNREADABLE, f"{name}: {str(error)[:MAX_TOLD_CHARS]}") from None


_decoder = msgspec.json.Decoder(Certificate)
