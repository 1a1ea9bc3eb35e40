"""Opens an engine: checks first, then the environment, then vLLM, then what it really built."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swapd.certify.fingerprint import (
    FingerprintParts,
    combined_digest,
    fingerprint,
    model_file_digests,
    package_versions,
)
from swapd.config import ModelConfig
from swapd.engines.vllm.checks import (
    check_model_config,
    check_versions,
    checkpoint_eos_ids,
    installed_versions,
    read_model_config,
)
from swapd.engines.vllm.noise import NOISE_OF_POSITION
from swapd.engines.vllm.settings import (
    DTYPE,
    EngineSettings,
    apply_environment,
    engine_environment,
    engine_settings,
    silence_token_dumps,
    stdout_to_stderr,
)
from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import EngineInfo

if TYPE_CHECKING:
    from swapd.engines.vllm.adapter import VllmEngine


def open_engine(model: ModelConfig, *, cores: Sequence[int], on_gpu: bool | None = None) -> VllmEngine:
    """Load the model and return a ready engine; takes some 20 s. Call it on the engine thread.

    That thread is bound to `cores` (empty: it stays where it is) and with it the OpenMP threads that vLLM
    starts. `on_gpu` None: the CPU build of vLLM runs on the CPU, any other on a GPU. Once per process.

    Raises `SwapdError`: ENGINE_UNCHECKED, ENGINE_REFUSED, MODEL_MISSING, MODEL_UNSUPPORTED, CONFIG_INVALID.
    """
    versions = installed_versions()
    check_versions(versions["vllm"], versions["torch"])
    folder = Path(model.path)
    config = read_model_config(folder)
    check_model_config(config)
    if on_gpu is None:
        on_gpu = "cpu" not in versions["vllm_build"]
    if cores:
        os.sched_setaffinity(0, cores)
    settings = engine_settings(model, cores=cores, on_gpu=on_gpu)
    apply_environment(engine_environment(settings))
    files = model_file_digests(folder)
    check_declared_digests(model, files)
    eos_ids = model.eos_token_ids or checkpoint_eos_ids(folder, config)
    with stdout_to_stderr():
        return _build(settings, files, eos_ids, versions["vllm"])


def check_declared_digests(model: ModelConfig, files: Sequence[tuple[str, str]]) -> None:
    """Compare the checkpoint with what the configuration declares (H113).

    `weights_digest` is the combined digest of the safetensors files, `tokenizer_digest` that of
    tokenizer.json. Raises `SwapdError(MODEL_MISSING)` that names the differing key.
    """
    weights = combined_digest(file for file in files if file[0].endswith(".safetensors"))
    if model.weights_digest is not None and model.weights_digest != weights:
        raise SwapdError(Code.MODEL_MISSING, "the weights differ from weights_digest")
    if model.tokenizer_digest is not None and model.tokenizer_digest != dict(files).get("tokenizer.json"):
        raise SwapdError(Code.MODEL_MISSING, "the tokenizer differs from tokenizer_digest")


def _build(
    settings: EngineSettings,
    files: tuple[tuple[str, str], ...],
    eos_ids: tuple[int, ...],
    vllm_version: str,
) -> VllmEngine:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    from swapd.engines.vllm.adapter import VllmEngine
    from swapd.engines.vllm.blocks import HostBlocks, KvBlocks, kv_layout
    from swapd.engines.vllm.runner import RunnerSeam, V1Runner, V2Runner
    from swapd.engines.vllm.scheduler import HandoffScheduler

    silence_token_dumps()
    arguments = EngineArgs(
        model=settings.path,
        skip_tokenizer_init=True,
        dtype=DTYPE,
        max_model_len=settings.max_model_len,
        block_size=settings.block_tokens,
        kv_cache_memory_bytes=None if settings.on_gpu else settings.kv_cache_bytes,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        enable_prefix_caching=settings.prefix_caching,
        enforce_eager=True,
        async_scheduling=False,
        disable_log_stats=True,
        use_tqdm_on_load=False,
        scheduler_cls=HandoffScheduler,
    )
    # Its finaliser shuts the core down, so the adapter keeps it alive.
    llm_engine = LLMEngine.from_engine_args(arguments)
    core = llm_engine.engine_core.engine_core
    worker = core.model_executor.driver_worker
    worker = getattr(worker, "worker", worker)
    _remove_rendezvous(worker)
    model_runner = worker.model_runner
    scheduler = core.scheduler
    layout = kv_layout(scheduler.kv_cache_config, model_runner.kv_caches)
    runner: RunnerSeam
    blocks: KvBlocks
    if settings.on_gpu:
        from swapd.engines.vllm.cuda import CudaBlocks

        runner, blocks = V2Runner(model_runner), CudaBlocks(model_runner.kv_caches, layout)
    else:
        runner, blocks = V1Runner(model_runner, "cpu"), HostBlocks(model_runner.kv_caches, layout)
    parts = FingerprintParts(
        engine="vllm",
        model_files=files,
        dtype=DTYPE,
        max_model_len=settings.max_model_len,
        block_tokens=scheduler.block_size,
        block_bytes=layout.block_bytes,
        kv_layout=f"{layout.name} {layout.shape}",
        attention=_attention(core.vllm_config),
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_num_seqs=settings.max_num_seqs,
        prefix_caching=settings.prefix_caching,
        eos_token_ids=eos_ids,
        noise=NOISE_OF_POSITION,
        versions=package_versions(),
        hardware=_hardware(settings.on_gpu),
    )
    info = EngineInfo(
        engine="vllm",
        engine_version=vllm_version,
        model=settings.alias,
        fingerprint=fingerprint(parts),
        block_tokens=scheduler.block_size,
        block_bytes=layout.block_bytes,
        # Block 0 is vLLM's null block.
        usable_blocks=layout.blocks - 1,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        vocab_size=core.vllm_config.model_config.get_vocab_size(),
        eos_token_ids=eos_ids,
    )
    return VllmEngine(llm_engine, scheduler, runner, blocks, info)


def _remove_rendezvous(worker: Any) -> None:
    """Remove the file in which a group of one has met by now; nobody would later, after a SIGKILL."""
    scheme, _, path = str(worker.distributed_init_method).partition("://")
    if scheme == "file":
        Path(path).unlink(missing_ok=True)


def _attention(vllm_config: Any) -> str:
    """Name the attention backend and, on a CPU, the instruction set that packs its blocks."""
    layers = vllm_config.compilation_config.static_forward_context.values()
    return ", ".join(
        sorted(
            {f"{layer.get_attn_backend().get_name()} {getattr(layer, 'isa', '')}".strip() for layer in layers}
        )
    )


def _hardware(on_gpu: bool) -> str:
    import torch

    if on_gpu:
        return f"{torch.cuda.get_device_name()} CUDA {torch.version.cuda}"
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
