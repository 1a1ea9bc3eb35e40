"""Tokenizers: exact prompts, whole characters (H30, H125)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from swapd.errors import Code, SwapdError
from swapd.sessions.text import TextStream
from swapd.sessions.tokenizer import PENDING_TOKENS, FileTokenizer, SimTokenizer, Tokenizer, load_tokenizer

SAMPLE = "the cat sat on the mat. h\u00f6he \u00fcber gr\u00f6\u00dfe \u65e5\u672c\u8a9e \U0001f600\U0001f680"


def byte_level() -> LibraryTokenizer:
    """A byte-level BPE so small that most characters beyond ASCII are split over tokens."""
    tokenizer = LibraryTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|begin|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([SAMPLE] * 5, trainer)
    return tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder whose tokenizer wants to add a beginning, and to cut and fill prompts."""
    folder = tmp_path_factory.mktemp("checkpoint")
    tokenizer = byte_level()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A <|end|>", special_tokens=[("<|begin|>", 0), ("<|end|>", 1)]
    )
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


def decoded(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    decoder = tokenizer.decoder()
    return [decoder.push(i) for i in ids] + [decoder.flush()]


def test_a_prompt_is_encoded_as_it_is_and_nothing_is_put_around_it(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(SAMPLE)
    assert "".join(decoded(tokenizer, ids)) == SAMPLE
    assert 0 not in ids
    assert 1 not in ids
    assert tokenizer.encode("") == []
    assert max(ids) < tokenizer.vocab_size


def test_a_character_split_over_tokens_comes_out_whole(tokenizer: Tokenizer) -> None:
    """H30"""
    ids = tokenizer.encode("\U0001f680")
    assert len(ids) > 1
    assert decoded(tokenizer, ids) == [""] * (len(ids) - 1) + ["\U0001f680", ""]


def test_a_character_that_was_never_finished_reads_as_one_replacement(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("\U0001f680")[:-1]
    assert "".join(decoded(tokenizer, ids)) == "\ufffd"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=60))
def test_any_text_survives(tokenizer: Tokenizer, text: str) -> None:
    """H30"""
    assert "".join(decoded(tokenizer, tokenizer.encode(text))) == text


@given(data=st.data())
def test_the_pieces_of_any_tokens_make_the_text_that_the_library_makes(
    folder: Path, tokenizer: Tokenizer, data: st.DataObject
) -> None:
    """H30: broken bytes and special tokens included."""
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=PENDING_TOKENS), label="ids")
    whole = LibraryTokenizer.from_file(str(folder / "tokenizer.json")).decode(ids, skip_special_tokens=True)
    assert "".join(decoded(tokenizer, ids)) == whole


def test_broken_bytes_are_not_held_for_ever(tokenizer: Tokenizer) -> None:
    broken = tokenizer.encode("\U0001f680")[0]
    pieces = decoded(tokenizer, [broken] * (4 * PENDING_TOKENS))
    assert sum(1 for piece in pieces if piece) >= 4


def test_a_special_token_has_no_text_and_does_not_eat_the_space_after_it(tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode("the"), 1, *tokenizer.encode(" cat")]
    assert "".join(decoded(tokenizer, ids)) == "the cat"


def test_a_vocabulary_with_byte_fallback_never_takes_back_what_was_shown() -> None:
    """There an invalid byte makes the library read the valid ones before it anew."""
    vocab = {"<unk>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}, "x": 257}
    library = LibraryTokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    library.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = FileTokenizer(library)
    e_acute = [byte + 1 for byte in "\u00e9".encode()]
    pieces = decoded(tokenizer, [*e_acute, 0xFF + 1, 257])
    assert pieces == ["", "\u00e9", "", "\ufffdx", ""]


def test_a_stop_string_within_split_characters_is_found(tokenizer: Tokenizer) -> None:
    """H17, H30"""
    stream = TextStream(tokenizer.decoder(), ["\U0001f680\u8a9e"])
    shown = ""
    for token in tokenizer.encode("go \U0001f600\U0001f680\u8a9e on"):
        step = stream.push(token)
        shown += step.text
        if step.stopped:
            break
    assert shown == "go \U0001f600"


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    """H125"""
    with pytest.raises(SwapdError) as refusal:
        load_tokenizer(tmp_path / "nowhere")
    assert refusal.value.code == Code.MODEL_MISSING
    assert "nowhere" in refusal.value.detail


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b'{"model": 3}'])
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path, content: bytes) -> None:
    """H125"""
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(SwapdError) as refusal:
        load_tokenizer(tmp_path)
    assert refusal.value.code == Code.MODEL_MISSING


def test_the_tokenizer_of_sim_reads_bytes_and_shows_numbers() -> None:
    tokenizer = SimTokenizer(100)
    assert tokenizer.encode("a\u00e9") == [97, 195 % 100, 169 % 100]
    assert decoded(tokenizer, [7, 12]) == ["7 ", "12 ", ""]
    assert tokenizer.vocab_size == 100
