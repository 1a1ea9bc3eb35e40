"""The engine adapter: `swapd.engines.base.Engine` over vLLM's `EngineCore`, driven step by step.

Every generation gets a request id of its own, never used again: vLLM remembers finished ids until the next
step and would take a newcomer of the same name for the dead one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.request import Request

from swapd.engines.base import Arrival, StepResult, StepToken
from swapd.engines.vllm.blocks import KvBlocks
from swapd.engines.vllm.runner import RunnerSeam
from swapd.engines.vllm.sampling import finish_of, to_vllm_sampling
from swapd.engines.vllm.scheduler import HandoffScheduler, in_prefill
from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import EngineInfo
from swapd.messages.generation import GenerationSpec

_ONE_GROUP: Final = 0


class _Stay(msgspec.Struct):
    """One generation in this engine, from `start` or `reserve` to its end here."""

    key: str
    spec: GenerationSpec
    request: Request
    blocks: int
    """Blocks of its whole budget."""
    replay_end: int
    """Positions below this are recomputed if prefill computes them; 0: not a replay, or past it."""
    again: int | None = None
    """Positions computed a second time so far; None: not a replay, or its first token is out."""


class VllmEngine:
    """vLLM in process. Threads and meaning as in `Engine`."""

    def __init__(
        self,
        llm_engine: Any,  # vllm.v1.engine.llm_engine.LLMEngine, not typed for us
        scheduler: HandoffScheduler,
        runner: RunnerSeam,
        blocks: KvBlocks,
        info: EngineInfo,
    ) -> None:
        self._llm_engine = llm_engine
        self._core = llm_engine.engine_core.engine_core
        self._scheduler = scheduler
        self._runner = runner
        self._blocks = blocks
        self._info = info
        self._stays: dict[str, _Stay] = {}
        self._by_request: dict[str, _Stay] = {}
        self._serial = 0
        self._recomputed = 0
        self._scheduled: dict[str, int] = {}
        self._preempted: list[str] = []
        scheduler.on_scheduled = self._before_execution

    @property
    def info(self) -> EngineInfo:
        return self._info

    # generations

    def start(self, key: str, spec: GenerationSpec, outputs: Sequence[int]) -> None:
        stay = self._admit(key, spec)
        if outputs:
            stay.request.append_output_token_ids(list(outputs))
            stay.replay_end, stay.again = stay.request.num_tokens - 1, 0
        self._scheduler.enter(stay.request)
        self._place(stay, outputs)

    def reserve(self, key: str, spec: GenerationSpec) -> None:
        promised = sum(stay.blocks for stay in self._stays.values())
        stay = self._admit(key, spec)
        if promised + stay.blocks > self._info.usable_blocks or not self._scheduler.reserve(
            stay.request, spec.budget
        ):
            self._forget(stay)
            raise SwapdError(Code.TARGET_FULL)

    def activate(self, arrivals: Sequence[Arrival]) -> None:
        stays = [self._stay(arrival.key) for arrival in arrivals]
        for stay, arrival in zip(stays, arrivals, strict=True):
            if stay.request.request_id not in self._scheduler.reserved or not arrival.outputs:
                raise SwapdError(Code.NOT_ELIGIBLE, "activate needs a reservation and an output token")
        for stay, arrival in zip(stays, arrivals, strict=True):
            self._scheduler.activate(stay.request.request_id, arrival.outputs, arrival.computed)
            self._place(stay, arrival.outputs)
            if arrival.computed is not None:
                stay.replay_end, stay.again = stay.request.num_tokens - 1, 0

    def hold(self, key: str) -> None:
        self._scheduler.hold(self._stay(key).request.request_id)

    def unhold(self, key: str) -> None:
        self._scheduler.unhold(self._stay(key).request.request_id)

    def remove(self, key: str) -> None:
        stay = self._stays.get(key)
        if stay is None:
            return
        self._forget(stay)
        request_id = stay.request.request_id
        if request_id in self._scheduler.reserved:
            self._scheduler.discard(request_id)
        else:
            self._scheduler.abort(request_id)
            self._flush_finished()

    def set_prefill(self, on: bool) -> None:
        self._scheduler.gate_prefill(on)

    def limit_step(self, positions: int | None) -> None:
        """Compute at most so many positions a step (None: as configured), to repeat a recorded one."""
        self._scheduler.limit_step(positions)

    # steps

    def runnable(self) -> bool:
        return self._scheduler.runnable()

    def step(self) -> StepResult:
        self._scheduled.clear()
        self._preempted.clear()
        grouped, _ = self._core.step()
        self._blocks.step_ended()
        # Keys first: a finished generation is forgotten below.
        batch = [(self._by_request[name].key, self._scheduled[name]) for name in self._batch_order()]
        preempted = tuple(self._by_request[name].key for name in self._preempted if name in self._by_request)
        tokens: list[StepToken] = []
        rebuilt: list[tuple[str, int]] = []
        for group in grouped.values():
            for output in group.outputs:
                stay = self._by_request[output.request_id]
                finish = finish_of(
                    output.finish_reason,
                    output.stop_reason,
                    self._info.eos_token_ids,
                    stay.spec.sampling.ignore_eos,
                )
                tokens.extend(StepToken(stay.key, token, finish) for token in output.new_token_ids)
                if stay.again is not None and output.new_token_ids:
                    rebuilt.append((stay.key, stay.again))
                    stay.again = None
                if finish is not None:
                    if not output.new_token_ids:
                        raise RuntimeError("vLLM ended a generation without a token")
                    self._forget(stay)
        self._flush_finished()
        return StepResult(tokens, batch, preempted, rebuilt)

    def _batch_order(self) -> Sequence[str]:
        """Return the step's request ids in the order of the runner's rows, where it tells."""
        rows = [name for name in self._runner.batch_order() if name in self._scheduled]
        return rows or list(self._scheduled)

    def _before_execution(self, output: SchedulerOutput) -> None:
        """Set each scheduled request's noise and count what is computed a second time."""
        self._scheduled = dict(output.num_scheduled_tokens)
        self._preempted = list(output.preempted_req_ids or ())
        for request_id, count in self._scheduled.items():
            stay = self._by_request[request_id]
            request = stay.request
            self._runner.seek(request_id, request.num_output_tokens + 1)
            if stay.replay_end:
                # vLLM has advanced num_computed_tokens by now.
                first = request.num_computed_tokens - count
                again = max(0, min(request.num_computed_tokens, stay.replay_end) - first)
                stay.again = (stay.again or 0) + again
                self._recomputed += again
                if request.num_computed_tokens >= stay.replay_end:
                    stay.replay_end = 0

    def _flush_finished(self) -> None:
        """Let the runner drop finished requests when no step with work follows; it takes no time."""
        if self._scheduler.finished_req_ids and not self._scheduler.runnable():
            self._core.step()

    # blocks

    def block_table(self, key: str) -> tuple[int, ...]:
        request_id = self._stay(key).request.request_id
        return tuple(self._scheduler.kv_cache_manager.get_block_ids(request_id)[_ONE_GROUP])

    def computed(self, key: str) -> int:
        return int(self._stay(key).request.num_computed_tokens)

    def decoding(self, key: str) -> bool:
        return not in_prefill(self._stay(key).request)

    def outputs(self, key: str) -> tuple[int, ...]:
        return tuple(self._stay(key).request.output_token_ids)

    def read_block(self, block: int, into: memoryview) -> None:
        self._blocks.read(block, into)

    def write_block(self, block: int, data: memoryview) -> None:
        self._blocks.write(block, data)

    def free_blocks(self) -> int:
        return int(self._scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def recomputed(self) -> int:
        return self._recomputed

    def recomputed_for(self, key: str) -> int:
        stay = self._stays.get(key)
        return stay.again or 0 if stay is not None else 0

    def close(self) -> None:
        """Shut vLLM down; some 2 s. Leaving the interpreter after it takes 4 s more than `os._exit`."""
        self._stays.clear()
        self._by_request.clear()
        self._core.shutdown()

    # inside

    def _admit(self, key: str, spec: GenerationSpec) -> _Stay:
        if key in self._stays:
            raise SwapdError(Code.INTERNAL, "a generation of this key is here already")
        info = self._info
        if not spec.prompt:
            raise SwapdError(Code.PROMPT_EMPTY)
        if spec.max_new_tokens < 1 or spec.budget > info.max_model_len:
            raise SwapdError(Code.BUDGET_EXCEEDED, f"{spec.budget} of {info.max_model_len} tokens")
        if min(spec.prompt) < 0 or max(spec.prompt) >= info.vocab_size:
            raise SwapdError(Code.INVALID_REQUEST, "prompt outside the vocabulary")
        params = to_vllm_sampling(spec, info.eos_token_ids, info.vocab_size)
        self._serial += 1
        request, _ = self._core.preprocess_add_request(
            EngineCoreRequest(
                request_id=f"g{self._serial}",
                prompt_token_ids=list(spec.prompt),
                mm_features=None,
                sampling_params=params,
                pooling_params=None,
                arrival_time=time.time(),
                lora_request=None,
                cache_salt=spec.salt or None,
                data_parallel_rank=None,
            )
        )
        stay = _Stay(key, spec, request, -(-spec.budget // info.block_tokens), 0)
        self._stays[key] = stay
        self._by_request[request.request_id] = stay
        return stay

    def _place(self, stay: _Stay, outputs: Sequence[int]) -> None:
        request = stay.request
        self._runner.place(request.request_id, stay.spec.prompt, outputs, request.sampling_params)

    def _stay(self, key: str) -> _Stay:
        try:
            return self._stays[key]
        except KeyError:
            raise SwapdError(Code.SESSION_UNKNOWN, "the engine has no such generation") from None

    def _forget(self, stay: _Stay) -> None:
        del self._stays[stay.key]
        del self._by_request[stay.request.request_id]
