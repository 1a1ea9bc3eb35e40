"""What is durable about sessions, their moves and their drains. Pure; `swapd.store` reads and writes these.

Times `..._at` are wall clock seconds: they must mean the same after a restart.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from swapd.messages.generation import GenerationSpec, Owner, Sampling
from swapd.sessions.lifecycle import TerminalState, is_terminal
from swapd.views import (
    Asker,
    DrainMode,
    DrainOrigin,
    DrainState,
    OnDisconnect,
    Outcome,
    SessionOutcome,
    SessionState,
)

MoveState = Literal["planned", "committed", "finished"]


class Terminal(msgspec.Struct, frozen=True):
    """How a session ended. `finish_reason` is for `completed`, `code` for the other two."""

    state: TerminalState
    finish_reason: str | None
    code: str | None
    at: float


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One row of sessions. `accepted` output tokens are durable; `owner` may append under `epoch` (H19).

    Epoch 0 with no owner is a session that was never given to a worker.
    """

    id: str
    namespace: str
    model: str
    state: SessionState
    prompt: tuple[int, ...]
    sampling: Sampling
    max_new_tokens: int
    stop: tuple[str, ...]
    allow_replay_fallback: bool
    on_disconnect: OnDisconnect
    max_lifetime_s: float
    owner: Owner | None
    epoch: int
    accepted: int
    created_at: float
    finished_at: float | None = None
    finish_reason: str | None = None
    code: str | None = None

    @property
    def terminal(self) -> bool:
        return is_terminal(self.state)

    def spec(self) -> GenerationSpec:
        """What an engine needs. The salt keeps one namespace's prefix cache from another's."""
        return GenerationSpec(
            session=self.id,
            prompt=self.prompt,
            sampling=self.sampling,
            max_new_tokens=self.max_new_tokens,
            salt=namespace_salt(self.namespace),
        )


class MoveRecord(msgspec.Struct, frozen=True):
    """One move of one session. `epoch` is the source's; a committed target runs under `epoch + 1`."""

    id: str
    session: str
    drain: str | None
    source: Owner
    target: Owner
    epoch: int
    phase: str
    state: MoveState
    outcome: Outcome | None
    reason: str | None
    stats: SessionOutcome | None
    created_at: float
    finished_at: float | None


class DrainRecord(msgspec.Struct, frozen=True):
    """One drain of one worker, with what became of each session that was on it."""

    id: str
    worker: str
    state: DrainState
    origin: DrainOrigin
    deadline_s: float
    created_at: float
    finished_at: float | None
    sessions: tuple[SessionOutcome, ...]
    mode: DrainMode = "native"
    askers: tuple[Asker, ...] = ()
    """Empty in records from before there were any: then whoever `origin` names asked."""
    time_to_clear_s: float | None = None


def namespace_salt(namespace: str) -> str:
    """A digest: workers need to tell namespaces apart, not to know their names."""
    return hashlib.sha256(namespace.encode()).hexdigest()[:32]
