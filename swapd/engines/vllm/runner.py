"""The seam to vLLM's model runner: where a request's state is placed and its noise is set.

The V1 runner (the only one on a CPU) keeps a state per request. A request that "comes back from
preemption" is expected to have one, so we place it, with a generator of our own. That generator also
takes the sting out of vLLM's `set_offset` on a prompt that is split over steps, which a CPU generator
does not have and which ends the engine (`gpu_model_runner.py`, "CPU Generator does not use offset").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from vllm import SamplingParams
from vllm.v1.worker.gpu_input_batch import CachedRequestState

from swapd.engines.vllm.noise import position_seed


class PositionedGenerator(torch.Generator):  # type: ignore[misc]  # torch is not typed for us
    """A generator whose state is set anew for each output position."""

    def __new__(cls, seed: int, device: str) -> PositionedGenerator:
        generator: PositionedGenerator = super().__new__(cls, device=device)
        return generator

    def __init__(self, seed: int, device: str) -> None:
        self.session_seed = seed

    def seek(self, position: int) -> None:
        self.manual_seed(position_seed(self.session_seed, position))

    def get_offset(self) -> int:
        # vLLM takes 4 back after a chunk of prefill; see the module's head.
        return 4

    def set_offset(self, offset: int) -> None:
        return


class RunnerSeam(Protocol):
    """What the adapter needs of a model runner."""

    def place(
        self, request_id: str, prompt: Sequence[int], outputs: Sequence[int], params: SamplingParams
    ) -> None:
        """Put down the state that a request of `HandoffScheduler.enter` or `activate` needs."""

    def seek(self, request_id: str, position: int) -> None:
        """Set the noise of the next token of a request; positions of outputs count from 1."""

    def batch_order(self) -> Sequence[str]:
        """Request ids of the last step in the order of its tensors' rows."""


class V1Runner:
    """The V1 runner, as the CPU build has it."""

    def __init__(self, model_runner: object, device: str) -> None:
        self._runner: Any = model_runner
        self._device = device

    def place(
        self, request_id: str, prompt: Sequence[int], outputs: Sequence[int], params: SamplingParams
    ) -> None:
        generator = None
        if params.temperature > 0:
            assert params.seed is not None, "refused by to_vllm_sampling"
            generator = PositionedGenerator(params.seed, self._device)
        self._runner.requests[request_id] = CachedRequestState(
            req_id=request_id,
            prompt_token_ids=list(prompt),
            mm_features=[],
            sampling_params=params,
            generator=generator,
            block_ids=([],),
            num_computed_tokens=0,
            output_token_ids=list(outputs),
        )

    def seek(self, request_id: str, position: int) -> None:
        generator = self._runner.requests[request_id].generator
        if generator is not None:
            generator.seek(position)

    def batch_order(self) -> Sequence[str]:
        order: list[str] = self._runner.input_batch.req_ids
        return order


class V2Runner:
    """The V2 runner, the default on CUDA: stateless noise by seed and position, state sent with the step."""

    def __init__(self, model_runner: object) -> None:
        self._runner: Any = model_runner

    def place(
        self, request_id: str, prompt: Sequence[int], outputs: Sequence[int], params: SamplingParams
    ) -> None:
        return

    def seek(self, request_id: str, position: int) -> None:
        return

    def batch_order(self) -> Sequence[str]:
        return ()
