"""What an engine gets to know of a session."""

from __future__ import annotations

from tests.store.records import record


def test_an_engine_gets_the_prompt_and_a_salt_that_separates_namespaces_without_naming_them() -> None:
    spec = record("a", namespace="tenant-one").spec()
    other = record("b", namespace="tenant-two").spec()
    assert (spec.session, spec.prompt, spec.max_new_tokens) == ("a", (11, 12, 13), 100)
    assert spec.salt == record("c", namespace="tenant-one").spec().salt
    assert spec.salt != other.salt
    assert "tenant" not in spec.salt
