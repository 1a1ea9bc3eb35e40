"""The fingerprint says whether KV bytes mean the same on two workers."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest

from swapd.certify.fingerprint import (
    FingerprintParts,
    combined_digest,
    fingerprint,
    model_file_digests,
    package_versions,
)

PARTS = FingerprintParts(
    engine="vllm",
    model_files=(("config.json", "aa"), ("model.safetensors", "bb")),
    dtype="bfloat16",
    max_model_len=8192,
    block_tokens=32,
    block_bytes=737280,
    kv_layout="LBHNC (3, 32, 128)",
    attention="CPU_ATTN amx",
    max_num_batched_tokens=64,
    max_num_seqs=16,
    prefix_caching=True,
    eos_token_ids=(2,),
    noise="splitmix64",
    versions=(("python", "3.11.2"), ("torch", "2.13.0")),
    hardware="x86_64 AVX512",
)
CHANGED: dict[str, object] = {
    "engine": "sim",
    "model_files": (("config.json", "aa"), ("model.safetensors", "bc")),
    "dtype": "float16",
    "max_model_len": 4096,
    "block_tokens": 16,
    "block_bytes": 737281,
    "kv_layout": "LBNHC (3, 32, 128)",
    "attention": "CPU_ATTN vec",
    "max_num_batched_tokens": 128,
    "max_num_seqs": 8,
    "prefix_caching": False,
    "eos_token_ids": (2, 0),
    "noise": "torch",
    "versions": (("python", "3.11.2"), ("torch", "2.13.1")),
    "hardware": "x86_64 AVX2",
}


def test_equal_settings_have_equal_fingerprints() -> None:
    """H108."""
    assert fingerprint(PARTS) == fingerprint(msgspec.structs.replace(PARTS))
    assert fingerprint(PARTS).startswith("fp_")


@pytest.mark.parametrize("field", FingerprintParts.__struct_fields__)
def test_each_single_change_gives_another(field: str) -> None:
    """H108: every field there is."""
    assert fingerprint(msgspec.structs.replace(PARTS, **{field: CHANGED[field]})) != fingerprint(PARTS)


def test_nothing_in_it_tells_workers_apart() -> None:
    """H108: no worker id, device index, path or pid can get in."""
    assert set(FingerprintParts.__struct_fields__) == set(CHANGED)


def test_the_digests_do_not_depend_on_where_the_model_lies(tmp_path: Path) -> None:
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"weights")
        (folder / "config.json").write_text("{}")
        (folder / "README.md").write_text(str(folder))
    first, second = model_file_digests(tmp_path / "a"), model_file_digests(tmp_path / "b")
    assert first == second
    assert [name for name, _ in first] == ["config.json", "model.safetensors"]
    assert dict(first)["model.safetensors"] == hashlib.sha256(b"weights").hexdigest()
    (tmp_path / "b" / "model.safetensors").write_bytes(b"weightS")
    assert model_file_digests(tmp_path / "b") != first


def test_a_combined_digest_is_that_of_sha256sums_lines() -> None:
    expected = hashlib.sha256(b"aa  one\nbb  two\n").hexdigest()
    assert combined_digest([("two", "bb"), ("one", "aa")]) == expected


def test_versions_name_python_and_what_is_installed() -> None:
    found = dict(package_versions(("msgspec", "no-such-package")))
    assert set(found) == {"python", "msgspec"}
