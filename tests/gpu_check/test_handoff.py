"""Moves on a card: what can be known of them without one."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from ops.gpu_checking.dummy import VOCABULARY, write_tokenizer
from ops.gpu_checking.handoff import blocks, check_handoff, plan
from ops.handoff_bench import deployment
from ops.handoff_bench.deployment import Card, Size
from ops.handoff_bench.repeat import FILLER_PROMPT
from swapd.config_file import parse_config
from swapd.sessions.tokenizer import load_tokenizer

CARD = Card("GPU-a", 0.4, 16)


def test_without_vllm_for_cuda_it_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    (check,), cells = check_handoff("GPU-a", None, False, lambda _: None)
    assert (check.state, cells) == ("skipped", [])
    assert "swapd[cuda]" in check.detail


def test_the_made_up_model_has_a_token_for_every_byte(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer.json")
    tokenizer = load_tokenizer(tmp_path)
    ids = tokenizer.encode("Größe <12> 漢")
    assert len(ids) == len("Größe <12> 漢".encode())
    assert max((*ids, *FILLER_PROMPT)) < VOCABULARY == tokenizer.vocab_size
    (cell,) = plan(tmp_path, (1024,), (4,), 8, 16)
    assert {len(session.prompt) for each in cell.rounds for session in each.sessions} == {1024}
    assert blocks(1025, 16) == 1040


def test_both_workers_share_the_card_and_are_bound_to_no_core(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"num_attention_heads": 8, "hidden_size": 512, "num_hidden_layers": 8}'
    )
    text = deployment._toml(tmp_path, tmp_path, Size(2048, 8192, 4), "t" * 32, 8080, CARD)
    config = parse_config(text, folder=tmp_path, name="swapd.toml")
    assert [worker.cores for worker in config.workers] == [(), ()]
    (model,) = config.models
    assert 2 * model.gpu_memory_utilization < 1
    assert model.block_tokens == CARD.block_tokens
    assert CARD.environment == {"CUDA_VISIBLE_DEVICES": "GPU-a"}
