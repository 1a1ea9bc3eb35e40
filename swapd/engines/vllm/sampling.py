"""How a session's sampling becomes vLLM's, and vLLM's reasons to stop become ours."""

from __future__ import annotations

from collections.abc import Sequence

from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.v1.engine import FinishReason

from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import Finish
from swapd.messages.generation import GenerationSpec


def to_vllm_sampling(spec: GenerationSpec, eos_ids: Sequence[int], vocab_size: int) -> SamplingParams:
    """Translate a session's sampling; everything vLLM would reject later is refused here.

    Raises `SwapdError`: UNSUPPORTED_PARAMETER or INVALID_REQUEST. A token id outside the vocabulary would
    index past a tensor inside a step and so end every session of the worker.
    """
    sampling = spec.sampling
    if sampling.temperature > 0 and sampling.seed is None:
        raise SwapdError(Code.UNSUPPORTED_PARAMETER, "sampling without a seed cannot be moved")
    if any(not 0 <= token < vocab_size for token in sampling.stop_token_ids):
        raise SwapdError(Code.INVALID_REQUEST, "stop_token_ids outside the vocabulary")
    try:
        params = SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            repetition_penalty=sampling.repetition_penalty,
            min_tokens=sampling.min_tokens,
            max_tokens=spec.max_new_tokens,
            seed=sampling.seed,
            stop_token_ids=list(sampling.stop_token_ids),
            ignore_eos=sampling.ignore_eos,
            detokenize=False,
        )
    except (ValueError, VLLMValidationError) as error:
        raise SwapdError(Code.UNSUPPORTED_PARAMETER, type(error).__name__) from None
    if eos_ids:
        params.update_from_generation_config({"eos_token_id": list(eos_ids)}, eos_ids[0])
    return params


def finish_of(
    reason: FinishReason | None, stop_reason: int | str | None, eos_ids: Sequence[int], ignore_eos: bool
) -> Finish | None:
    """Return why a generation ended. An end-of-text id that is also a stop id counts as `eos`."""
    if reason is None:
        return None
    if reason == FinishReason.LENGTH:
        return "length"
    if reason == FinishReason.STOP:
        is_eos = stop_reason is None or (stop_reason in eos_ids and not ignore_eos)
        return "eos" if is_eos else "stop_token"
    return "engine_failed"
