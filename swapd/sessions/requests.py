"""What a new session may ask for, as far as the request alone can tell. Pure.

Both front doors (HTTP and the ops socket) check with this before the service sees a request; what needs
the model (vocabulary, context, alias) is the service's to check. A refusal names the field and its range
and never repeats a value: a prompt must not come back in an error or reach a log.
"""

from __future__ import annotations

from typing import Final

from swapd.config import LimitConfig
from swapd.errors import Code, SwapdError
from swapd.views import NewSession

MAX_TOKEN_ID: Final = (1 << 31) - 1
MAX_SEED: Final = (1 << 63) - 1
MAX_TOKENS: Final = (1 << 31) - 1
"""Above every context; keeps absurd integers out of the store and of messages."""
MAX_TEMPERATURE: Final = 5.0
MAX_STOP_TOKEN_IDS: Final = 64
MAX_MODEL_NAME: Final = 256


def check_new_session(request: NewSession, limits: LimitConfig) -> None:
    """Refuse a request whose fields are out of range.

    Raises `invalid_request` or `prompt_empty` (H5, H165). NaN fails every range.
    """
    _check_prompt(request.prompt)
    _check_budget(request, limits)
    _check_sampling(request)
    _check_stops(request, limits)
    if request.model is not None and not 1 <= len(request.model) <= MAX_MODEL_NAME:
        raise _refused(f"model must have 1 to {MAX_MODEL_NAME} characters")


def _check_prompt(prompt: str | list[int]) -> None:
    if not prompt:
        raise SwapdError(Code.PROMPT_EMPTY)
    if isinstance(prompt, list):
        _check_token_ids("prompt", prompt)


def _check_budget(request: NewSession, limits: LimitConfig) -> None:
    # H5, H165: the service bounds the budget by the context as well.
    ceiling = MAX_TOKENS if limits.max_new_tokens is None else limits.max_new_tokens
    _check_range("max_new_tokens", request.max_new_tokens, 1, ceiling)
    if not 0 <= request.min_tokens <= request.max_new_tokens:
        raise _refused("min_tokens must be between 0 and max_new_tokens")
    lifetime_s = request.max_lifetime_s
    # A session may ask for less than the configured lifetime, never for more (decision 9).
    if lifetime_s is not None and not 0 < lifetime_s <= limits.max_lifetime_s:
        raise _refused(f"max_lifetime_s must be above 0 and at most {limits.max_lifetime_s:g}")


def _check_sampling(request: NewSession) -> None:
    _check_range("temperature", request.temperature, 0, MAX_TEMPERATURE)
    _check_range("min_p", request.min_p, 0, 1)
    _check_range("presence_penalty", request.presence_penalty, -2, 2)
    _check_range("frequency_penalty", request.frequency_penalty, -2, 2)
    _check_range("top_k", request.top_k, 0, MAX_TOKEN_ID)
    if not 0 < request.top_p <= 1:
        raise _refused("top_p must be above 0 and at most 1")
    if not 0 < request.repetition_penalty <= 10:
        raise _refused("repetition_penalty must be above 0 and at most 10")
    if request.seed is not None:
        _check_range("seed", request.seed, 0, MAX_SEED)


def _check_stops(request: NewSession, limits: LimitConfig) -> None:
    if len(request.stop) > limits.max_stop_strings:
        raise _refused(f"stop takes at most {limits.max_stop_strings} strings")
    if any(not 1 <= len(text) <= limits.max_stop_length for text in request.stop):
        raise _refused(f"each stop string must have 1 to {limits.max_stop_length} characters")
    if len(request.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise _refused(f"stop_token_ids takes at most {MAX_STOP_TOKEN_IDS} ids")
    _check_token_ids("stop_token_ids", request.stop_token_ids)


def _check_token_ids(name: str, ids: list[int]) -> None:
    if ids and not (min(ids) >= 0 and max(ids) <= MAX_TOKEN_ID):
        raise _refused(f"{name} must hold token ids, which are 0 or more")


def _check_range(name: str, value: float, low: float, high: float) -> None:
    # Written so that NaN, which compares false to everything, is refused.
    if not low <= value <= high:
        raise _refused(f"{name} must be between {low} and {high}")


def _refused(detail: str) -> SwapdError:
    return SwapdError(Code.INVALID_REQUEST, detail)
