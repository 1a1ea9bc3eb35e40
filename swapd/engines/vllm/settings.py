"""The settings that an engine is opened with, and the environment vLLM must find when it is imported.

vLLM reads its environment at import and later, so it is set before the first import and stays set: one
process holds one engine.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from swapd.config import ModelConfig
from swapd.errors import Code, SwapdError

CPU_BLOCK_TOKENS: Final = 32
"""vLLM's own default on a CPU is 128: a tail of up to 2.9 MB instead of 0.74 MB for a small model."""

DTYPE: Final = "bfloat16"


class EngineSettings(msgspec.Struct, frozen=True):
    """Everything of the configuration that shapes the engine; `threads` is what OpenMP gets."""

    path: str
    alias: str
    max_model_len: int
    block_tokens: int | None
    kv_cache_bytes: int
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    prefix_caching: bool
    on_gpu: bool
    threads: int


def engine_settings(model: ModelConfig, *, cores: Sequence[int], on_gpu: bool) -> EngineSettings:
    """Return the settings for a model on `cores`.

    Raises `SwapdError(CONFIG_INVALID)` when a step could not hold one token of every session: a decoding
    generation would then miss steps.
    """
    if model.max_num_batched_tokens < model.max_num_seqs:
        raise SwapdError(Code.CONFIG_INVALID, "max_num_batched_tokens is below max_num_seqs")
    return EngineSettings(
        path=model.path,
        alias=model.alias,
        max_model_len=model.max_model_len,
        block_tokens=model.block_tokens or (None if on_gpu else CPU_BLOCK_TOKENS),
        kv_cache_bytes=model.kv_cache_bytes,
        max_num_seqs=model.max_num_seqs,
        max_num_batched_tokens=model.max_num_batched_tokens,
        gpu_memory_utilization=model.gpu_memory_utilization,
        prefix_caching=model.prefix_caching,
        on_gpu=on_gpu,
        threads=len(cores) or len(os.sched_getaffinity(0)),
    )


def engine_environment(settings: EngineSettings) -> dict[str, str | None]:
    """Return the variables to set (or, with None, to drop) before vLLM is imported (H112)."""
    return {
        # The step loop is ours: without this vLLM starts a process of its own and hides the scheduler.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        # The seam of runner.py belongs to one runner each; vLLM's own choice depends on what is installed.
        "VLLM_USE_V2_MODEL_RUNNER": "1" if settings.on_gpu else "0",
        "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        # Its handlers would write past our filter of log lines (H183).
        "VLLM_CONFIGURE_LOGGING": "0",
        # vLLM logs to stdout by default, where the worker's ready line goes.
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "OMP_NUM_THREADS": str(settings.threads),
        # Whole GiB only, and it would override kv_cache_memory_bytes.
        "VLLM_CPU_KVCACHE_SPACE": None,
        "TOKENIZERS_PARALLELISM": "false",
    }


def apply_environment(environment: dict[str, str | None]) -> None:
    """Set the variables in this process; refuses when vLLM is imported already.

    Raises `SwapdError(ENGINE_REFUSED)`: settings that came too late would be silently without effect.
    """
    if "vllm" in sys.modules:
        raise SwapdError(Code.ENGINE_REFUSED, "vLLM was imported before its environment was set")
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def silence_token_dumps() -> None:
    """Stop vLLM from logging a failed step's scheduler output: it names token ids."""
    logging.getLogger("vllm.logging_utils.dump_input").disabled = True


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send everything written to file descriptor 1 to descriptor 2 meanwhile.

    Libraries print from C++ while a model loads, and the worker's stdout carries exactly one line (H101).
    It acts on the whole process.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
