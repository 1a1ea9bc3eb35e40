"""One-time codes: once, for a quarter of an hour."""

from __future__ import annotations

from swapd.signin.codes import MAX_CODES, VALID_S, OneTimeCodes


def test_a_code_is_good_once() -> None:
    codes = OneTimeCodes()
    codes.add(b"a", "owner", 0.0)
    codes.add(b"b", "viewer", 0.0)
    assert codes.take(b"c", 1.0) is None
    assert codes.take(b"a", 1.0) == "owner"
    assert codes.take(b"a", 1.0) is None
    assert codes.take(b"b", 1.0) == "viewer"


def test_a_code_expires() -> None:
    codes = OneTimeCodes()
    codes.add(b"a", "owner", 0.0)
    assert codes.take(b"a", VALID_S) is None
    assert len(codes) == 0


def test_only_the_newest_codes_are_kept() -> None:
    codes = OneTimeCodes()
    for n in range(MAX_CODES + 3):
        codes.add(b"%d" % n, "owner", 0.0)
    assert len(codes) == MAX_CODES
    assert codes.take(b"2", 0.0) is None
    assert codes.take(b"3", 0.0) == "owner"
