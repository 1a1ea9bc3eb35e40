"""vLLM's scheduler with the moves of a handoff: reserve, activate, discard, hold, and a gate for prefill.

Rules kept here:
- A reserved request owns blocks for its whole budget and is in no queue and not in `requests`, so nothing
  but `discard` and `activate` can touch it.
- An activated request has all KV below N - 1 and status PREEMPTED. vLLM keeps waiting requests that hold
  blocks in a queue of their own, drains it first and looks nothing up in the prefix cache for them.
- One that was activated with less (B24) is prefill that waits in the same queue: whatever keeps prefill out
  of a step keeps it out too.
- Arrivals enter the very next step together: in that step prefill stands aside, so that the token budget
  cannot run out before them, and held and reserved requests keep their place in `max_num_seqs`.
- Decoding requests come before prefill in `running`. vLLM walks that list with one token budget, so a
  long prompt that started earlier would otherwise starve a request that arrived or was let go later.
- A held request is only taken out of `running`; blocks and the runner's state stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus


def in_prefill(request: Request) -> bool:
    """Whether KV below the last token is still missing, or no token came out yet."""
    return bool(request.num_output_tokens == 0 or request.num_computed_tokens < request.num_tokens - 1)


class HandoffScheduler(Scheduler):  # type: ignore[misc]  # vLLM is not typed for us
    """A scheduler whose requests can leave and arrive between two steps. Engine thread only."""

    running: list[Request]
    max_num_scheduled_tokens: int

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.reserved: dict[str, Request] = {}
        self.held: dict[str, Request] = {}
        self.prefill_on = True
        self._configured_step = self.max_num_scheduled_tokens
        self.on_scheduled: Callable[[SchedulerOutput], None] = lambda output: None
        # A step that found nothing to do would find nothing again until something changes.
        self._stalled = False

    def enter(self, request: Request) -> None:
        """Queue a request as if it came back from preemption, with nothing computed.

        So the runner takes the state that was placed for it, its generator included, and the prefix
        cache is still asked, because nothing is computed yet.
        """
        self._stalled = False
        request.num_preemptions = 1
        self.add_request(request)
        request.status = RequestStatus.PREEMPTED

    def occupied(self) -> int:
        """Places of `max_num_seqs` that are taken or promised."""
        return len(self.running) + len(self.held) + len(self.reserved) + len(self.kv_holding_waiting)

    def reserve(self, request: Request, num_tokens: int) -> bool:
        """Allocate blocks for `num_tokens` positions; False when there is no room for them or for it."""
        if self.occupied() >= self.max_num_running_reqs:
            return False
        blocks = self.kv_cache_manager.allocate_slots(
            request, num_tokens, delay_cache_blocks=True, has_scheduled_reqs=False
        )
        if blocks is None:
            return False
        self.reserved[request.request_id] = request
        return True

    def activate(self, request_id: str, outputs: Sequence[int], computed: int | None = None) -> Request:
        """Let a reserved request, whose blocks are filled below `computed` (N - 1), enter a step."""
        self._stalled = False
        request = self.reserved.pop(request_id)
        request.append_output_token_ids(list(outputs))
        request.num_computed_tokens = request.num_tokens - 1 if computed is None else computed
        # Beside num_preemptions = 0 an assert compares computed positions with the prompt's length.
        request.num_preemptions = 1
        self.kv_cache_manager.cache_blocks(request, request.num_computed_tokens)
        request.status = RequestStatus.PREEMPTED
        self.requests[request_id] = request
        self._enqueue_waiting_request(request)
        return request

    def discard(self, request_id: str) -> None:
        """Give a reserved request's blocks back."""
        self._stalled = False
        self.kv_cache_manager.free(self.reserved.pop(request_id))

    def hold(self, request_id: str) -> None:
        """Take a request out of the following steps, whichever queue it is in."""
        request = self.requests[request_id]
        if request_id in self.held:
            return
        if request.status == RequestStatus.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove_requests([request])
            self.kv_holding_waiting.remove_requests([request])
        self.held[request_id] = request

    def unhold(self, request_id: str) -> None:
        """Put a held request back where it came from."""
        request = self.held.pop(request_id, None)
        if request is None:
            return
        self._stalled = False
        if request.status == RequestStatus.RUNNING:
            self.running.append(request)
        else:
            self._enqueue_waiting_request(request)

    def abort(self, request_id: str) -> None:
        """Free a queued, running or held request."""
        self._stalled = False
        self.held.pop(request_id, None)
        self.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)

    def gate_prefill(self, on: bool) -> None:
        self._stalled = False
        self.prefill_on = on

    def limit_step(self, positions: int | None) -> None:
        """Set a step's token budget; None: the configured one."""
        self._stalled = False
        self.max_num_scheduled_tokens = self._configured_step if positions is None else positions

    def runnable(self) -> bool:
        """Whether a step would compute something. vLLM's own predicate also counts who cannot run."""
        if self._stalled:
            return False
        if any(not in_prefill(request) for request in (*self.kv_holding_waiting, *self.running)):
            return True
        return self.prefill_on and bool(self.running or self.waiting or self.kv_holding_waiting)

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Schedule one step by the rules above; `on_scheduled` sees it before it is executed."""
        self.running.sort(key=in_prefill)
        gated = not self.prefill_on or any(not in_prefill(request) for request in self.kv_holding_waiting)
        before = list(self.running)
        aside = [request for request in before if gated and in_prefill(request)]
        if aside:
            self.running = [request for request in before if not in_prefill(request)]
        later = [request for request in self.kv_holding_waiting if gated and in_prefill(request)]
        if later:
            self.kv_holding_waiting.remove_requests(later)
        self._pause_state = PauseState.PAUSED_NEW if gated else PauseState.UNPAUSED
        promised = len(aside) + len(later) + len(self.held) + len(self.reserved)
        self.max_num_active_reqs = self.max_num_running_reqs - promised
        try:
            output = super().schedule(throttle_prefills)
        finally:
            self._pause_state = PauseState.UNPAUSED
            for request in later:
                self.kv_holding_waiting.add_request(request)
            if aside:
                kept = {id(request) for request in (*aside, *self.running)}
                known = {id(request) for request in before}
                entered = [request for request in self.running if id(request) not in known]
                self.running = [request for request in before if id(request) in kept] + entered
        self._stalled = output.total_num_scheduled_tokens == 0
        self.on_scheduled(output)
        return output
