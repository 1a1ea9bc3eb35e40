"""The `sim` engine: deterministic, without torch, for tests and load.

It earns its place by being unforgiving. KV is real paged memory: computing a position writes bytes into
the session's block, and the next token is a hash over every byte of every block below the frontier. A
block that a move lost, swapped, left stale or wrote into a neighbour changes the output of the session
whose block it is, at the latest when its next block fills.

Slots. Position p owns `block_bytes // block_tokens` bytes of block `p // block_tokens` (the last slot of a
block also has the remainder); its content is a function of token, position and the blocks before. Bytes
past the frontier are never read (H84).

Digests. `chain` covers the full blocks, by the checksum of each, and is computed afresh from their bytes
whenever a block fills and at activate; in between only the block that is being filled is hashed.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final
from zlib import crc32

from swapd.config import SimConfig
from swapd.engines.base import Arrival, StepResult, StepToken
from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import EngineInfo, Finish
from swapd.messages.generation import GenerationSpec

STEP_TOKENS: Final = 64
"""Positions of one step: decoding generations have one each, prompts share the rest, the first come first."""
PREFILL_TOKENS_MIN: Final = 16
"""However many decode, prompts get on."""
EOS_TOKEN_ID: Final = 0
EOS_ONE_IN: Final = 997
SIM_VERSION: Final = "2"


class _Generation:
    """One generation inside the engine; `computed` positions of `tokens` have KV."""

    __slots__ = (
        "again",
        "blocks",
        "chain",
        "computed",
        "held",
        "key",
        "replay_end",
        "reserved",
        "sampling",
        "spec",
        "tokens",
    )

    def __init__(self, key: str, spec: GenerationSpec, outputs: Sequence[int]) -> None:
        self.key = key
        self.spec = spec
        self.tokens = [*spec.prompt, *outputs]
        self.computed = 0
        self.replay_end = len(self.tokens) - 1 if outputs else 0
        self.again = 0
        self.blocks: list[int] = []
        self.chain = blake2b().digest()
        self.held = False
        self.reserved = False
        self.sampling = _sampling_bytes(spec)

    @property
    def outputs(self) -> int:
        return len(self.tokens) - len(self.spec.prompt)

    @property
    def decoding(self) -> bool:
        return self.outputs > 0 and self.computed == len(self.tokens) - 1


class SimEngine:
    """Implements `swapd.engines.base.Engine` over a byte array of blocks."""

    def __init__(self, config: SimConfig) -> None:
        if config.block_bytes < config.block_tokens or config.vocab_size < 2:
            raise SwapdError(Code.CONFIG_INVALID, "sim needs a byte a token and a vocabulary of two")
        self._config = config
        self._slot = config.block_bytes // config.block_tokens
        self._memory = memoryview(bytearray(config.blocks * config.block_bytes))
        self._free = list(range(config.blocks - 1, -1, -1))
        self._writable: set[int] = set()
        self._generations: dict[str, _Generation] = {}
        self._committed = 0
        self._prefill = True
        self._arrived = False
        self._recomputed = 0
        shape = f"sim-{SIM_VERSION}:{config.block_tokens}:{config.block_bytes}:{config.vocab_size}"
        self._info = EngineInfo(
            engine="sim",
            engine_version=SIM_VERSION,
            model="sim",
            fingerprint=blake2b(shape.encode(), digest_size=16).hexdigest(),
            block_tokens=config.block_tokens,
            block_bytes=config.block_bytes,
            usable_blocks=config.blocks,
            max_model_len=config.max_model_len,
            max_num_seqs=config.max_num_seqs,
            vocab_size=config.vocab_size,
            eos_token_ids=(EOS_TOKEN_ID,),
        )

    @property
    def info(self) -> EngineInfo:
        return self._info

    def start(self, key: str, spec: GenerationSpec, outputs: Sequence[int]) -> None:
        self._admit(_Generation(key, spec, outputs), Code.CAPACITY)

    def reserve(self, key: str, spec: GenerationSpec) -> None:
        generation = _Generation(key, spec, ())
        generation.reserved = True
        self._admit(generation, Code.TARGET_FULL)
        self._grow(generation, spec.budget)
        self._writable.update(generation.blocks)

    def activate(self, arrivals: Sequence[Arrival]) -> None:
        for arrival in arrivals:
            generation = self._generations[arrival.key]
            generation.reserved = False
            self._writable.difference_update(generation.blocks)
            generation.tokens = [*generation.spec.prompt, *arrival.outputs]
            below = len(generation.tokens) - 1
            generation.computed = below if arrival.computed is None else arrival.computed
            if arrival.computed is not None:
                generation.replay_end = below
            generation.chain = self._full_blocks_digest(generation)
            # Somebody waits for the step that it enters: no prompt makes it longer.
            self._arrived |= generation.decoding

    def runnable(self) -> bool:
        return any(
            self._positions(generation, STEP_TOKENS if self._prefill else 0)
            for generation in self._generations.values()
        )

    def step(self) -> StepResult:
        if self._config.step_ms > 0:
            time.sleep(self._config.step_ms / 1000)
        tokens: list[StepToken] = []
        batch: list[tuple[str, int]] = []
        rebuilt: list[tuple[str, int]] = []
        chunk = self._prefill_tokens()
        for generation in list(self._generations.values()):
            count = self._positions(generation, chunk)
            if not count:
                continue
            if not generation.decoding:
                chunk -= count
            self._compute(generation, count)
            batch.append((generation.key, count))
            if generation.computed == len(generation.tokens):
                token_id, finish = self._sample(generation)
                generation.tokens.append(token_id)
                tokens.append(StepToken(generation.key, token_id, finish))
                if generation.replay_end:
                    rebuilt.append((generation.key, generation.again))
                    generation.replay_end = 0
                if finish is not None:
                    self.remove(generation.key)
        return StepResult(tokens, batch, rebuilt=rebuilt)

    def hold(self, key: str) -> None:
        self._generations[key].held = True

    def unhold(self, key: str) -> None:
        self._generations[key].held = False

    def remove(self, key: str) -> None:
        generation = self._generations.pop(key, None)
        if generation is None:
            return
        self._writable.difference_update(generation.blocks)
        self._free.extend(reversed(generation.blocks))
        self._committed -= self._blocks_for(generation.spec.budget)

    def set_prefill(self, on: bool) -> None:
        self._prefill = on

    def block_table(self, key: str) -> tuple[int, ...]:
        return tuple(self._generations[key].blocks)

    def computed(self, key: str) -> int:
        return self._generations[key].computed

    def decoding(self, key: str) -> bool:
        return self._generations[key].decoding

    def outputs(self, key: str) -> tuple[int, ...]:
        generation = self._generations[key]
        return tuple(generation.tokens[len(generation.spec.prompt) :])

    def read_block(self, block: int, into: memoryview) -> None:
        into[:] = self._block(block)

    def write_block(self, block: int, data: memoryview) -> None:
        if block not in self._writable:
            raise SwapdError(Code.INTERNAL, "write to a block that is not reserved")
        self._block(block)[:] = data

    def free_blocks(self) -> int:
        return self._config.blocks - self._committed

    def recomputed(self) -> int:
        return self._recomputed

    def recomputed_for(self, key: str) -> int:
        generation = self._generations.get(key)
        return generation.again if generation is not None and generation.replay_end else 0

    def close(self) -> None:
        self._generations.clear()

    def _admit(self, generation: _Generation, full: Code) -> None:
        need = self._blocks_for(generation.spec.budget)
        if (
            self._committed + need > self._config.blocks
            or len(self._generations) >= self._config.max_num_seqs
        ):
            raise SwapdError(full, f"{need} blocks wanted, {self.free_blocks()} free")
        self._committed += need
        self._generations[generation.key] = generation

    def _positions(self, generation: _Generation, chunk: int) -> int:
        """How many positions the next step computes for a generation, with `chunk` left for prefill."""
        if generation.held or generation.reserved:
            return 0
        if generation.decoding:
            return 1
        return min(len(generation.tokens) - generation.computed, chunk)

    def _prefill_tokens(self) -> int:
        """How many prompt positions this step computes."""
        arrived, self._arrived = self._arrived, False
        if arrived or not self._prefill:
            return 0
        decoding = sum(1 for one in self._generations.values() if one.decoding and self._positions(one, 0))
        return max(STEP_TOKENS - decoding, PREFILL_TOKENS_MIN)

    def _compute(self, generation: _Generation, count: int) -> None:
        again = max(0, min(generation.computed + count, generation.replay_end) - generation.computed)
        generation.again += again
        self._recomputed += again
        self._grow(generation, generation.computed + count)
        block_tokens = self._config.block_tokens
        for position in range(generation.computed, generation.computed + count):
            seed = struct.pack("<II", position, generation.tokens[position])
            word = blake2b(generation.chain + seed).digest()
            slot = self._slot_of(generation, position)
            slot[:] = (word * (len(slot) // len(word) + 1))[: len(slot)]
            generation.computed = position + 1
            if generation.computed % block_tokens == 0:
                generation.chain = self._full_blocks_digest(generation)

    def _sample(self, generation: _Generation) -> tuple[int, Finish | None]:
        """The next token, a function of all KV bytes, the position and the sampling parameters."""
        digest = blake2b(generation.chain, key=generation.sampling, digest_size=16)
        tail = generation.computed % self._config.block_tokens
        if tail:
            block = generation.blocks[generation.computed // self._config.block_tokens]
            digest.update(self._block(block)[: tail * self._slot])
        digest.update(struct.pack("<I", len(generation.tokens)))
        draw, pick = struct.unpack("<QQ", digest.digest())
        sampling = generation.spec.sampling
        position = generation.outputs + 1
        may_stop = position >= max(sampling.min_tokens, 1)
        token_id = EOS_TOKEN_ID if draw % EOS_ONE_IN == 0 else 1 + pick % (self._config.vocab_size - 1)
        banned = () if may_stop else (EOS_TOKEN_ID, *sampling.stop_token_ids)
        while token_id in banned:
            token_id = (token_id + 1) % self._config.vocab_size
        if may_stop and token_id == EOS_TOKEN_ID and not sampling.ignore_eos:
            return token_id, "eos"
        if may_stop and token_id in sampling.stop_token_ids:
            return token_id, "stop_token"
        return token_id, "length" if position >= generation.spec.max_new_tokens else None

    def _grow(self, generation: _Generation, positions: int) -> None:
        while len(generation.blocks) < self._blocks_for(positions):
            generation.blocks.append(self._free.pop())

    def _blocks_for(self, positions: int) -> int:
        return -(-positions // self._config.block_tokens)

    def _block(self, block: int) -> memoryview:
        size = self._config.block_bytes
        return self._memory[block * size : (block + 1) * size]

    def _slot_of(self, generation: _Generation, position: int) -> memoryview:
        index, within = divmod(position, self._config.block_tokens)
        end = (
            (within + 1) * self._slot if within + 1 < self._config.block_tokens else self._config.block_bytes
        )
        return self._block(generation.blocks[index])[within * self._slot : end]

    def _full_blocks_digest(self, generation: _Generation) -> bytes:
        # Several times as fast as hashing every byte: many sessions in one engine do this all the time.
        digest = blake2b()
        for block in generation.blocks[: generation.computed // self._config.block_tokens]:
            digest.update(crc32(self._block(block)).to_bytes(4, "little"))
        return digest.digest()


def open_sim(config: SimConfig) -> SimEngine:
    """Open a sim engine. Raises `config_invalid` for sizes that cannot work."""
    return SimEngine(config)


def _sampling_bytes(spec: GenerationSpec) -> bytes:
    """What of the parameters decides tokens: at temperature 0 neither the seed nor the filters do."""
    sampling = spec.sampling
    parts: tuple[object, ...] = (
        sampling.presence_penalty,
        sampling.frequency_penalty,
        sampling.repetition_penalty,
    )
    if sampling.temperature > 0:
        parts += (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.seed)
    return blake2b(repr(parts).encode(), digest_size=32).digest()
