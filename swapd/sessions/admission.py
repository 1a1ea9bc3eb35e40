"""Letting a new session in: choose a worker, reserve there, store, answer (H1, H41-H46).

The worker has reserved and the row is durable before the caller hears of it. In between a crash leaves at
most a reservation of a session that the store does not know: the worker is told to drop it when the
coordinator attaches again (H149).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
import trio

from swapd.config import Config
from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import Started
from swapd.messages.to_worker import Cancel, Start
from swapd.migration.ledger import CapacityLedger
from swapd.sessions.live import LiveSession
from swapd.sessions.record import SessionRecord
from swapd.sessions.requests import check_new_session
from swapd.sessions.table import SessionTable
from swapd.sessions.tokenizer import Tokenizer
from swapd.store.sessions import insert_session
from swapd.views import Caller, NewSession
from swapd.worker.link import WorkerLink

INLINE_TEXT_CHARS = 8192
"""Longer prompts are tokenised in a thread: they would hold up every stream."""


Closer = Literal["drain", "device", "quarantine"]
"""Who keeps a worker closed: a drain of it, its device, which is not lent, or an import that failed there."""


class Admission:
    """The door. A worker takes new sessions while nobody keeps it closed."""

    def __init__(
        self,
        config: Config,
        table: SessionTable,
        ledger: CapacityLedger,
        tokenizer: Tokenizer,
        links: dict[str, WorkerLink],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.refusal: Callable[[], SwapdError | None] = lambda: None
        """Why no device is lent, if that is why nobody admits."""
        self.stopped: Callable[[], SwapdError | None] = lambda: None
        """Why nobody at all is admitted, if an operator stopped admission (H163); moves go on."""
        self.keepers: list[Callable[[str], int]] = []
        """Each says how many tokens of a parked session a worker's next room is kept for; 0: none (B3)."""
        self._closed: dict[str, dict[Closer, str]] = {}
        self._config = config
        self._table = table
        self._ledger = ledger
        self._tokenizer = tokenizer
        self._links = links
        self._wall = wall
        self._arriving = 0

    def admitting(self, worker: str) -> bool:
        """Whether the worker takes new sessions, from clients or from other workers (H44)."""
        link = self._links.get(worker)
        return link is not None and link.state == "ready" and worker not in self._closed

    def kept_for(self, worker: str) -> int:
        """Tokens that must still fit beside a new session: who waits for that room comes first (B3)."""
        return max((kept_for(worker) for kept_for in self.keepers), default=0)

    def close(self, worker: str, by: Closer, reason: str) -> None:
        """Keep a worker closed, at once; each closer has one reason a worker, the latest."""
        self._closed.setdefault(worker, {})[by] = reason

    def reopen(self, worker: str, by: Closer) -> None:
        """Take one closer's reason away; the worker stays closed while another one has one."""
        reasons = self._closed.get(worker)
        if reasons is not None and reasons.pop(by, None) is not None and not reasons:
            del self._closed[worker]

    @property
    def closed(self) -> dict[str, str]:
        """The workers that take nothing new, and why."""
        return {worker: "; ".join(reasons.values()) for worker, reasons in self._closed.items()}

    async def admit(self, caller: Caller, request: NewSession) -> LiveSession:
        """Check, place, start and store a session. Raises the codes under "requests" and "admission"."""
        record = await self._record(caller, request)
        if (stopped := self.stopped()) is not None:
            raise stopped
        ceiling = self._config.max_active_sessions
        if ceiling is not None and len(list(self._table)) + self._arriving >= ceiling:
            raise SwapdError(Code.CAPACITY, f"{ceiling} sessions are active")
        self._arriving += 1
        try:
            return await self._place(record)
        finally:
            self._arriving -= 1

    async def _place(self, record: SessionRecord) -> LiveSession:
        tokens = record.spec().budget
        open_links = [link for link in self._links.values() if self.admitting(link.name)]
        if not open_links:
            refusal = self.refusal()
            if refusal is not None:
                raise refusal
            reasons = "; ".join(sorted(set(self.closed.values()))) or "no worker is ready"
            raise SwapdError(Code.NO_ADMITTING_WORKER, reasons)
        for link in sorted(open_links, key=self._load):
            owner = link.owner
            if (stopped := self.stopped()) is not None:
                raise stopped  # H163: stopped while another worker was asked
            if not self.admitting(link.name):
                continue  # closed while another worker was asked (H51)
            kept = self.kept_for(link.name)
            if owner is None or not self._ledger.charge(link.name, record.id, tokens, beside=kept):
                continue
            try:
                placed = msgspec.structs.replace(record, owner=owner)
                return await self._start(link, placed)
            except SwapdError as error:
                self._ledger.free(link.name, record.id)
                if error.code not in (Code.CAPACITY, Code.TARGET_LOST, Code.TIMEOUT):
                    raise
            except BaseException:
                self._ledger.free(link.name, record.id)
                raise
        capacities = [self._ledger.worker(link.name) for link in open_links]
        if not any(capacity is not None and capacity.could_hold(tokens) for capacity in capacities):
            raise SwapdError(Code.BUDGET_EXCEEDED, "no worker's KV memory can hold it")
        kept_back = any(self.kept_for(link.name) for link in open_links)
        raise SwapdError(Code.CAPACITY, "a parked session comes first" if kept_back else "")

    async def _start(self, link: WorkerLink, record: SessionRecord) -> LiveSession:
        try:
            await link.request(Start(record.spec(), record.epoch, 0), Started)
            # Shielded, one disk write long: a row that nobody here knows of would stay open until a restart.
            with trio.CancelScope(shield=True):
                await self._table.store.commit(lambda db: insert_session(db, record))
        except BaseException:
            link.tell(Cancel(record.id, record.epoch))
            raise
        session = self._table.add(record)
        self._table.on_event("session", session)
        if not link.is_owner(record.owner):
            # The worker went while the row was written; its loss was told before we were in the table.
            self._table.on_orphan(session)
        elif session.producing:
            self._table.regrant(session)  # it asked to go on alone: no reader has to come first (H32)
        return session

    def _load(self, link: WorkerLink) -> tuple[int, str]:
        capacity = self._ledger.worker(link.name)
        return (capacity.committed if capacity is not None else 0, link.name)

    async def _record(self, caller: Caller, request: NewSession) -> SessionRecord:
        limits, model = self._config.limits, self._config.models[0]
        check_new_session(request, limits)
        if request.model is not None and request.model != model.alias:
            raise SwapdError(Code.MODEL_UNKNOWN)
        prompt = await self._tokens(request.prompt)
        if not prompt:
            raise SwapdError(Code.PROMPT_EMPTY)
        if max(prompt) >= self._tokenizer.vocab_size:
            raise SwapdError(Code.INVALID_REQUEST, f"token ids go up to {self._tokenizer.vocab_size - 1}")
        if limits.max_new_tokens is not None and request.max_new_tokens > limits.max_new_tokens:
            raise SwapdError(Code.INVALID_REQUEST, f"max_new_tokens goes up to {limits.max_new_tokens}")
        context = self.context()
        if len(prompt) + request.max_new_tokens > context:
            raise SwapdError(Code.BUDGET_EXCEEDED, f"{len(prompt)} + {request.max_new_tokens} of {context}")
        sampling = request.sampling()
        if sampling.seed is None:
            sampling = msgspec.structs.replace(sampling, seed=secrets.randbits(63))
        return SessionRecord(
            id=f"ses_{secrets.token_hex(12)}",
            namespace=caller.namespace,
            model=model.alias,
            state="created",
            prompt=tuple(prompt),
            sampling=sampling,
            max_new_tokens=request.max_new_tokens,
            stop=tuple(request.stop),
            allow_replay_fallback=request.allow_replay_fallback,
            on_disconnect=request.on_disconnect or "pause",
            max_lifetime_s=min(request.max_lifetime_s or limits.max_lifetime_s, limits.max_lifetime_s),
            owner=None,
            epoch=1,
            accepted=0,
            created_at=self._wall(),
        )

    def context(self) -> int:
        """Prompt and budget together, in tokens (H6): the smallest of what is configured and connected."""
        sizes = [link.ready.info.max_model_len for link in self._links.values() if link.ready is not None]
        return min(sizes, default=self._config.models[0].max_model_len)

    async def _tokens(self, prompt: str | list[int]) -> Sequence[int]:
        if isinstance(prompt, list):
            return prompt
        if len(prompt) <= INLINE_TEXT_CHARS:
            return self._tokenizer.encode(prompt)
        return await trio.to_thread.run_sync(self._tokenizer.encode, prompt)
