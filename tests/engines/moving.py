"""Two engines, generations between them, and what came out: the means of the claims in `conformance`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from swapd.engines.base import Arrival, Engine, StepResult
from swapd.messages.generation import GenerationSpec, Sampling

PLACES = 16
MARK_BYTE = 0x7F
"""A block of these is finite in every format, and no value that a model computes."""
NAN_BYTE = 0xFF
"""A block of these is NaN in every floating point format that KV is kept in."""

TEXT = (
    504,
    33059,
    40061,
    30324,
    260,
    18851,
    24224,
    971,
    9053,
    351,
    253,
    44588,
    281,
    582,
    1369,
    284,
    253,
    20797,
    281,
    260,
    550,
    30,
    909,
    4150,
    1187,
    260,
    7302,
    282,
    260,
    6376,
    28,
    260,
    4376,
    282,
    260,
    2251,
    284,
    260,
    3834,
    282,
    260,
    7761,
    338,
    4180,
    30,
    533,
    4339,
    260,
    3426,
    5999,
    2404,
    2141,
    260,
    28899,
    284,
    1122,
    13197,
    1699,
    357,
    288,
    260,
    5432,
    28,
    3551,
    480,
    2652,
    761,
    20890,
    357,
    30,
    1963,
    3163,
    253,
    1165,
    9741,
    6612,
    1355,
    253,
    1420,
    30,
    378,
    4166,
    617,
    19529,
    32900,
    4891,
    253,
    10091,
    3985,
    284,
    3413,
    1991,
    22439,
    335,
    260,
    4051,
    856,
    7698,
    253,
    9191,
    338,
    761,
    8976,
    981,
    253,
    5670,
    28,
    800,
    929,
    3156,
    28,
    1869,
    429,
    750,
    1666,
    30,
    11110,
    1916,
    6090,
    638,
    3112,
    260,
    25077,
    2120,
    260,
    12322,
    436,
    14004,
    284,
    983,
    338,
    260,
    4626,
    736,
    3631,
    6757,
    347,
    1083,
    913,
    1127,
    3772,
    929,
    30,
    18378,
    3472,
    5433,
    1296,
    3860,
    42,
    253,
    9376,
    12169,
    28,
    253,
    1796,
    2156,
    28,
    355,
    4138,
    260,
    1573,
    2342,
    288,
    2061,
    2118,
    30,
)
"""English prose in SmolLM2's tokens; other engines need only a vocabulary of as many."""

GREEDY = Sampling(temperature=0.0, ignore_eos=True)
MODES = {
    "greedy": GREEDY,
    "seeded top-p": Sampling(temperature=1.0, top_p=0.9, seed=11, ignore_eos=True),
    "top-k and min-p": Sampling(temperature=0.8, top_k=40, min_p=0.02, seed=12, ignore_eos=True),
    "penalties": Sampling(
        temperature=0.0,
        presence_penalty=0.6,
        frequency_penalty=0.4,
        repetition_penalty=1.2,
        ignore_eos=True,
    ),
    "seeded with penalties": Sampling(
        temperature=1.0, seed=13, presence_penalty=0.5, repetition_penalty=1.1, ignore_eos=True
    ),
    "min tokens": Sampling(temperature=1.0, seed=14, min_tokens=30),
}


class Pair(NamedTuple):
    source: Engine
    target: Engine


class Hop(NamedTuple):
    """A generation that changes engines: its key on the source and on the target, its spec."""

    key: str
    copy: str
    spec: GenerationSpec


def prompt(length: int, start: int = 0) -> tuple[int, ...]:
    """A piece of the text, so that a language model does not run into a loop at once."""
    return tuple(TEXT[(start * 23 + index) % len(TEXT)] for index in range(length))


def spec(
    length: int, budget: int, sampling: Sampling = GREEDY, *, start: int = 0, salt: str = ""
) -> GenerationSpec:
    return GenerationSpec(f"s{start}", prompt(length, start), sampling, budget, salt)


class Transcript:
    """The outputs of every key that was seen, and the steps."""

    def __init__(self) -> None:
        self.outputs: dict[str, list[int]] = {}
        self.finish: dict[str, str] = {}
        self.steps: list[StepResult] = []

    def take(self, result: StepResult) -> None:
        self.steps.append(result)
        assert not result.preempted
        for token in result.tokens:
            assert token.key not in self.finish, "a token after the end"
            self.outputs.setdefault(token.key, []).append(token.token_id)
            if token.finish is not None:
                self.finish[token.key] = token.finish

    def run(self, engine: Engine, steps: int | None = None) -> None:
        """Step as long as there is work, or so many times."""
        while steps is None or steps > 0:
            if not engine.runnable():
                assert steps is None, "no work left"
                return
            self.take(engine.step())
            steps = None if steps is None else steps - 1

    def run_until(self, engine: Engine, key: str, outputs: int) -> None:
        while len(self.outputs.get(key, ())) < outputs:
            self.run(engine, 1)


def prefill_all(engine: Engine, transcript: Transcript, keys: Iterable[str]) -> None:
    """Step until all decode; who is early is held, so that all have one output and the same company after."""
    waiting = set(keys)
    while waiting:
        transcript.run(engine, 1)
        for key in sorted(waiting):
            if engine.decoding(key):
                engine.hold(key)
                waiting.discard(key)
    for key in keys:
        engine.unhold(key)


def copy_blocks(
    pair: Pair, hops: Sequence[Hop], order: Sequence[int] | None = None, blocks: int | None = None
) -> None:
    """Copy what is computed from each held source into its reservation, or the first so many blocks of it."""
    buffer = memoryview(bytearray(pair.source.info.block_bytes))
    for hop in hops:
        used = -(-pair.source.computed(hop.key) // pair.source.info.block_tokens)
        used = used if blocks is None else min(used, blocks)
        ours, theirs = pair.source.block_table(hop.key), pair.target.block_table(hop.copy)
        for index in range(used):
            pair.source.read_block(ours[index], buffer)
            pair.target.write_block(theirs[order[index] if order else index], buffer)


def move(pair: Pair, hops: Sequence[Hop], transcript: Transcript) -> None:
    """Hold, reserve, copy, activate: the copies enter the target's next step."""
    for hop in hops:
        pair.source.hold(hop.key)
        outputs = transcript.outputs[hop.key]
        assert pair.source.computed(hop.key) == len(hop.spec.prompt) + len(outputs) - 1
        pair.target.reserve(hop.copy, hop.spec)
    copy_blocks(pair, hops)
    arrive(pair.target, hops, transcript)


def arrive(target: Engine, hops: Sequence[Hop], transcript: Transcript) -> None:
    target.activate([Arrival(hop.copy, tuple(transcript.outputs[hop.key])) for hop in hops])
    for hop in hops:
        transcript.outputs[hop.copy] = list(transcript.outputs[hop.key])


def fill(engine: Engine, blocks: Iterable[int], byte: int) -> None:
    data = memoryview(bytes([byte]) * engine.info.block_bytes)
    for block in blocks:
        engine.write_block(block, data)


def mark(engine: Engine, like: Sequence[GenerationSpec]) -> set[int]:
    """Fill the blocks that generations like these will get with a finite mark; return them."""
    marked: set[int] = set()
    for number, given in enumerate(like):
        engine.reserve(f"mark{number}", given)
    for number in range(len(like)):
        blocks = engine.block_table(f"mark{number}")
        fill(engine, blocks, MARK_BYTE)
        marked.update(blocks)
    for number in reversed(range(len(like))):
        engine.remove(f"mark{number}")
    return marked


def with_nan_for_marks(data: memoryview, unit: int) -> tuple[bytes, int]:
    """Replace marked units, which no token wrote, by NaN; return the bytes and how many there were.

    How a block is laid out is the engine's secret: what still carries the mark is what no token owns.
    """
    units = [bytes(data[at : at + unit]) for at in range(0, len(data), unit)]
    marked = bytes([MARK_BYTE]) * unit
    nan = bytes([NAN_BYTE]) * unit
    return b"".join(nan if one == marked else one for one in units), units.count(marked)
