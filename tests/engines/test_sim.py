"""The sim engine: every byte of every block decides the output, and nothing else does."""

import random

import pytest

from swapd.config import SimConfig
from swapd.engines.base import Arrival, Engine
from swapd.engines.sim import STEP_TOKENS, SimEngine, open_sim
from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import Finish
from swapd.messages.generation import GenerationSpec, Sampling
from tests.engines.conformance import EngineClaims, Pair

CONFIG = SimConfig(step_ms=0, block_tokens=4, block_bytes=64, blocks=64, max_num_seqs=16)
GREEDY = Sampling(temperature=0.0, ignore_eos=True)
SEEDED = Sampling(temperature=0.8, top_p=0.9, seed=7, ignore_eos=True)


def spec(
    prompt: tuple[int, ...] = (5, 6, 7), budget: int = 40, sampling: Sampling = GREEDY
) -> GenerationSpec:
    return GenerationSpec(session="s", prompt=prompt, sampling=sampling, max_new_tokens=budget)


def run(engine: SimEngine, key: str, count: int | None = None) -> tuple[list[int], Finish | None]:
    """Step until `key` has `count` more tokens or finishes."""
    out: list[int] = []
    while count is None or len(out) < count:
        for token in engine.step().tokens:
            if token.key == key:
                out.append(token.token_id)
                if token.finish is not None:
                    return out, token.finish
    return out, None


def whole(config: SimConfig = CONFIG, **kwargs: object) -> list[int]:
    engine = open_sim(config)
    engine.start("k", spec(**kwargs), ())  # type: ignore[arg-type]  # the test's own keywords
    return run(engine, "k")[0]


def move(source: SimEngine, target: SimEngine, outputs: list[int], given: GenerationSpec) -> None:
    """Copy a held generation `k` into `target` as key `m` and enter its next step."""
    target.reserve("m", given)
    computed = source.computed("k")
    assert computed == len(given.prompt) + len(outputs) - 1
    buffer = memoryview(bytearray(CONFIG.block_bytes))
    for index in range(-(-computed // CONFIG.block_tokens)):
        source.read_block(source.block_table("k")[index], buffer)
        target.write_block(target.block_table("m")[index], buffer)
    target.activate([Arrival("m", outputs)])


class TestClaims(EngineClaims):
    @pytest.fixture
    def pair(self) -> Pair:
        config = SimConfig(step_ms=0, block_tokens=32, block_bytes=4096, blocks=300, max_num_seqs=16)
        return Pair(open_sim(config), open_sim(config))


def test_it_is_an_engine() -> None:
    engine: Engine = open_sim(CONFIG)
    assert engine.info.engine == "sim"


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED])
def test_output_depends_on_prompt_and_parameters_only_and_not_on_the_batch(sampling: Sampling) -> None:
    alone = whole(sampling=sampling)
    engine = open_sim(CONFIG)
    engine.start("other", spec((9, 9), 30, SEEDED), ())
    engine.step()
    engine.start("k", spec(sampling=sampling), ())
    assert run(engine, "k")[0] == alone
    assert len(set(alone)) > len(alone) // 2


def test_greedy_ignores_the_seed_and_sampling_does_not() -> None:
    assert whole(sampling=GREEDY) == whole(sampling=Sampling(temperature=0.0, seed=99, ignore_eos=True))
    other = Sampling(temperature=0.8, top_p=0.9, seed=8, ignore_eos=True)
    assert whole(sampling=SEEDED) != whole(sampling=other)


@pytest.mark.parametrize("at", range(1, 13))
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED])
def test_a_moved_generation_goes_on_identically_at_every_tail_position(at: int, sampling: Sampling) -> None:
    """H83: N - 1 mod B over all classes, and N - 1 < B."""
    given = spec(sampling=sampling)
    source, target = open_sim(CONFIG), open_sim(CONFIG)
    for block in range(CONFIG.blocks):
        target._block(block)[:] = random.Random(block).randbytes(CONFIG.block_bytes)
    source.start("k", given, ())
    outputs, _ = run(source, "k", at)
    source.hold("k")
    assert not source.runnable()
    move(source, target, outputs, given)
    rest, finish = run(target, "m")
    assert outputs + rest == whole(sampling=sampling)
    assert finish == "length"
    assert target.recomputed() == 0
    source.unhold("k")
    assert run(source, "k")[0] == rest
    assert source.free_blocks() == target.free_blocks() == CONFIG.blocks


@pytest.mark.parametrize("fault", ["flip", "swap", "stale"])
def test_a_damaged_block_changes_the_output(fault: str) -> None:
    given = spec()
    source, target = open_sim(CONFIG), open_sim(CONFIG)
    source.start("k", given, ())
    outputs, _ = run(source, "k", 11)
    target.reserve("m", given)
    buffer = memoryview(bytearray(CONFIG.block_bytes))
    table = list(range(4))
    if fault == "swap":
        table[0], table[1] = 1, 0
    if fault == "stale":
        table[2] = 1
    for index in range(4):
        source.read_block(source.block_table("k")[table[index]], buffer)
        if fault == "flip" and index == 0:
            buffer[17] ^= 1
        target.write_block(target.block_table("m")[index], buffer)
    target.activate([Arrival("m", outputs)])
    assert outputs + run(target, "m")[0] != whole()


def test_a_block_damaged_while_decoding_shows_when_the_next_block_fills() -> None:
    engine = open_sim(CONFIG)
    engine.start("k", spec(), ())
    begun, _ = run(engine, "k", 10)
    engine._block(engine.block_table("k")[0])[3] ^= 1
    assert begun + run(engine, "k")[0] != whole()


def test_replay_rebuilds_by_prefill_and_counts_it() -> None:
    reference = whole()
    engine = open_sim(CONFIG)
    engine.start("k", spec(), reference[:10])
    assert run(engine, "k")[0] == reference[10:]
    assert engine.recomputed() == 12


def test_prefill_runs_in_chunks_and_stops_while_it_is_set_aside() -> None:
    config = SimConfig(step_ms=0, block_tokens=16, block_bytes=64, blocks=64)
    engine = open_sim(config)
    engine.start("k", spec(tuple(range(1, 151)), 10), ())
    assert engine.step().batch == [("k", STEP_TOKENS)]
    engine.set_prefill(False)
    assert not engine.runnable()
    assert engine.step().batch == []
    engine.set_prefill(True)
    assert engine.step().batch == [("k", STEP_TOKENS)]
    assert not engine.decoding("k")
    assert engine.step().batch == [("k", 150 - 2 * STEP_TOKENS)]
    assert engine.decoding("k")
    assert engine.computed("k") == 150


def test_eos_stop_tokens_and_min_tokens() -> None:
    reference = whole(budget=60)
    stop = reference[5]
    plain = Sampling(temperature=0.0, ignore_eos=True, stop_token_ids=(stop,))
    assert whole(budget=60, sampling=plain) == reference[: reference.index(stop) + 1]
    late = Sampling(temperature=0.0, ignore_eos=True, stop_token_ids=(stop,), min_tokens=20)
    assert len(whole(budget=60, sampling=late)) >= 20
    ends = set()
    small = SimConfig(step_ms=0, block_tokens=4, block_bytes=64, blocks=400)
    for first in range(1, 6):
        engine = open_sim(small)
        engine.start("k", spec((first,), 1200, Sampling(temperature=0.0)), ())
        out, finish = run(engine, "k")
        ends.add(finish)
        assert (finish == "eos") == (out[-1] == 0)
    assert "eos" in ends


def test_a_full_engine_refuses_and_remove_gives_everything_back() -> None:
    engine = open_sim(CONFIG)
    engine.start("a", spec(budget=125), ())
    engine.reserve("b", spec(budget=125))
    with pytest.raises(SwapdError) as refused:
        engine.reserve("c", spec())
    assert refused.value.code is Code.TARGET_FULL
    with pytest.raises(SwapdError) as refused:
        engine.start("c", spec(), ())
    assert refused.value.code is Code.CAPACITY
    for key in ("a", "b", "b", "unknown"):
        engine.remove(key)
    assert engine.free_blocks() == CONFIG.blocks
    assert len(engine._free) == CONFIG.blocks


def test_only_reserved_blocks_may_be_written() -> None:
    engine = open_sim(CONFIG)
    engine.reserve("m", spec())
    block = engine.block_table("m")[0]
    data = memoryview(bytes(CONFIG.block_bytes))
    engine.write_block(block, data)
    engine.remove("m")
    with pytest.raises(SwapdError):
        engine.write_block(block, data)


def test_a_configuration_that_cannot_work_is_refused() -> None:
    with pytest.raises(SwapdError) as refused:
        open_sim(SimConfig(block_tokens=16, block_bytes=8))
    assert refused.value.code is Code.CONFIG_INVALID
