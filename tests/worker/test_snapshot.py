"""What a target refuses of a snapshot: real engines, copying and staging; every field changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swapd.errors import Code, SwapdError
from swapd.messages import from_worker as out
from swapd.messages import to_worker as into
from swapd.messages.generation import GenerationSpec, Manifest, Sampling, StateEntry
from swapd.messages.snapshot import (
    SNAPSHOT_SCHEMA,
    bind,
    check_manifest,
    check_state,
    decode_state,
    seal,
    valid_tokens,
)
from swapd.worker.mailbox import Checked, Ticket
from tests.worker.test_copying import GIVEN, LEASE, FakeArena, Side, decoded, exported, reserved

REFUSED = {str(Code.MANIFEST_MISMATCH), str(Code.CHECKSUM_MISMATCH)}
ITEMS = ("transcript", "generator", "penalties", "stops", "detokeniser", "grammar")
Change = Callable[[Manifest], Manifest]


class Journey(NamedTuple):
    """A session that is copied in two parts: full blocks, then the tail with its decode state."""

    target: Side
    outputs: list[int]
    first: Manifest
    last: Manifest


def journey() -> Journey:
    arena = FakeArena()
    source, target = Side(arena), Side(arena)
    outputs = decoded(source, 11)  # 13 positions: three blocks, and one position of a fourth
    reserved(target)
    first = exported(source, 0, 3).manifest
    return Journey(target, outputs, first, exported(source, 3, 4, frozen=True).manifest)


def refusal(there: Journey, outputs: list[int] | None = None) -> str | None:
    """Take both parts in; the code of the first refusal, None when the session may enter a step."""
    target = there.target
    for _ in target.transfers.take_in(Ticket(0, 1), into.Import("m", there.first)):
        pass
    answer = target.said.pop()
    if isinstance(answer, out.Refused):
        return answer.code
    told = tuple(there.outputs if outputs is None else outputs)
    item = into.PrepareItem("m", "s", 2, there.last, told, 60)
    for _ in target.transfers.take_in_tails(Ticket(0, 1), into.Prepare("b", (item,))):
        pass
    ((checked,), *_) = target.inbox.take(0)
    assert isinstance(checked, Checked)
    ((_, result),) = checked.items
    assert result.ok is (result.code is None)
    assert (target.staging.get("m").sealed_by is not None) is result.ok
    return result.code


def other(value: Any) -> Any:
    return f"{value}x" if isinstance(value, str) else value + 1


def field(name: str) -> Change:
    return lambda manifest: msgspec.structs.replace(manifest, **{name: other(getattr(manifest, name))})


def entry(name: str) -> Change:
    def change(manifest: Manifest) -> Manifest:
        *rest, last = manifest.blocks
        wrong = msgspec.structs.replace(last, **{name: other(getattr(last, name))})
        return msgspec.structs.replace(manifest, blocks=(*rest, wrong))

    return change


def blocks(pick: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> Change:
    return lambda manifest: msgspec.structs.replace(manifest, blocks=pick(manifest.blocks))


def state(pick: Callable[[tuple[StateEntry, ...]], tuple[StateEntry, ...]]) -> Change:
    return lambda manifest: msgspec.structs.replace(manifest, state=pick(manifest.state))


def wrong_item(name: str) -> Change:
    return state(
        lambda told: tuple(
            StateEntry(each.name, other(each.digest)) if each.name == name else each for each in told
        )
    )


BINDING = ("schema", "session", "epoch", "region", "generation", "fingerprint")
CHANGES: dict[str, Change] = {
    **{name: field(name) for name in BINDING},
    **{f"block {name}": entry(name) for name in ("index", "offset", "valid", "crc")},
    "a block is missing": blocks(lambda told: told[:-1]),
    "a block of nobody": blocks(lambda told: (*told, msgspec.structs.replace(told[-1], index=9))),
}
STATES: dict[str, Change] = {
    **{f"{name} is another": wrong_item(name) for name in ITEMS},
    "no state": state(lambda told: ()),
    "one item is missing": state(lambda told: told[1:]),
    "another order": state(lambda told: told[::-1]),
    "one item more": state(lambda told: (*told, StateEntry("more", "digest"))),
}
SEALED = pytest.mark.parametrize("sealed", [False, True], ids=["as it was sealed", "sealed again"])


def test_an_honest_snapshot_is_taken_in() -> None:
    """H78, H89: schema and every item of decode state are in the manifest of the tail, and only there."""
    there = journey()
    assert there.first.schema == there.last.schema == SNAPSHOT_SCHEMA
    assert there.first.state == ()
    assert tuple(each.name for each in there.last.state) == ITEMS
    assert refusal(there) is None


@SEALED
@pytest.mark.parametrize("part", ["first", "last"])
@pytest.mark.parametrize("what", CHANGES)
def test_no_field_of_a_manifest_may_be_another(what: str, part: str, sealed: bool) -> None:
    """H78, H99: refused with a stable code before the session may enter a step, by whom it may be sealed."""
    there = journey()
    changed = CHANGES[what](getattr(there, part))
    code = refusal(there._replace(**{part: seal(changed) if sealed else changed}))
    assert code in REFUSED
    if what in BINDING:
        assert code == Code.MANIFEST_MISMATCH
    elif not sealed:
        assert code == Code.CHECKSUM_MISMATCH


def test_a_manifest_with_another_digest_is_refused() -> None:
    """H78: a bad checksum of the manifest itself, on either part."""
    there = journey()
    assert refusal(there._replace(first=field("digest")(there.first))) == Code.CHECKSUM_MISMATCH
    there = journey()
    assert refusal(there._replace(last=field("digest")(there.last))) == Code.CHECKSUM_MISMATCH


@SEALED
@pytest.mark.parametrize("what", STATES)
def test_no_item_of_decode_state_may_be_another(what: str, sealed: bool) -> None:
    """H89: each item's digest is verified by the target."""
    there = journey()
    changed = STATES[what](there.last)
    code = refusal(there._replace(last=seal(changed) if sealed else changed))
    assert code == (Code.MANIFEST_MISMATCH if sealed else Code.CHECKSUM_MISMATCH)


@pytest.mark.parametrize("at", [0, 5, 10])
def test_a_transcript_that_the_source_did_not_decode_is_refused(at: int) -> None:
    """H89: the source's digests are of what its engine decoded, not of what it was told is durable."""
    there = journey()
    outputs = list(there.outputs)
    outputs[at] += 1
    assert refusal(there, outputs) == Code.MANIFEST_MISMATCH


# Any change at all ----------------------------------------------------------------------------


def leaves(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where in a manifest, as plain lists and dicts, a number or a text stands."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(each, (*at, key))
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from leaves(each, (*at, index))
    else:
        yield at


def put(value: Any, at: tuple[Any, ...], leaf: Any) -> Any:
    head, *rest = at
    inner = put(value[head], tuple(rest), leaf) if rest else leaf
    if isinstance(value, dict):
        return {**value, head: inner}
    return [inner if index == head else each for index, each in enumerate(value)]


@given(st.data())
def test_whatever_single_value_changed_on_the_way_is_noticed(data: st.DataObject) -> None:
    """H78: any leaf of either manifest, to any other value of its kind."""
    there = journey()
    part = data.draw(st.sampled_from(["first", "last"]))
    plain = msgspec.to_builtins(getattr(there, part))
    at = data.draw(st.sampled_from(list(leaves(plain))))
    was = plain
    for key in at:
        was = was[key]
    kind = st.text(max_size=40) if isinstance(was, str) else st.integers(-(1 << 40), 1 << 40)
    leaf = data.draw(kind.filter(lambda value: value != was))
    changed = msgspec.convert(put(plain, at, leaf), Manifest)
    assert refusal(there._replace(**{part: changed})) in REFUSED


@given(st.sampled_from(BINDING), st.data())
def test_a_manifest_of_something_else_is_refused_though_it_is_whole(name: str, data: st.DataObject) -> None:
    """H78: sealed by a source that means another session, epoch, lease, engine or schema."""
    whole = bind("s", 2, LEASE, "fp", ())
    was = getattr(whole, name)
    kind = st.text(max_size=40) if isinstance(was, str) else st.integers(0, 1 << 40)
    value = data.draw(kind.filter(lambda value: value != was))
    changed = seal(msgspec.structs.replace(whole, **{name: value}))
    check_manifest(whole, session="s", epoch=2, lease=LEASE, fingerprint="fp")
    with pytest.raises(SwapdError) as refused:
        check_manifest(changed, session="s", epoch=2, lease=LEASE, fingerprint="fp")
    assert refused.value.code is Code.MANIFEST_MISMATCH
    assert name in refused.value.detail


# What each item is a function of --------------------------------------------------------------

SAMPLED = Sampling(
    temperature=0.7,
    top_p=0.9,
    top_k=40,
    min_p=0.01,
    seed=3,
    presence_penalty=0.5,
    frequency_penalty=0.25,
    repetition_penalty=1.1,
    min_tokens=2,
    stop_token_ids=(7,),
)
SPEC = GenerationSpec("s", (1, 2, 3), SAMPLED, 40)
OUTPUTS = (4, 5, 4)
TEXTUAL = {"transcript", "stops", "detokeniser"}


def changed_items(spec: GenerationSpec, outputs: tuple[int, ...] = OUTPUTS) -> set[str]:
    before, after = decode_state(SPEC, OUTPUTS), decode_state(spec, outputs)
    return {one.name for one, two in zip(before, after, strict=True) if one != two}


@pytest.mark.parametrize(
    ("change", "items"),
    [
        ({"temperature": 0.8}, {"generator"}),
        ({"top_p": 0.8}, {"generator"}),
        ({"top_k": 41}, {"generator"}),
        ({"min_p": 0.02}, {"generator"}),
        ({"seed": 4}, {"generator"}),
        ({"presence_penalty": 0.6}, {"penalties"}),
        ({"frequency_penalty": 0.6}, {"penalties"}),
        ({"repetition_penalty": 1.2}, {"penalties"}),
        ({"min_tokens": 3}, {"stops"}),
        ({"stop_token_ids": (7, 8)}, {"stops"}),
        ({"ignore_eos": True}, {"stops"}),
    ],
)
def test_every_parameter_is_in_the_item_that_it_decides(change: dict[str, Any], items: set[str]) -> None:
    """H89: a target that was told another parameter does not go on."""
    sampling = msgspec.structs.replace(SAMPLED, **change)
    assert changed_items(msgspec.structs.replace(SPEC, sampling=sampling)) == items
    other_spec = msgspec.structs.replace(SPEC, sampling=sampling)
    with pytest.raises(SwapdError) as refused:
        check_state(decode_state(SPEC, OUTPUTS), other_spec, OUTPUTS)
    assert refused.value.code is Code.MANIFEST_MISMATCH
    assert all(item in refused.value.detail for item in items)


def test_no_parameter_is_in_no_item() -> None:
    """H89: one that is added must be put into an item, and into this test."""
    assert set(Sampling.__struct_fields__) == {
        *("temperature", "top_p", "top_k", "min_p", "seed"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty"),
        *("min_tokens", "stop_token_ids", "ignore_eos"),
    }


def test_every_token_is_in_the_items_that_hang_on_it() -> None:
    """H89: counts know how often, not where; the next noise knows the position alone."""
    assert changed_items(SPEC, (*OUTPUTS, 9)) == {*TEXTUAL, "generator", "penalties"}
    assert changed_items(SPEC, (4, 4, 5)) == TEXTUAL
    assert changed_items(SPEC, (4, 5, 5)) == {*TEXTUAL, "penalties"}
    prompt = msgspec.structs.replace(SPEC, prompt=(1, 2, 9))
    assert changed_items(prompt) == {"transcript", "penalties"}
    assert changed_items(msgspec.structs.replace(SPEC, max_new_tokens=41)) == {"stops"}
    assert changed_items(msgspec.structs.replace(SPEC, salt="another cache")) == set()


def test_without_penalties_there_are_no_counts() -> None:
    plain = msgspec.structs.replace(SPEC, sampling=Sampling(seed=3))
    one, two = (dict(msgspec.to_builtins(decode_state(plain, ids))) for ids in ((4, 5), (4, 6)))
    assert one["penalties"] == two["penalties"]
    assert one["transcript"] != two["transcript"]


def test_numbers_mean_the_same_however_they_were_written() -> None:
    whole = Sampling(temperature=1, top_p=1, presence_penalty=0)
    assert decode_state(msgspec.structs.replace(SPEC, sampling=whole), OUTPUTS) == decode_state(
        msgspec.structs.replace(SPEC, sampling=Sampling(temperature=1.0)), OUTPUTS
    )


@given(st.integers(0, 200), st.integers(1, 40))
def test_valid_tokens_add_up(computed: int, block_tokens: int) -> None:
    valid = valid_tokens(computed, block_tokens)
    assert sum(valid) == computed
    assert all(count == block_tokens for count in valid[:-1])
    assert all(0 < count <= block_tokens for count in valid)


def test_the_given_session_is_what_the_target_is_told() -> None:
    """The helpers of this file: the engine's own outputs are those that it gave out."""
    arena = FakeArena()
    source = Side(arena)
    assert tuple(decoded(source, 5)) == source.engine.outputs("k")
    assert decode_state(GIVEN, source.engine.outputs("k"))[0].name == "transcript"
