"""The vLLM adapter against real engines: the claims of every engine, and those only vLLM can break.

Two engines in two processes, one core each, are started once per session of tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from swapd.config import ModelConfig
from swapd.errors import Code, SwapdError
from swapd.messages.generation import GenerationSpec, Sampling
from swapd.models.smollm2 import ensure_checkpoint
from tests.engines.conformance import EngineClaims
from tests.engines.moving import (
    GREEDY,
    MODES,
    PLACES,
    Hop,
    Pair,
    Transcript,
    move,
    prefill_all,
    spec,
)
from tests.engines.remote import RemoteEngine

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
BLOCKS = 200
BLOCK_BYTES = 737_280


def checkpoint() -> str:
    folder = os.environ.get("SWAPD_TEST_MODEL")
    return folder or str(ensure_checkpoint(report=lambda line: None))


def model_config(**changes: object) -> ModelConfig:
    given: dict[str, object] = {
        "alias": "smollm2",
        "path": checkpoint(),
        "max_model_len": 1280,
        "kv_cache_bytes": BLOCKS * BLOCK_BYTES,
        "max_num_seqs": PLACES,
        "max_num_batched_tokens": 128,
    }
    return ModelConfig(**{**given, **changes})  # type: ignore[arg-type]  # the test's own keywords


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RemoteEngine, RemoteEngine]]:
    folder: Path = tmp_path_factory.mktemp("engines")
    cores = sorted(os.sched_getaffinity(0))
    started = [
        RemoteEngine(model_config(), [cores[number % len(cores)]], folder / f"engine{number}.log")
        for number in range(2)
    ]
    try:
        for engine in started:
            engine.wait_ready()
        # A process that is killed later cannot remove it.
        assert not list(folder.glob("vllm_dist_*"))
        yield started[0], started[1]
    finally:
        for engine in started:
            engine.ask_to_close()
        written = [engine.close() for engine in started]
    # H101: nothing of vLLM's gets onto the stdout that carries the ready line.
    assert written == [b"", b""]


@pytest.fixture
def source(engines: tuple[RemoteEngine, RemoteEngine]) -> RemoteEngine:
    return engines[0]


class TestClaims(EngineClaims):
    @pytest.fixture
    def pair(self, engines: tuple[RemoteEngine, RemoteEngine]) -> Iterator[Pair]:
        yield Pair(*engines)
        left = [engine.leftovers() for engine in engines]
        for engine in engines:
            engine.clear()
        assert not any(map(any, left))


def test_two_engines_of_equal_settings_have_one_fingerprint(
    engines: tuple[RemoteEngine, RemoteEngine],
) -> None:
    """H108: they run on different cores in different processes."""
    assert engines[0].info == engines[1].info
    assert engines[0].info.usable_blocks == BLOCKS - 1
    assert engines[0].info.block_bytes == BLOCK_BYTES


def test_a_long_generation_moves(engines: tuple[RemoteEngine, RemoteEngine]) -> None:
    """H75, H81: a thousand tokens of context, nothing recomputed."""
    pair, transcript = Pair(*engines), Transcript()
    before = [engine.recomputed() for engine in pair]
    hop = Hop("far", "near", spec(1000, 40, MODES["seeded with penalties"], start=90, salt="long"))
    pair.source.start(hop.key, hop.spec, ())
    transcript.run_until(pair.source, hop.key, 9)
    move(pair, [hop], transcript)
    transcript.run(pair.target)
    pair.source.unhold(hop.key)
    transcript.run(pair.source)
    assert transcript.outputs[hop.copy] == transcript.outputs[hop.key]
    assert [engine.recomputed() for engine in pair] == before


def test_a_warm_replay_computes_only_what_the_prefix_cache_lacks(source: RemoteEngine) -> None:
    """H73, and noise by position: the continuation draws what the first run drew."""
    transcript, size = Transcript(), source.info.block_tokens
    counting = tuple(range(100, 120)) * 4
    given = GenerationSpec("s", counting, Sampling(temperature=0.2, seed=3, ignore_eos=True), 16, "warm")
    source.start("first", given, ())
    transcript.run(source)
    outputs = transcript.outputs["first"]
    before = source.recomputed()
    source.start("cold", GenerationSpec("s", counting, given.sampling, 16, "cold"), outputs[:6])
    transcript.run(source)
    assert source.recomputed() - before == len(counting) + 6 - 1
    before, steps = source.recomputed(), len(transcript.steps)
    source.start("warm", given, outputs[:6])
    transcript.run(source)
    below = len(counting) + 6 - 1
    assert source.recomputed() - before == below - below // size * size
    told = [one for step in transcript.steps[steps:] for one in step.rebuilt]
    assert told == [("warm", below % size)]
    assert transcript.outputs["warm"] == outputs[6:]


def test_a_namespace_does_not_hit_anothers_prefix_cache(source: RemoteEngine) -> None:
    transcript = Transcript()
    for salt in ("tenant a", "tenant b"):
        given = spec(70, 4, start=91, salt=salt)
        before = source.recomputed()
        source.start(salt, given, (50, 51))
        transcript.run(source)
        assert source.recomputed() - before == 71


def test_a_split_prompt_draws_the_same_noise_as_a_whole_one(source: RemoteEngine) -> None:
    """The CPU's generator knows no offset; a seeded prompt in chunks once ended the engine."""
    transcript = Transcript()
    mode = Sampling(temperature=0.01, seed=8, ignore_eos=True)
    source.start("alone", spec(200, 3, mode, start=92, salt="one"), ())
    source.start("greedy", spec(30, 3, GREEDY, start=93, salt="one"), ())
    transcript.run(source)
    source.start("greedy again", spec(30, 3, GREEDY, start=93, salt="two"), ())
    source.start("again", spec(200, 3, mode, start=92, salt="two"), ())
    transcript.run(source)
    assert transcript.outputs["again"] == transcript.outputs["alone"]
    assert transcript.outputs["greedy again"] == transcript.outputs["greedy"]


def test_prefill_stands_aside_for_one_step_when_generations_arrive(
    engines: tuple[RemoteEngine, RemoteEngine],
) -> None:
    """H80: the token budget of the step belongs to the arrivals."""
    pair, transcript = Pair(*engines), Transcript()
    hop = Hop("a", "b", spec(12, 12, start=45, salt="aside"))
    pair.source.start(hop.key, hop.spec, ())
    prefill_all(pair.source, transcript, [hop.key])
    pair.target.start("long", spec(300, 4, start=46, salt="aside"), ())
    transcript.run(pair.target, 1)
    move(pair, [hop], transcript)
    transcript.run(pair.target, 1)
    assert list(transcript.steps[-1].batch) == [(hop.copy, 1)]
    pair.source.remove(hop.key)
    transcript.run(pair.target)


def test_a_reservation_takes_a_place(source: RemoteEngine) -> None:
    """H41: the engine refuses what it could not let into a step."""
    for number in range(PLACES):
        source.reserve(f"r{number}", spec(4, 4, start=number))
    with pytest.raises(SwapdError) as refused:
        source.reserve("over", spec(4, 4))
    assert refused.value.code == Code.TARGET_FULL
    for number in range(PLACES):
        source.remove(f"r{number}")
    assert not any(source.leftovers())


def test_full_places_do_not_make_the_engine_spin(source: RemoteEngine) -> None:
    """Held generations keep their place, so one more waits, and waiting is not work."""
    transcript = Transcript()
    keys = [f"full{number}" for number in range(PLACES)]
    for number, key in enumerate(keys):
        source.start(key, spec(4, 6, start=number, salt="full"), ())
    prefill_all(source, transcript, keys)
    for key in keys:
        source.hold(key)
    source.start("late", spec(4, 6, start=94, salt="full"), ())
    if source.runnable():
        assert not source.step().batch
    assert not source.runnable()
    source.remove(keys[0])
    transcript.run(source)
    assert transcript.finish == {"late": "length"}
    for key in keys[1:]:
        source.unhold(key)
    transcript.run(source)
    assert set(transcript.finish.values()) == {"length"}


def ends(
    source: RemoteEngine, prompt: tuple[int, ...], budget: int, **sampling: object
) -> tuple[list[int], str]:
    transcript = Transcript()
    mode = Sampling(**{"temperature": 0.0, **sampling})  # type: ignore[arg-type]  # the test's own keywords
    source.start("end", GenerationSpec("s", prompt, mode, budget), ())
    transcript.run(source)
    return transcript.outputs["end"], transcript.finish["end"]


def chat(text: str) -> tuple[int, ...]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(checkpoint()) / "tokenizer.json"))
    message = (
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    )
    return tuple(tokenizer.encode(message, add_special_tokens=False).ids)


def test_each_end_has_its_reason(source: RemoteEngine) -> None:
    """The last token is part of the output; min_tokens and ignore_eos put the end off."""
    asked = chat("What is the capital of France?")
    said, finish = ends(source, asked, 40)
    assert finish == "eos"
    assert said[-1] in source.info.eos_token_ids
    assert ends(source, asked, 40, stop_token_ids=(said[0],)) == (said[:1], "stop_token")
    longer, _ = ends(source, asked, len(said) + 6, min_tokens=len(said) + 3)
    assert len(longer) >= len(said) + 3
    assert not set(longer[: len(said) + 2]) & set(source.info.eos_token_ids)
    ignored, finish = ends(source, asked, len(said) + 4, ignore_eos=True)
    assert (len(ignored), finish) == (len(said) + 4, "length")
    assert ends(source, asked, 1)[1] in ("length", "eos")


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (GenerationSpec("s", (), GREEDY, 4), Code.PROMPT_EMPTY),
        (spec(4, 0), Code.BUDGET_EXCEEDED),
        (spec(1279, 2), Code.BUDGET_EXCEEDED),
        (GenerationSpec("s", (1, 49152), GREEDY, 4), Code.INVALID_REQUEST),
        (GenerationSpec("s", (-1,), GREEDY, 4), Code.INVALID_REQUEST),
        (spec(4, 4, Sampling(temperature=0.0, stop_token_ids=(49152,))), Code.INVALID_REQUEST),
        (spec(4, 4, Sampling(temperature=0.5)), Code.UNSUPPORTED_PARAMETER),
        (spec(4, 4, Sampling(temperature=0.5, seed=1, top_p=0.0)), Code.UNSUPPORTED_PARAMETER),
        (spec(4, 4, Sampling(temperature=0.5, seed=1, min_tokens=5)), Code.UNSUPPORTED_PARAMETER),
    ],
)
def test_what_would_end_a_step_is_refused_before_it(
    source: RemoteEngine, given: GenerationSpec, code: Code
) -> None:
    for refused_by in (lambda: source.start("bad", given, ()), lambda: source.reserve("bad", given)):
        with pytest.raises(SwapdError) as refused:
            refused_by()
        assert refused.value.code == code
    assert not any(source.leftovers())
    assert source.free_blocks() == source.info.usable_blocks
