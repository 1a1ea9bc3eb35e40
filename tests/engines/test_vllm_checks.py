"""What the vLLM adapter refuses before it loads anything, and what it puts into the environment."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from swapd.config import ModelConfig
from swapd.engines.vllm import checks, opening
from swapd.engines.vllm.checks import (
    check_model_config,
    check_versions,
    checkpoint_eos_ids,
    read_model_config,
)
from swapd.engines.vllm.noise import position_seed
from swapd.engines.vllm.settings import (
    CPU_BLOCK_TOKENS,
    apply_environment,
    engine_environment,
    engine_settings,
    stdout_to_stderr,
)
from swapd.errors import Code, SwapdError

LLAMA: dict[str, object] = {"model_type": "llama", "num_hidden_layers": 2, "eos_token_id": 2}


def refusal(error: pytest.ExceptionInfo[SwapdError]) -> tuple[Code, str]:
    return error.value.code, error.value.detail


@pytest.mark.parametrize(
    ("vllm", "torch"), [("0.32.0", "2.13.0"), ("0.32.0+cpu", "2.13.0+cpu"), ("0.32.0", "2.13.1")]
)
def test_the_checked_versions_are_accepted(vllm: str, torch: str) -> None:
    check_versions(vllm, torch)


@pytest.mark.parametrize(
    ("vllm", "torch"),
    [
        ("0.32.1", "2.13.0"),
        ("0.33.0", "2.13.0"),
        ("0.32.0rc1", "2.13.0"),
        ("0.32.0", "2.12.0"),
        ("0.32.0", "2.130.0"),
    ],
)
def test_an_unchecked_version_is_refused_by_name(vllm: str, torch: str) -> None:
    """H114."""
    with pytest.raises(SwapdError) as error:
        check_versions(vllm, torch)
    code, detail = refusal(error)
    assert code == Code.ENGINE_UNCHECKED
    assert vllm in detail or torch in detail


def test_a_missing_vllm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "VLLM_DISTRIBUTIONS", ("no-such-distribution",))
    with pytest.raises(SwapdError) as error:
        opening.open_engine(ModelConfig(alias="m", path="/"), cores=())
    assert refusal(error) == (Code.ENGINE_UNCHECKED, "vLLM is not installed")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"sliding_window": 4096}, "sliding window"),
        ({"sliding_window": 4096, "use_sliding_window": True}, "sliding window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "linear_attention"),
        ({"attention_chunk_size": 8192}, "chunked"),
        ({"mamba_d_state": 128}, "mamba_d_state"),
        ({"hybrid_override_pattern": "M*M-"}, "hybrid"),
        ({"kv_lora_rank": 512}, "MLA"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"vision_config": {"depth": 2}}, "multimodal"),
    ],
)
def test_a_model_without_plain_full_attention_is_refused(config: dict[str, object], reason: str) -> None:
    """vLLM #50687: such a model is refused before it is loaded."""
    with pytest.raises(SwapdError) as error:
        check_model_config({**LLAMA, **config})
    code, detail = refusal(error)
    assert code == Code.MODEL_UNSUPPORTED
    assert reason in detail


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"sliding_window": None},
        {"sliding_window": 131072, "use_sliding_window": False},
        {"layer_types": ["full_attention", "full_attention"]},
    ],
)
def test_plain_full_attention_is_accepted(config: dict[str, object]) -> None:
    check_model_config({**LLAMA, **config})


def test_an_incomplete_model_folder_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    for prepare, missing in (
        (lambda: None, "is not a folder"),
        (folder.mkdir, "no readable config.json"),
        (lambda: (folder / "config.json").write_text("[]"), "no readable config.json"),
        (lambda: (folder / "config.json").write_text(json.dumps(LLAMA)), "no *.safetensors file"),
    ):
        prepare()
        with pytest.raises(SwapdError) as error:
            read_model_config(folder)
        assert error.value.code == Code.MODEL_MISSING
        assert missing in error.value.detail
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model-1.safetensors").touch()
    with pytest.raises(SwapdError) as error:
        read_model_config(folder)
    assert "model-2.safetensors" in error.value.detail
    assert "model-1" not in error.value.detail
    (folder / "model-2.safetensors").touch()
    assert read_model_config(folder) == LLAMA


def test_the_ids_that_end_a_text_come_from_the_checkpoint(tmp_path: Path) -> None:
    assert checkpoint_eos_ids(tmp_path, LLAMA) == (2,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
    assert checkpoint_eos_ids(tmp_path, LLAMA) == (2, 0)
    (tmp_path / "generation_config.json").write_text("{}")
    assert checkpoint_eos_ids(tmp_path, {}) == ()


@pytest.mark.parametrize("key", ["weights_digest", "tokenizer_digest"])
def test_weights_other_than_declared_are_refused(key: str) -> None:
    """H113."""
    files = (("model.safetensors", "aa"), ("tokenizer.json", "bb"))
    opening.check_declared_digests(ModelConfig(alias="m", path="/"), files)
    with pytest.raises(SwapdError) as error:
        opening.check_declared_digests(ModelConfig(alias="m", path="/", **{key: "cc"}), files)
    assert error.value.code == Code.MODEL_MISSING
    assert key in error.value.detail


def test_a_step_must_hold_one_token_of_every_session() -> None:
    model = ModelConfig(alias="m", path="/", max_num_seqs=65, max_num_batched_tokens=64)
    with pytest.raises(SwapdError) as error:
        engine_settings(model, cores=(0,), on_gpu=False)
    assert error.value.code == Code.CONFIG_INVALID


def test_defaults_differ_between_cpu_and_gpu() -> None:
    model = ModelConfig(alias="m", path="/")
    assert engine_settings(model, cores=(0, 1), on_gpu=False).block_tokens == CPU_BLOCK_TOKENS
    assert engine_settings(model, cores=(0, 1), on_gpu=True).block_tokens is None
    assert engine_settings(model, cores=(0, 1), on_gpu=False).threads == 2


def test_the_environment_is_set_before_vllm_and_not_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """H112: offline, no usage reports, one process, and nothing of vLLM's on stdout."""
    settings = engine_settings(ModelConfig(alias="m", path="/"), cores=(0,), on_gpu=False)
    environment = engine_environment(settings)
    for name in environment:
        monkeypatch.setenv(name, "other")
    apply_environment(environment)
    assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert os.environ["VLLM_LOGGING_STREAM"] == "ext://sys.stderr"
    assert os.environ["OMP_NUM_THREADS"] == "1"
    assert "VLLM_CPU_KVCACHE_SPACE" not in os.environ, "it would override kv_cache_bytes"
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    with pytest.raises(SwapdError) as error:
        apply_environment(environment)
    assert error.value.code == Code.ENGINE_REFUSED


def test_what_a_library_prints_while_loading_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    """H101: file descriptor 1 belongs to the ready line."""
    with stdout_to_stderr():
        os.write(1, b"from C++\n")
    os.write(1, b"ready\n")
    written = capfd.readouterr()
    assert written.out == "ready\n"
    assert written.err == "from C++\n"


def test_noise_is_a_function_of_seed_and_position() -> None:
    """H89: nothing else goes in, and neighbours have nothing in common, in the low 32 bits either."""
    drawn = {position_seed(seed, position) for seed in (0, 1, 2, -1, 2**63) for position in range(1, 400)}
    assert len(drawn) == 5 * 399
    assert len({value & 0xFFFFFFFF for value in drawn}) == len(drawn)
    assert all(0 <= value < 1 << 64 for value in drawn)
    # A changed function would change every replay of a stored session.
    assert position_seed(7, 3) == 10134167572453724827
