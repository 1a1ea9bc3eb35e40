"""What a snapshot says of itself, and what whoever takes it in checks (H78, H89). Pure.

A snapshot is a session's blocks and its manifest. Beside KV, decoding needs more state; none of it travels,
because each item is a pure function of the prompt, the parameters and the accepted tokens, which the target
has from the store:

    transcript   prompt and output tokens
    generator    the noise of a token is made from (seed, position), so what remains is the next position
    penalties    how often each token came; without penalties there are no counts
    stops        what may end it, and the text that is held back because it may begin a stop string
    detokeniser  the bytes of an incomplete character
    grammar      none: a request that wants one is refused at admission

The source lists each with a digest made from what its own engine decoded, the target makes the same digests
from what it was told. So a session never goes on from another state than that it was frozen in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from swapd.errors import Code, SwapdError
from swapd.messages.generation import BlockEntry, GenerationSpec, Lease, Manifest, StateEntry

SNAPSHOT_SCHEMA: Final = 1
"""Raised whenever a block, an item of state or a digest comes to mean something else."""
DIGEST_BYTES: Final = 16


def bind(
    session: str,
    epoch: int,
    lease: Lease,
    fingerprint: str,
    blocks: Sequence[BlockEntry],
    state: tuple[StateEntry, ...] = (),
) -> Manifest:
    """A manifest of blocks in a lease. `epoch` is the one that the target would own."""
    return seal(
        Manifest(
            session=session,
            epoch=epoch,
            region=lease.region,
            generation=lease.generation,
            fingerprint=fingerprint,
            blocks=tuple(blocks),
            state=state,
            schema=SNAPSHOT_SCHEMA,
        )
    )


def seal(manifest: Manifest) -> Manifest:
    """The manifest with the digest of its other fields."""
    return msgspec.structs.replace(manifest, digest=_digest_of(manifest))


def check_manifest(manifest: Manifest, *, session: str, epoch: int, lease: Lease, fingerprint: str) -> None:
    """H78, B21, H96: right bytes of the wrong session, epoch, lease, engine or schema are wrong bytes.

    Raises `manifest_mismatch`, naming what is another one, or `checksum_mismatch`.
    """
    ours = {
        "schema": SNAPSHOT_SCHEMA,
        "session": session,
        "epoch": epoch,
        "region": lease.region,
        "generation": lease.generation,
        "fingerprint": fingerprint,
    }
    others = [name for name, value in ours.items() if getattr(manifest, name) != value]
    if others:
        raise SwapdError(Code.MANIFEST_MISMATCH, f"another {' and '.join(others)}")
    if manifest.digest != _digest_of(manifest):
        raise SwapdError(Code.CHECKSUM_MISMATCH, "the manifest")


def decode_state(spec: GenerationSpec, outputs: Sequence[int]) -> tuple[StateEntry, ...]:
    """The decode state after `outputs`, item by item."""
    sampling = spec.sampling
    factors = tuple(
        map(float, (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty))
    )
    counts = None
    if factors != (0.0, 0.0, 1.0):
        counts = (sorted(Counter(outputs).items()), sorted(set(spec.prompt)))
    filters = tuple(map(float, (sampling.temperature, sampling.top_p, sampling.min_p)))
    text = _digest("outputs", outputs)
    parts: dict[str, tuple[object, ...]] = {
        "transcript": (spec.prompt, text),
        "generator": (filters, sampling.top_k, sampling.seed, len(outputs) + 1),
        "penalties": (factors, counts),
        "stops": (
            sampling.stop_token_ids,
            sampling.ignore_eos,
            sampling.min_tokens,
            spec.max_new_tokens,
            text,
        ),
        "detokeniser": (text,),
        "grammar": (),
    }
    return tuple(StateEntry(name, _digest(name, *part)) for name, part in parts.items())


def check_state(state: tuple[StateEntry, ...], spec: GenerationSpec, outputs: Sequence[int]) -> None:
    """H89: raises `manifest_mismatch`, naming the items, unless this is the state after `outputs`."""
    ours = decode_state(spec, outputs)
    if state != ours:
        others = sorted({entry.name for entry in {*state} ^ {*ours}}) or ["order"]
        raise SwapdError(Code.MANIFEST_MISMATCH, f"another state: {', '.join(others)}")


def valid_tokens(computed: int, block_tokens: int) -> list[int]:
    """Valid tokens of each block of a session with `computed` positions."""
    return [min(block_tokens, computed - at) for at in range(0, computed, block_tokens)]


def _digest_of(manifest: Manifest) -> str:
    return _digest("manifest", msgspec.structs.replace(manifest, digest=""))


def _digest(*parts: object) -> str:
    return blake2b(msgspec.msgpack.encode(parts), digest_size=DIGEST_BYTES).hexdigest()
