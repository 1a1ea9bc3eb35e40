"""What a worker needs of an inference engine, and nothing more.

Threads. Everything is called on the engine thread between two steps, except where a method says "any
thread". `step()` is where time passes; all else returns at once.

Keys. The worker names a generation by a key of its own choosing (session and epoch of its arrival), so
that a late command for an old stay can never touch a newer one.

Blocks. KV is paged: position p of a session lies in block `p // block_tokens` of its block table. A block
is an opaque run of `block_bytes` bytes: adapters copy whole blocks and never interpret them. A block below
`computed // block_tokens` is full and never changes again while its session lives.

Capacity. The coordinator and the worker keep a ledger: the budgets of all sessions, reserved ones
included, never exceed `usable_blocks`. So an engine never has to preempt; if it does, `StepResult` says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from swapd.messages.from_worker import EngineInfo, Finish
from swapd.messages.generation import GenerationSpec


class StepToken(NamedTuple):
    """One new token of one generation; with `finish`, it was the last and the engine has freed the rest."""

    key: str
    token_id: int
    finish: Finish | None


class StepResult(NamedTuple):
    """What one engine step did. `batch` is (key, positions computed) in the engine's batch order.

    `rebuilt`: generations that came without all of their KV and gave their first token in this step, with
    the positions below N - 1 that had to be computed for them (H209).
    """

    tokens: Sequence[StepToken]
    batch: Sequence[tuple[str, int]]
    preempted: Sequence[str] = ()
    rebuilt: Sequence[tuple[str, int]] = ()


class Arrival(NamedTuple):
    """A reserved generation whose KV has come: all its output tokens so far, at least one.

    `computed`: positions whose KV is there; None: all below N - 1. What is missing is computed as prefill.
    """

    key: str
    outputs: Sequence[int]
    computed: int | None = None


class Engine(Protocol):
    """An inference engine that can hand a running generation over."""

    @property
    def info(self) -> EngineInfo:
        """Constant facts (any thread)."""

    def start(self, key: str, spec: GenerationSpec, outputs: Sequence[int]) -> None:
        """Queue a generation; with `outputs` it is rebuilt by prefill over prompt and outputs (replay)."""

    def runnable(self) -> bool:
        """Whether a step would do work."""

    def step(self) -> StepResult:
        """Run one step. Raises whatever the engine raises: the worker then treats it as dead."""

    def hold(self, key: str) -> None:
        """Take a decoding generation out of the following steps; its blocks stay."""

    def unhold(self, key: str) -> None:
        """Put a held generation back; nothing is recomputed."""

    def remove(self, key: str) -> None:
        """Free a generation in any phase: queued, decoding, held, reserved. Unknown keys are ignored."""

    def reserve(self, key: str, spec: GenerationSpec) -> None:
        """Allocate blocks for the whole budget, in no queue. Raises `SwapdError(TARGET_FULL)`."""

    def activate(self, arrivals: Sequence[Arrival]) -> None:
        """Let reserved generations go on. Those with all KV below N - 1 enter the next step together.

        One with less waits for its prefill like a queued one, and keeps the blocks that it has (B24).
        """

    def set_prefill(self, on: bool) -> None:
        """With `on` false, steps compute no prefill chunk at all, of running or queued generations."""

    def block_table(self, key: str) -> tuple[int, ...]:
        """The generation's block ids in order of position."""

    def computed(self, key: str) -> int:
        """Positions of KV computed so far; 0 while queued."""

    def decoding(self, key: str) -> bool:
        """Whether prefill is finished and at least one token came out."""

    def outputs(self, key: str) -> tuple[int, ...]:
        """The output tokens that the engine decodes on from: all decode state is a function of them (H89)."""

    def read_block(self, block: int, into: memoryview) -> None:
        """Copy a block out; `into` has `block_bytes` (any thread, beside a step)."""

    def write_block(self, block: int, data: memoryview) -> None:
        """Copy a block in; only reserved blocks may be written (any thread, beside a step)."""

    def free_blocks(self) -> int:
        """Blocks that a new generation could have."""

    def recomputed(self) -> int:
        """Positions computed by prefill for generations that came without all of their KV, since start."""

    def recomputed_for(self, key: str) -> int:
        """Of those, what a generation has cost so far that has not given its first token; 0 for any other."""

    def close(self) -> None:
        """Give everything back."""
