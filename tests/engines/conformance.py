"""What every engine adapter must do, as claims about two engines that hand generations to each other.

A test module subclasses `EngineClaims` and gives the fixture `pair`: two engines of equal fingerprint,
idle, with room for `PLACES` generations. Engines are reused from test to test; each test must leave them
empty, which a fixture checks.

The control of a moved generation is the source itself: it is held, copied, and let go on after its copy
has run to the end. Both continue from one state with the same company, so every token must be equal.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from swapd.engines.base import Arrival
from swapd.errors import Code, SwapdError
from swapd.messages.generation import GenerationSpec, Sampling
from swapd.messages.snapshot import check_state, decode_state
from tests.engines.moving import (
    MODES,
    NAN_BYTE,
    Hop,
    Pair,
    Transcript,
    arrive,
    copy_blocks,
    fill,
    mark,
    move,
    prefill_all,
    spec,
    with_nan_for_marks,
)


class EngineClaims:
    """Subclass and provide `pair`."""

    value_bytes = 2
    """Bytes of one value in a block, the least that a token can own."""

    @pytest.fixture
    def pair(self) -> Pair:
        raise NotImplementedError("a test module gives its own pair of engines")

    @pytest.fixture(autouse=True)
    def nothing_left(self, pair: Pair) -> Iterator[None]:
        """Free blocks are at their baseline after every test, and no step has work."""
        yield
        for engine in pair:
            assert engine.free_blocks() == engine.info.usable_blocks
            assert not engine.runnable()

    # moving

    def test_moved_generations_continue_as_if_they_had_stayed(self, pair: Pair) -> None:
        """H81, H82, H89, B27: several at once, there and back, in every sampling mode."""
        transcript = Transcript()
        there = [
            Hop(f"{name}/0", f"{name}/1", spec(20 + 5 * number, 30, mode, start=number, salt="modes"))
            for number, (name, mode) in enumerate(MODES.items())
        ]
        for hop in there:
            pair.source.start(hop.key, hop.spec, ())
        prefill_all(pair.source, transcript, [hop.key for hop in there])
        transcript.run(pair.source, 5)

        move(pair, there, transcript)
        for hop in there:
            # What the source told of its state is what the target decodes on from, item by item.
            outputs = tuple(transcript.outputs[hop.key])
            assert pair.source.outputs(hop.key) == pair.target.outputs(hop.copy) == outputs
            check_state(decode_state(hop.spec, pair.source.outputs(hop.key)), hop.spec, outputs)
        transcript.run(pair.target, 1)
        # All of them are in the very first step, and it computes one position of each.
        assert transcript.steps[-1].batch == [(hop.copy, 1) for hop in there]
        transcript.run(pair.target, 7)

        back = [Hop(hop.copy, f"{hop.key}/2", hop.spec) for hop in there]
        move(Pair(pair.target, pair.source), back, transcript)
        for hop in back:
            assert pair.source.outputs(hop.copy) == tuple(transcript.outputs[hop.key])
            pair.target.remove(hop.key)
        transcript.run(pair.source)

        for hop in there:
            pair.source.unhold(hop.key)
        transcript.run(pair.source)
        for hop in there:
            moved = transcript.outputs[f"{hop.key}/2"]
            assert moved == transcript.outputs[hop.key]
            assert len(moved) == 30

    def test_what_ends_a_generation_holds_over_a_move(self, pair: Pair) -> None:
        """H17, H89: stop tokens, a minimum of tokens and the budget count what came before the move, too."""
        transcript = Transcript()
        mode = Sampling(temperature=1.0, seed=15, ignore_eos=True)
        pair.source.start("free", spec(11, 24, mode, start=16, salt="free"), ())
        transcript.run(pair.source)
        free = transcript.outputs["free"]
        # The first of its kind, and after the move: there it ends, if it may.
        at = next(index for index in range(8, 20) if free[index] not in free[:index])
        stops = msgspec.structs.replace(mode, stop_token_ids=(free[at],))
        given = {
            "stops": stops,
            "not before": msgspec.structs.replace(stops, min_tokens=at + 4),
            "budget": mode,
        }
        hops = [
            Hop(name, f"{name} moved", spec(11, 24, sampling, start=16, salt=name))
            for name, sampling in given.items()
        ]
        for hop in hops:
            pair.source.start(hop.key, hop.spec, ())
        prefill_all(pair.source, transcript, [hop.key for hop in hops])
        transcript.run(pair.source, 3)
        move(pair, hops, transcript)
        transcript.run(pair.target)
        for hop in hops:
            pair.source.unhold(hop.key)
        transcript.run(pair.source)
        for hop in hops:
            assert transcript.outputs[hop.copy] == transcript.outputs[hop.key]
            assert transcript.finish[hop.copy] == transcript.finish[hop.key]
        assert len(transcript.outputs["not before moved"]) >= at + 4
        assert len(transcript.outputs["budget moved"]) == 24
        assert transcript.finish["budget moved"] == "length"

    def test_tails_of_every_shape_move(self, pair: Pair) -> None:
        """H83: N-1 mod B in {0, 1, B-1}, N-1 below B, and a block filled by the very last step."""
        size = pair.source.info.block_tokens
        outputs = 3
        lengths = [size - outputs + 1, size - outputs + 2, 2 * size - outputs, size // 2]
        transcript = Transcript()
        hops = [
            Hop(f"t{n}", f"u{n}", spec(n, size + 4, start=number, salt="tails"))
            for number, n in enumerate(lengths)
        ]
        for hop in hops:
            pair.source.start(hop.key, hop.spec, ())
        prefill_all(pair.source, transcript, [hop.key for hop in hops])
        transcript.run(pair.source, outputs - 1)
        valid = [pair.source.computed(hop.key) % size for hop in hops]
        assert valid == [0, 1, size - 1, size // 2 + outputs - 1]
        assert pair.source.computed(hops[-1].key) < size

        move(pair, hops, transcript)
        transcript.run(pair.target)
        for hop in hops:
            pair.source.unhold(hop.key)
        transcript.run(pair.source)
        for hop in hops:
            assert transcript.outputs[hop.copy] == transcript.outputs[hop.key]

    def test_bytes_past_the_valid_length_are_never_read(self, pair: Pair) -> None:
        """H84: NaN in every byte that no token owns changes nothing."""
        size = pair.source.info.block_tokens
        given = [
            spec(size + 5, size, start=21, salt="clean"),
            spec(size // 2, size, MODES["seeded top-p"], start=22, salt="clean"),
        ]
        clean = Transcript()
        for number, one in enumerate(given):
            pair.source.start(f"clean{number}", one, ())
        prefill_all(pair.source, clean, [f"clean{number}" for number in range(len(given))])
        clean.run(pair.source)

        transcript = Transcript()
        hops = [
            Hop(
                f"n{number}", f"m{number}", GenerationSpec(one.session, one.prompt, one.sampling, size, "nan")
            )
            for number, one in enumerate(given)
        ]
        marked = mark(pair.source, given)
        for hop in hops:
            pair.source.start(hop.key, hop.spec, ())
        prefill_all(pair.source, transcript, [hop.key for hop in hops])
        assert set(pair.source.block_table("n0")) <= marked
        transcript.run(pair.source, 3)
        buffer = memoryview(bytearray(pair.source.info.block_bytes))
        for hop in hops:
            pair.source.hold(hop.key)
            pair.target.reserve(hop.copy, hop.spec)
            fill(pair.target, pair.target.block_table(hop.copy), NAN_BYTE)
            tail = pair.source.computed(hop.key) // size
            for index in range(tail + 1):
                pair.source.read_block(pair.source.block_table(hop.key)[index], buffer)
                data, replaced = with_nan_for_marks(buffer, self.value_bytes)
                assert (replaced > 0) == (index == tail)
                pair.target.write_block(pair.target.block_table(hop.copy)[index], memoryview(data))
        arrive(pair.target, hops, transcript)
        transcript.run(pair.target)
        for hop in hops:
            pair.source.remove(hop.key)
        for number, hop in enumerate(hops):
            assert transcript.outputs[hop.copy] == clean.outputs[f"clean{number}"]

    @pytest.mark.parametrize("fault", ["swapped", "flipped", "stale"])
    def test_wrong_bytes_change_the_output(self, pair: Pair, fault: str) -> None:
        """The suite can fail: identity is not luck.

        Two full blocks of one session swapped would not do: a key carries its position, so attention does
        not care where in the table it stands. The tail and the first block do not hold equally many.
        """
        size = pair.source.info.block_tokens
        transcript = Transcript()
        mode = Sampling(temperature=1.0, seed=31, ignore_eos=True)
        hop = Hop("good", "bad", spec(3 * size + 2, 24, mode, start=31, salt=fault))
        pair.source.start(hop.key, hop.spec, ())
        prefill_all(pair.source, transcript, [hop.key])
        transcript.run(pair.source, 2)
        pair.source.hold(hop.key)
        pair.target.reserve(hop.copy, hop.spec)
        copy_blocks(pair, [hop], [3, 1, 2, 0] if fault == "swapped" else None)
        table = pair.target.block_table(hop.copy)
        if fault == "flipped":
            buffer = memoryview(bytearray(pair.source.info.block_bytes))
            pair.source.read_block(pair.source.block_table(hop.key)[1], buffer)
            pair.target.write_block(table[1], memoryview(bytes(byte ^ 0x40 for byte in buffer)))
        elif fault == "stale":
            buffer = memoryview(bytearray(pair.source.info.block_bytes))
            pair.source.read_block(pair.source.block_table(hop.key)[0], buffer)
            pair.target.write_block(table[2], buffer)
        arrive(pair.target, [hop], transcript)
        transcript.run(pair.target)
        pair.source.unhold(hop.key)
        transcript.run(pair.source)
        assert transcript.outputs[hop.copy] != transcript.outputs[hop.key]

    # steps

    def test_arrivals_enter_the_next_step_before_a_running_prefill(self, pair: Pair) -> None:
        """H80: a long prompt on the target does not make an arriving client wait for it."""
        transcript = Transcript()
        hops = [Hop(f"a{n}", f"b{n}", spec(12 + n, 12, start=40 + n, salt="arrive")) for n in range(2)]
        for hop in hops:
            pair.source.start(hop.key, hop.spec, ())
        prefill_all(pair.source, transcript, [hop.key for hop in hops])
        long = spec(300, 4, start=43, salt="long")
        pair.target.start("long", long, ())
        pair.target.start("queued", spec(30, 4, start=44, salt="long"), ())
        transcript.take(pair.target.step())
        assert 0 < pair.target.computed("long") < 300

        move(pair, hops, transcript)
        transcript.take(pair.target.step())
        arrived = {(hop.copy, 1) for hop in hops}
        assert set(transcript.steps[-1].batch) >= arrived
        transcript.take(pair.target.step())
        assert set(transcript.steps[-1].batch) >= arrived
        assert "long" in dict(transcript.steps[-1].batch), "the prompt goes on where it was"
        for key in ("long", "queued", *(hop.copy for hop in hops)):
            pair.target.remove(key)
        for hop in hops:
            pair.source.remove(hop.key)

    def test_a_running_prefill_does_not_starve_a_generation_let_go_beside_it(self, pair: Pair) -> None:
        engine, transcript = pair.source, Transcript()
        engine.start("short", spec(8, 30, start=47, salt="starve"), ())
        prefill_all(engine, transcript, ["short"])
        engine.hold("short")
        engine.start("long", spec(300, 4, start=48, salt="starve"), ())
        transcript.run(engine, 1)
        engine.unhold("short")
        transcript.run(engine, 1)
        batch = dict(transcript.steps[-1].batch)
        assert batch["short"] == 1
        assert batch["long"] > 1
        engine.remove("short")
        engine.remove("long")

    def test_without_prefill_no_step_computes_a_chunk(self, pair: Pair) -> None:
        """Quiesce: running and queued prompts stand still, decoding goes on, and all resume in order."""
        engine, transcript = pair.source, Transcript()
        engine.start("decoding", spec(6, 30, start=50, salt="gate"), ())
        prefill_all(engine, transcript, ["decoding"])
        engine.start("first", spec(300, 3, start=51, salt="gate"), ())
        transcript.take(engine.step())
        engine.start("second", spec(20, 3, start=52, salt="gate"), ())
        reached = engine.computed("first")
        assert 0 < reached < 300

        engine.set_prefill(False)
        for _ in range(3):
            transcript.take(engine.step())
            assert list(transcript.steps[-1].batch) == [("decoding", 1)]
        engine.hold("decoding")
        assert not engine.runnable()
        assert engine.computed("first") == reached
        assert engine.computed("second") == 0

        engine.set_prefill(True)
        assert engine.runnable()
        transcript.run(engine, 1)
        assert engine.computed("first") > reached, "the first prompt kept its place"
        transcript.run(engine)
        assert transcript.finish == {"first": "length", "second": "length"}
        engine.remove("decoding")

    def test_a_held_generation_stands_still_and_continues_identically(self, pair: Pair) -> None:
        engine, transcript = pair.source, Transcript()
        given = [spec(10 + n, 16, MODES["seeded top-p"], start=60 + n, salt="held") for n in range(2)]
        again = [spec(10 + n, 16, MODES["seeded top-p"], start=60 + n, salt="again") for n in range(2)]
        for name, specs in (("calm", given), ("held", again)):
            keys = [f"{name}{number}" for number in range(2)]
            for key, one in zip(keys, specs, strict=True):
                engine.start(key, one, ())
            prefill_all(engine, transcript, keys)
            if name == "held":
                transcript.run(engine, 4)
                computed = [engine.computed(key) for key in keys]
                for key in keys:
                    engine.hold(key)
                    engine.hold(key)  # idempotent
                assert not engine.runnable()
                assert [engine.computed(key) for key in keys] == computed
                for key in keys:
                    engine.unhold(key)
                    engine.unhold(key)
                transcript.run(engine, 1)
                assert sorted(transcript.steps[-1].batch) == [(key, 1) for key in keys]
            transcript.run(engine)
        assert transcript.outputs["held0"] == transcript.outputs["calm0"]
        assert transcript.outputs["held1"] == transcript.outputs["calm1"]

    def test_an_arrival_may_be_held_before_its_first_step(self, pair: Pair) -> None:
        transcript = Transcript()
        hop = Hop("p", "q", spec(9, 8, start=65, salt="early"))
        pair.source.start(hop.key, hop.spec, ())
        prefill_all(pair.source, transcript, [hop.key])
        move(pair, [hop], transcript)
        assert pair.target.decoding(hop.copy)
        pair.target.hold(hop.copy)
        assert not pair.target.runnable()
        pair.target.unhold(hop.copy)
        transcript.run(pair.target)
        pair.source.unhold(hop.key)
        transcript.run(pair.source)
        assert transcript.outputs[hop.copy] == transcript.outputs[hop.key]

    # ends

    def test_removal_frees_a_generation_in_every_phase(self, pair: Pair) -> None:
        """vLLM #46283: whatever a generation is doing, its blocks come back."""
        engine, transcript = pair.source, Transcript()
        for key in ("decoding", "held", "prefilling", "queued"):
            length = 300 if key == "prefilling" else 8
            engine.start(key, spec(length, 8, start=len(key), salt="phases"), ())
            if key in ("decoding", "held"):
                transcript.run_until(engine, key, 1)
            if key == "held":
                engine.hold(key)
        engine.reserve("reserved", spec(40, 8, start=70, salt="phases"))
        engine.reserve("arrived", spec(8, 8, start=71, salt="phases"))
        engine.activate([Arrival("arrived", (5,))])
        for key in ("decoding", "held", "prefilling", "queued", "reserved", "arrived", "unknown"):
            engine.remove(key)
            engine.remove(key)
        assert engine.free_blocks() == engine.info.usable_blocks

    def test_a_key_can_be_used_again_at_once(self, pair: Pair) -> None:
        engine, transcript = pair.source, Transcript()
        given = spec(8, 6, start=75, salt="key")
        engine.start("same", given, ())
        transcript.run_until(engine, "same", 2)
        engine.remove("same")
        engine.start("same", given, ())
        transcript.outputs.clear()
        transcript.run(engine)
        assert len(transcript.outputs["same"]) == 6

    def test_a_reservation_that_does_not_fit_is_refused(self, pair: Pair) -> None:
        """What was refused leaves nothing behind."""
        engine = pair.source
        whole = engine.info.max_model_len
        per = -(-whole // engine.info.block_tokens)
        fit = min(engine.info.usable_blocks // per, engine.info.max_num_seqs)
        for number in range(fit):
            engine.reserve(f"r{number}", spec(whole - 8, 8, start=number))
        with pytest.raises(SwapdError) as refused:
            engine.reserve("over", spec(whole - 8, 8))
        assert refused.value.code == Code.TARGET_FULL
        for number in range(fit):
            engine.remove(f"r{number}")

    def test_a_reservation_counts_the_budgets_of_those_before_it(self, pair: Pair) -> None:
        """H41: what running generations may still grow into is not given away, so nothing is preempted."""
        engine = pair.source
        whole = engine.info.max_model_len
        fit = engine.info.usable_blocks // -(-whole // engine.info.block_tokens)
        for number in range(fit):
            engine.start(f"grows{number}", spec(4, whole - 4, start=number, salt="grows"), ())
        with pytest.raises(SwapdError) as refused:
            engine.reserve("over", spec(4, whole - 4))
        assert refused.value.code == Code.TARGET_FULL
        for number in range(fit):
            engine.remove(f"grows{number}")

    # replay

    def test_a_replay_that_has_given_no_token_says_what_it_has_cost(self, pair: Pair) -> None:
        """H209: whoever drops it before its first token can tell; after that the step has told."""
        engine = pair.target
        given = spec(400, 12, start=80, salt="unfinished")
        pair.source.start("whole", given, ())
        transcript = Transcript()
        transcript.run(pair.source)
        before = engine.recomputed()
        engine.start("again", given, transcript.outputs["whole"][:5])
        assert engine.recomputed_for("again") == 0
        engine.step()
        assert 0 < engine.recomputed_for("again") == engine.recomputed() - before < 404
        while not engine.step().rebuilt:
            assert engine.recomputed_for("again") == engine.recomputed() - before
        assert engine.recomputed_for("again") == 0
        engine.remove("again")
        assert engine.recomputed_for("again") == 0

    def test_replay_counts_what_it_computes_again(self, pair: Pair) -> None:
        """H73: on an engine that never saw the session all positions below N-1 are recomputed."""
        transcript = Transcript()
        given = spec(50, 12, MODES["seeded top-p"], start=80, salt="replay")
        pair.source.start("whole", given, ())
        transcript.run(pair.source)
        first = transcript.outputs["whole"][:5]
        before = pair.target.recomputed()
        pair.target.start("again", given, first)
        transcript.run(pair.target)
        below = len(given.prompt) + len(first) - 1
        assert pair.target.recomputed() - before == below
        assert [one for step in transcript.steps for one in step.rebuilt] == [("again", below)]
        assert len(transcript.outputs["again"]) == 12 - len(first)
        assert transcript.finish["again"] == "length"

    def test_a_generation_is_rebuilt_from_the_blocks_that_came(self, pair: Pair) -> None:
        """B24, H209: what came is used as it is, only the rest is computed; each says how much.

        The control is a replay on the source, whose prefix cache has exactly those blocks, if it has one: so
        both compute the same chunks.
        """
        size = pair.source.info.block_tokens
        transcript, hops = Transcript(), []
        for number, name in enumerate(("greedy", "seeded with penalties")):
            given = spec(5 * size + 3 + number, 40, MODES[name], start=100 + number, salt="salvage")
            hops.append(Hop(f"whole{number}", f"rest{number}", given))
        for hop in hops:
            pair.source.start(hop.key, hop.spec, ())
        prefill_all(pair.source, transcript, [hop.key for hop in hops])
        transcript.run(pair.source)

        accepted = {hop: transcript.outputs[hop.key][:10] for hop in hops}
        below = {hop: len(hop.spec.prompt) + 10 - 1 for hop in hops}
        before = pair.source.recomputed()
        for hop in hops:
            pair.source.start(f"{hop.key} again", hop.spec, accepted[hop])
        control = Transcript()
        control.run(pair.source)
        cached = pair.source.recomputed() - before < sum(below.values())

        for hop in hops:
            pair.source.start(hop.key, hop.spec, accepted[hop])
        prefill_all(pair.source, Transcript(), [hop.key for hop in hops])
        before = pair.target.recomputed()
        for hop in hops:
            pair.target.reserve(hop.copy, hop.spec)
            fill(pair.target, pair.target.block_table(hop.copy), NAN_BYTE)
            copy_blocks(pair, [hop], blocks=below[hop] // size)
        pair.target.activate([Arrival(hop.copy, accepted[hop], below[hop] // size * size) for hop in hops])
        assert not any(pair.target.decoding(hop.copy) for hop in hops)
        transcript.run(pair.target)
        for hop in hops:
            pair.source.remove(hop.key)
            assert transcript.outputs[hop.copy] == control.outputs[f"{hop.key} again"]
            assert cached or transcript.outputs[hop.copy] == transcript.outputs[hop.key][10:]
        rest = {hop.copy: below[hop] % size for hop in hops}
        assert pair.target.recomputed() - before == sum(rest.values())
        told = [one for step in transcript.steps for one in step.rebuilt]
        assert sorted(told) == sorted(rest.items())

    def test_one_that_lacks_blocks_waits_like_a_prompt(self, pair: Pair) -> None:
        """B24: it makes nobody's step longer who is let in beside it, and stands still while prefill does."""
        size = pair.target.info.block_tokens
        transcript = Transcript()
        hop = Hop("fit", "moved", spec(12, 8, start=105, salt="beside"))
        pair.source.start(hop.key, hop.spec, ())
        prefill_all(pair.source, transcript, [hop.key])
        lacking = spec(4 * size, 8, start=106, salt="lacks")
        pair.target.reserve("lacks", lacking)
        fill(pair.target, pair.target.block_table("lacks"), 0)
        pair.target.set_prefill(False)
        pair.target.activate([Arrival("lacks", (7,), size)])
        assert not pair.target.runnable()
        pair.target.set_prefill(True)
        move(pair, [hop], transcript)
        transcript.run(pair.target, 1)
        assert list(transcript.steps[-1].batch) == [(hop.copy, 1)]
        assert pair.target.computed("lacks") == size
        pair.target.set_prefill(False)
        transcript.run(pair.target, 1)
        assert list(transcript.steps[-1].batch) == [(hop.copy, 1)]
        pair.target.set_prefill(True)
        transcript.run(pair.target, 1)
        assert dict(transcript.steps[-1].batch)[hop.copy] == 1
        assert pair.target.computed("lacks") > size
        pair.target.remove("lacks")
        pair.target.remove(hop.copy)
        pair.source.remove(hop.key)
        pair.target.reserve("waits", lacking)
        pair.target.activate([Arrival("waits", (7,), size)])
        pair.target.remove("waits")

    def test_a_new_prompt_is_not_counted_as_replay(self, pair: Pair) -> None:
        """H74."""
        transcript, before = Transcript(), pair.source.recomputed()
        pair.source.start("new", spec(20, 2, start=85, salt="new"), ())
        transcript.run(pair.source)
        assert pair.source.recomputed() == before
