"""Edges: there exactly where one certificate keeps every term, else with the code of the term that fails."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swapd.certify.certificate import VALID_S, Certificate, Gate
from swapd.certify.registry import SOON_S, WORDS, Bar, End, Evidence, Terms
from swapd.certify.views import Edge, EdgeRefusal, Pair, RefusalCode
from swapd.errors import Code
from tests.certify.made import ISSUED_AT, certificate, forged

A, B = End("a", "fp"), End("b", "fp")
NOW = ISSUED_AT + 86_400.0
GOOD = certificate("fp")
TERMS = Terms(GOOD.id, "cuda_release", False, GOOD.snapshot_schema)


def judged(
    *certificates: Certificate,
    terms: Terms = TERMS,
    source: End = A,
    target: End = B,
    revoked: dict[str, float] | None = None,
    now: float = NOW,
) -> Edge | EdgeRefusal:
    return Evidence(terms, certificates, revoked or {}).judge(source, target, now)


def refused(found: Edge | EdgeRefusal) -> EdgeRefusal:
    assert isinstance(found, EdgeRefusal)
    assert found.edge == Pair("a", "b")
    assert found.detail
    return found


def pinned(made: Certificate) -> Terms:
    """The terms of a configuration that names this very certificate."""
    return TERMS._replace(certificate_id=made.id)


def test_a_certificate_that_keeps_every_term_makes_the_edge() -> None:
    """H129, H132: with its basis and its expiry."""
    assert judged(GOOD) == Edge(Pair("a", "b"), "evaluated", GOOD.id, GOOD.expires_at)
    quick = certificate("fp", basis="quick")
    assert judged(quick, terms=pinned(quick)) == Edge(Pair("a", "b"), "quick", quick.id, quick.expires_at)


def test_without_certificate_and_self_certify_nothing_is_configured() -> None:
    """H130: not_configured."""
    assert refused(judged(terms=TERMS._replace(certificate_id=None))).code == "not_configured"


@pytest.mark.parametrize("field", ["expires_at", "fingerprints", "issued_at", "build"])
def test_a_certificate_that_was_edited_is_another_one(field: str) -> None:
    """H130, H140: id_mismatch; editing `expires_at` wins no day."""
    values: dict[str, Any] = {
        "expires_at": GOOD.expires_at + 86_400,
        "fingerprints": ("fp", "other"),
        "issued_at": GOOD.issued_at + 86_400,
        "build": "another",
    }
    edited = msgspec.structs.replace(GOOD, **{field: values[field]})
    found = refused(judged(edited))
    assert (found.code, found.certificate) == ("id_mismatch", GOOD.id)


def test_a_certificate_with_another_life_is_none_that_was_issued() -> None:
    """H128, H130: id_mismatch, though its digest is right."""
    longer = forged(GOOD, expires_at=GOOD.expires_at + 86_400)
    assert refused(judged(longer, terms=pinned(longer))).code == "id_mismatch"


def test_another_certificate_than_the_configured_one_is_refused() -> None:
    """H129, H130: id_mismatch; without `certificate_id` whichever the file has is meant."""
    other = certificate("fp", build="another")
    assert refused(judged(other)).code == "id_mismatch"
    assert isinstance(judged(other, terms=TERMS._replace(certificate_id=None)), Edge)


def test_a_certificate_that_was_not_issued_names_what_blocks_it() -> None:
    """H130: not_issued."""
    blocked = certificate("fp", blocking=("G3", "G4"))
    found = refused(judged(blocked, terms=pinned(blocked)))
    assert (found.code, "G3, G4" in found.detail) == ("not_issued", True)


@pytest.mark.parametrize(
    ("left_s", "valid"), [(1.0, True), (0.001, True), (0.0, False), (-0.001, False), (-9e6, False)]
)
def test_it_has_expired_at_expires_at_exactly(left_s: float, valid: bool) -> None:
    """H130: expired; H136: to the instant."""
    found = judged(GOOD, now=GOOD.expires_at - left_s)
    assert isinstance(found, Edge) == valid
    assert valid or refused(found).code == "expired"


def test_evidence_of_another_profile_is_refused() -> None:
    """H130: profile_mismatch."""
    assert refused(judged(GOOD, terms=TERMS._replace(profile="cpu_release"))).code == "profile_mismatch"


def test_evidence_of_another_snapshot_schema_is_refused() -> None:
    """H130: snapshot_schema_mismatch."""
    old = certificate("fp", snapshot_schema=GOOD.snapshot_schema + 1)
    assert refused(judged(old, terms=pinned(old))).code == "snapshot_schema_mismatch"


@pytest.mark.parametrize("worker", ["a", "b"])
def test_a_worker_that_is_not_covered_is_named(worker: str) -> None:
    """H130, H162: fingerprint_mismatch(worker), as after a rollback of the runtime on one of them."""
    ends = {"a": A, "b": B} | {worker: End(worker, "rolled_back")}
    found = refused(judged(GOOD, source=ends["a"], target=ends["b"]))
    assert found.code == "fingerprint_mismatch"
    assert found.detail.startswith(f"{worker} has rolled_back")


def test_two_covered_workers_of_different_fingerprints_have_no_edge() -> None:
    """H108, H130: the certificate names both, and still the one's KV means nothing to the other."""
    both = certificate("fp", "other")
    found = refused(judged(both, terms=pinned(both), target=End("b", "other")))
    assert found.code == "fingerprint_mismatch"
    same = judged(both, terms=pinned(both), source=End("a", "other"), target=End("b", "other"))
    assert isinstance(same, Edge)


def test_a_revoked_certificate_makes_no_edge() -> None:
    """H130, H137: revoked."""
    assert refused(judged(GOOD, revoked={GOOD.id: NOW - 60})).code == "revoked"
    assert isinstance(judged(GOOD, revoked={"another": NOW}), Edge)


def test_evidence_of_the_sim_is_a_mock_whatever_the_rest_says() -> None:
    """H120, H130: mock_refused."""
    mock = certificate("fp", engine="sim")
    assert refused(judged(mock, terms=pinned(mock))).code == "mock_refused"


BREAKS: dict[str, dict[str, Any]] = {
    "id_mismatch": {"terms": TERMS._replace(certificate_id="another")},
    "mock_refused": {"certificate": {"engine": "sim"}},
    "not_issued": {"certificate": {"blocking": ("G2",)}},
    "profile_mismatch": {"certificate": {"evidence_profile": "cpu_release"}},
    "snapshot_schema_mismatch": {"certificate": {"snapshot_schema": 77}},
    "fingerprint_mismatch": {"certificate": {"fingerprints": ("other",)}},
    "revoked": {"revoked": True},
    "expired": {"certificate": {"issued_at": ISSUED_AT - VALID_S}},
}


def test_every_code_has_its_break_and_its_words() -> None:
    """H130: the set is closed."""
    assert set(BREAKS) | {"not_configured"} == set(get_args(RefusalCode)) == set(WORDS)
    assert tuple(WORDS) == get_args(RefusalCode)


@given(broken=st.sets(st.sampled_from(sorted(BREAKS)), max_size=4), data=st.data())
def test_one_broken_term_gives_its_code_and_of_several_the_first(broken: set[str], data: Any) -> None:
    """H129, H130: an edge if and only if nothing is broken."""
    changes: dict[str, Any] = {}
    for name in broken:
        changes |= BREAKS[name].get("certificate", {})
    made = certificate(**changes)
    terms = TERMS._replace(certificate_id="another") if "id_mismatch" in broken else pinned(made)
    revoked = {made.id: 1.0} if "revoked" in broken else {}
    late = data.draw(st.floats(0, 86_400.0))
    found = judged(made, terms=terms, revoked=revoked, now=NOW + late if "expired" not in broken else NOW)
    if not broken:
        assert isinstance(found, Edge)
    else:
        assert refused(found).code == min(broken, key=list(WORDS).index)


def test_self_certify_takes_equal_fingerprints_and_nothing_else() -> None:
    """H133, A31: without expiry; different ones are refused, named."""
    terms = TERMS._replace(self_certify=True, certificate_id=None)
    assert judged(terms=terms) == Edge(Pair("a", "b"), "self_issued")
    found = refused(judged(terms=terms, target=End("b", "other")))
    assert (found.code, found.detail) == ("fingerprint_mismatch", "b has other, a has fp")


@pytest.mark.parametrize("self_certify", [True, False])
def test_edges_go_both_ways_between_all_and_from_nobody_to_itself(self_certify: bool) -> None:
    """H131: and a worker that differs has none, in either direction."""
    ends = [End("c", "other"), End("b", "fp"), End("a", "fp")]
    evidence = Evidence(TERMS._replace(self_certify=self_certify), () if self_certify else (GOOD,))
    edges, refusals = evidence.plans(ends, NOW)
    assert [each.edge for each in edges] == [Pair("a", "b"), Pair("b", "a")]
    assert [(each.edge, each.code) for each in refusals] == [
        (Pair(*pair), "fingerprint_mismatch") for pair in (("a", "c"), ("b", "c"), ("c", "a"), ("c", "b"))
    ]
    assert evidence.plans(ends[:1], NOW) == ([], [])


def test_the_better_evidence_is_the_basis_and_the_nearest_one_says_what_is_missing() -> None:
    """Decision 18: a quick certificate beside an evaluated one."""
    terms = TERMS._replace(certificate_id=None)
    quick = certificate("fp", basis="quick", issued_at=ISSUED_AT + 3600)
    for both in ((GOOD, quick), (quick, GOOD)):
        found = judged(*both, terms=terms)
        assert isinstance(found, Edge)
        assert found.certificate == GOOD.id
        late = judged(*both, terms=terms, now=GOOD.expires_at + 60.0)
        assert isinstance(late, Edge)
        assert (late.basis, late.certificate) == ("quick", quick.id)
        elsewhere = certificate("other", issued_at=ISSUED_AT + 7200)
        gone = refused(judged(*both, elsewhere, terms=terms, now=quick.expires_at + 60.0))
        assert gone.code == "expired"


@pytest.mark.parametrize(
    ("revoked", "late", "worker", "code"),
    [
        (True, False, "fp", Code.CERTIFICATE_REVOKED),
        (False, True, "fp", Code.CERTIFICATE_EXPIRED),
        (False, False, "other", Code.NO_EDGE),
    ],
)
def test_a_drain_hears_what_bars_the_way_and_between_whom(
    revoked: bool, late: bool, worker: str, code: Code
) -> None:
    """H55"""
    evidence = Evidence(TERMS, (GOOD,), {GOOD.id: NOW} if revoked else {})
    bar = evidence.bar(A, End("b", worker), GOOD.expires_at + 1.0 if late else NOW)
    assert isinstance(bar, Bar)
    assert bar.code is code
    assert bar.detail.startswith("a to b: ")
    assert Evidence(TERMS, (GOOD,)).bar(A, B, NOW) is None


def test_the_expiry_that_is_measured_is_the_smallest_of_what_counts() -> None:
    """H138, A8: 0 only without any, never at the instant itself, negative after it."""
    later = certificate("fp", issued_at=ISSUED_AT + 1000)
    mock = certificate("fp", engine="sim", issued_at=ISSUED_AT - 5000)
    blocked = certificate("fp", blocking=("G1",), issued_at=ISSUED_AT - 5000)
    edited = msgspec.structs.replace(GOOD, expires_at=GOOD.expires_at - 5000)
    terms = TERMS._replace(certificate_id=None)
    evidence = Evidence(terms, (later, mock, blocked, edited, GOOD))
    assert [each.id for each in evidence.registered()] == [later.id, GOOD.id]
    assert evidence.expires_s(NOW) == GOOD.expires_at - NOW
    assert evidence.expires_s(NOW) - evidence.expires_s(NOW + 10) == 10
    assert evidence.expires_s(GOOD.expires_at + 5.0) == -5
    assert -0.01 < evidence.expires_s(float(GOOD.expires_at)) < 0
    assert evidence._replace(revoked={GOOD.id: 1.0}).expires_s(NOW) == later.expires_at - NOW
    assert Evidence(terms).expires_s(NOW) == 0
    assert Evidence(terms, (GOOD,), {GOOD.id: 1.0}).expires_s(NOW) == 0
    assert Evidence(terms._replace(self_certify=True)).expires_s(NOW) == 0  # A31


@pytest.mark.parametrize(
    ("left_s", "said"),
    [
        (SOON_S + 60, None),
        (SOON_S, None),
        (SOON_S - 60, "expires in 7 days: renew it"),
        (3 * 3600, "expires in 3 hours: renew it"),
        (0, "every certificate has expired, the last one 0 s ago: native moves are refused"),
        (-3 * 86_400, "every certificate has expired, the last one 3 days ago: native moves are refused"),
    ],
)
def test_a_start_warns_of_the_last_week_and_of_the_end(left_s: float, said: str | None) -> None:
    """H139: each alone."""
    warnings = list(Evidence(TERMS, (GOOD,)).warnings(GOOD.expires_at - left_s))
    assert len(warnings) == (said is not None)
    assert said is None or warnings[0].endswith(said)


def test_a_start_warns_of_a_certificate_that_allows_nothing() -> None:
    """H130, H139"""
    made = certificate("fp", blocking=("G4",))
    [said] = Evidence(pinned(made), (made,)).warnings(NOW)
    assert said == "the certificate allows no native move: not_issued (blocked by G4)"
    failed = forged(GOOD, gates=(Gate("G1", "failed"),))
    [said] = Evidence(pinned(failed), (failed,)).warnings(NOW)
    assert "not_issued" in said
