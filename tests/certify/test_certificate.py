"""The certificate file: its fields, the digest that binds them, and what is no certificate (H128, H140)."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swapd.certify.certificate import (
    MAX_CERTIFICATE_BYTES,
    PROFILES,
    VALID_S,
    Certificate,
    Gate,
    digest_of,
    id_of,
    issue,
    parse,
    write,
)
from swapd.certify.file import read_certificate
from swapd.errors import Code, SwapdError
from tests.certify.made import GATES, ISSUED_AT, certificate, forged

OTHER: dict[str, Any] = {
    "issued": False,
    "issued_at": ISSUED_AT + 1,
    "expires_at": ISSUED_AT + VALID_S + 1,
    "evidence_profile": "cpu_release",
    "snapshot_schema": 2,
    "engine": "sim",
    "basis": "quick",
    "fingerprints": ("fp", "more"),
    "gates": GATES[:-1],
    "build": "0.1.1",
    "blocking": ("G4",),
}
"""Another value of each field."""


def test_the_fields_are_those_of_the_rule() -> None:
    """H128, A29: 30 days, fingerprints, gates with the digests of their evidence, and what blocks it."""
    made = certificate("b", "a", "b")
    assert made.__struct_fields__ == (
        *(
            "id",
            "issued",
            "issued_at",
            "expires_at",
            "evidence_profile",
            "snapshot_schema",
            "engine",
            "basis",
        ),
        *("fingerprints", "gates", "build", "blocking"),
    )
    assert made.expires_at - made.issued_at == VALID_S == 30 * 24 * 3600
    assert re.fullmatch(r"cuda_release:sha256:1:[0-9a-f]{64}", made.id)
    assert made.fingerprints == ("a", "b")
    assert all(gate.evidence is not None for gate in made.gates)
    assert (made.is_whole, made.is_issued) == (True, True)


def test_what_is_written_is_read_again_whatever_its_layout() -> None:
    """H128: the digest is over what it says, not over bytes."""
    made = certificate()
    assert parse(write(made), "C.json") == made
    mixed = dict(reversed(msgspec.json.decode(write(made)).items()))
    again = parse(msgspec.json.encode(mixed), "C.json")
    assert again == made
    assert again.is_whole


@pytest.mark.parametrize("field", OTHER)
def test_changing_any_field_makes_another_digest(field: str) -> None:
    """H140: also `expires_at`, and also the field that was added last."""
    assert set(OTHER) == set(Certificate.__struct_fields__) - {"id"}
    made = certificate()
    changed = msgspec.structs.replace(made, **{field: OTHER[field]})
    assert digest_of(changed) != digest_of(made)
    assert not changed.is_whole


@given(
    field=st.sampled_from(sorted(OTHER)),
    days=st.integers(1, 4000),
    name=st.text("abcdefgh_0123", min_size=1, max_size=12),
)
def test_no_edit_keeps_the_id(field: str, days: int, name: str) -> None:
    """H140"""
    made = certificate()
    values: dict[str, Any] = {
        **OTHER,
        "issued_at": made.issued_at + days * 86_400,
        "expires_at": made.expires_at + days * 86_400,
        "snapshot_schema": made.snapshot_schema + days,
        "fingerprints": (name,),
        "build": f"{made.build}+{name}",
        "blocking": (name,),
        "gates": (Gate(name, "passed"),),
    }
    changed = msgspec.structs.replace(made, **{field: values[field]})
    assert changed == made or id_of(changed) != made.id


def test_a_longer_life_is_not_whole_even_with_a_right_digest() -> None:
    """H128: 30 days, whoever computed the id."""
    longer = forged(certificate(), expires_at=ISSUED_AT + VALID_S + 1)
    assert longer.id == id_of(longer)
    assert not longer.is_whole


@pytest.mark.parametrize("blocking", [(), ("G4", "G5")])
def test_a_gate_that_blocks_is_named_and_nothing_is_issued(blocking: tuple[str, ...]) -> None:
    """H128"""
    made = certificate(blocking=blocking)
    assert (made.issued, made.blocking) == (not blocking, blocking)


@pytest.mark.parametrize("profile", PROFILES)
def test_dev_never_issues(profile: Any) -> None:
    """A30, decision 13."""
    made = certificate(evidence_profile=profile)
    assert made.is_issued == (profile != "dev")
    assert not forged(made, evidence_profile="dev", issued=True).is_issued


@pytest.mark.parametrize(
    "changes", [{"issued": False}, {"blocking": ("G1",)}, {"gates": (Gate("G1", "failed"),)}]
)
def test_a_file_that_contradicts_itself_is_not_issued(changes: dict[str, Any]) -> None:
    assert not forged(certificate(), **changes).is_issued


GOOD = write(certificate())


def changed(**fields: Any) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(GOOD) | fields)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "C.json: Input data was truncated"),
        (b"not json", "C.json: JSON is malformed"),
        (b"\xff\xfe{}", "C.json: "),
        (b"[]", "C.json: Expected `object`"),
        (b"[" * 100_000, "C.json: "),
        (b'{"id": ' + b"[" * 100_000, "C.json: "),
        (b"{" + b'"x":{' * 20_000, "C.json: "),
        (changed(signature="x"), "C.json: Object contains unknown field `signature`"),
        (changed(id=7), "C.json: Expected `str`"),
        (changed(id="x" * 161), "C.json: "),
        (changed(issued="yes"), "C.json: Expected `bool`"),
        (changed(issued_at=-1), "C.json: "),
        (changed(expires_at=1e300), "C.json: "),
        (changed(evidence_profile="gpu"), "C.json: "),
        (changed(engine="mock"), "C.json: "),
        (changed(basis="self_issued"), "C.json: "),
        (changed(fingerprints=["fp"] * 65), "C.json: "),
        (changed(fingerprints=["a b"]), "C.json: "),
        (changed(gates=[{"name": "G1", "verdict": "waived"}]), "C.json: "),
        (changed(gates=[{"name": "G1", "verdict": "passed", "evidence": "abc"}]), "C.json: "),
        (GOOD.replace(b'"build"', b'"built"'), "C.json: "),
        (GOOD.replace(b"0.1.0", b"\xff"), "C.json: Invalid UTF-8"),
        (GOOD + b" " * MAX_CERTIFICATE_BYTES, f"C.json is over {MAX_CERTIFICATE_BYTES} bytes"),
    ],
)
def test_what_is_no_certificate_is_refused_with_what_is_wrong(raw: bytes, said: str) -> None:
    """H124: a start with it stops."""
    with pytest.raises(SwapdError) as refused:
        parse(raw, "C.json")
    assert refused.value.code is Code.CERTIFICATE_UNREADABLE
    assert refused.value.detail.startswith(said)
    assert len(refused.value.detail) < 200


def test_a_file_of_exactly_the_limit_is_read() -> None:
    assert parse(GOOD.ljust(MAX_CERTIFICATE_BYTES), "C.json").is_whole


def test_the_file_is_read_and_nothing_else_is(tmp_path: Path) -> None:
    """H124, A36"""
    path = tmp_path / "CERTIFICATE.json"
    path.write_bytes(GOOD)
    assert read_certificate(path) == certificate()
    os.mkfifo(tmp_path / "pipe")
    for name, said in (
        ("missing", "No such"),
        (".", "is no file"),
        ("pipe", "is no file"),
        ("a\0b", "no path"),
    ):
        with pytest.raises(SwapdError) as refused:
            read_certificate(tmp_path / name)
        assert refused.value.code is Code.CERTIFICATE_UNREADABLE
        assert said in refused.value.detail


def test_issue_is_a_pure_function_of_what_was_shown() -> None:
    """H128"""
    fields: dict[str, Any] = {
        "issued_at": ISSUED_AT,
        "evidence_profile": "cpu_release",
        "snapshot_schema": 1,
        "engine": "vllm",
        "basis": "quick",
        "fingerprints": ["x"],
        "gates": [],
        "build": "b",
    }
    assert issue(**fields) == issue(**fields)
    assert issue(**fields).id.startswith("cpu_release:sha256:1:")
