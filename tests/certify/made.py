"""Certificates of tests: whole and issued, unless a test breaks them."""

from __future__ import annotations

from typing import Any

import msgspec

from swapd.certify.certificate import Certificate, Gate, id_of, issue
from swapd.messages.snapshot import SNAPSHOT_SCHEMA

ISSUED_AT = 1_700_000_000
GATES = tuple(Gate(f"G{number}", "passed", f"{number}" * 64) for number in range(1, 7))


def certificate(*fingerprints: str, **changes: Any) -> Certificate:
    """What an evaluation of real engines would issue for workers of these fingerprints."""
    fields: dict[str, Any] = {
        "issued_at": ISSUED_AT,
        "evidence_profile": "cuda_release",
        "snapshot_schema": SNAPSHOT_SCHEMA,
        "engine": "vllm",
        "basis": "evaluated",
        "fingerprints": fingerprints or ("fp",),
        "gates": GATES,
        "build": "0.1.0",
    }
    return issue(**(fields | changes))


def forged(made: Certificate, **changes: Any) -> Certificate:
    """Changed after it was issued, with an id that is right again: whoever does that can compute a digest."""
    changed = msgspec.structs.replace(made, **changes)
    return msgspec.structs.replace(changed, id=id_of(changed))
