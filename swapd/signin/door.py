"""The console's door: who is signed in, who may come in, and who has to go.

The store is the truth: a sign-in is durable before its cookie leaves, and one that ended here is over at once
and in the store with the next write. Only where the store has failed does one hold without it, until swapd is
started again: a broken disk must not keep owners from taking their devices back. Nothing of a token, a code
or a cookie is logged.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import time
from collections.abc import Callable
from typing import Final, Protocol

import trio

from swapd.errors import Code, SwapdError
from swapd.signin.attempts import Attempts, peer_of
from swapd.signin.codes import VALID_S, OneTimeCodes
from swapd.signin.rules import (
    LASTS_S,
    TOUCH_S,
    SignInRecord,
    crowded_out,
    csrf_of,
    digest,
    is_over,
)
from swapd.store.sign_ins import add_sign_in, end_all_sign_ins, end_sign_ins, load_sign_ins, see_sign_in
from swapd.store.writer import Store
from swapd.views import Caller, ConsoleLink, NewSignIn, Role, SignedIn

CALLERS: Final[dict[Role, Caller]] = {
    # No configured namespace can have such a name: nobody's text is theirs (A27).
    "owner": Caller("(owner)", is_operator=True),
    "viewer": Caller("(viewer)", is_viewer=True),
}
MAX_SECRET_CHARS: Final = 512
LOOK_EVERY_S: Final = 5.0
"""How soon a removed token file is noticed."""

log = logging.getLogger("swapd.signin")


class Tokens(Protocol):
    """Where the two tokens come from; see `TokenFiles`."""

    def load(self) -> dict[Role, str]: ...

    def renew(self) -> dict[Role, str]: ...


class ConsoleDoor:
    """Sign-in and sign-out. `load` once, before anybody is let in."""

    def __init__(
        self,
        store: Store,
        tokens: Tokens,
        *,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._tokens = tokens
        self._wall = wall
        self._clock = clock
        self._token_digests: dict[Role, bytes] = {}
        self._signed_in: dict[bytes, SignInRecord] = {}
        self._codes = OneTimeCodes()
        self._attempts = Attempts()
        self._address = "http://127.0.0.1:8080"
        self._token_turn = trio.Lock()
        self._begin_turn = trio.Lock()

    async def load(self) -> None:
        """Take up tokens and sign-ins. Raises `config_invalid` for a token file that cannot be one."""
        self._know(await trio.to_thread.run_sync(self._tokens.load))
        self._signed_in = {record.id: record for record in await self._store.read(load_sign_ins)}
        await self._prune()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Notice removed and changed token files, and forget what is over, until cancelled."""
        told = False
        task_status.started()
        while True:
            await trio.sleep(LOOK_EVERY_S)
            try:
                async with self._token_turn:
                    self._know(await trio.to_thread.run_sync(self._tokens.load))
                told = False
            except SwapdError as error:
                # The old token holds: a slip in a file must not sign everybody out.
                if not told:
                    log.error("a token file cannot be used", extra={"code": error.code})
                told = True
            try:
                await self._prune()
            except SwapdError as error:
                log.warning("sign-ins that are over cannot be removed", extra={"code": error.code})

    def listens(self, host: str, port: int) -> None:
        """Say where the console answers, for the links."""
        shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        self._address = f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"

    # Coming in and going ---------------------------------------------------------------------

    async def sign_in(self, secret: str, peer: str | None) -> NewSignIn:
        """Let a browser in by a one-time code or a token; durable before it returns, if the store can write.

        Raises `sign_in_refused`, and `sign_in_limited` for a peer that has to wait; a code that is good is
        taken even then. Cancelled, a code is used up all the same.
        """
        secret = secret.strip()
        given = digest(secret) if 0 < len(secret) <= MAX_SECRET_CHARS else b""
        who, now = peer_of(peer), self._clock()
        role = self._codes.take(given, now)
        if role is None:
            if wait_s := self._attempts.wait_s(who, now):
                raise SwapdError(Code.SIGN_IN_LIMITED, retry_after_s=wait_s)
            role = self._role_of(given)
        if role is None:
            wait_s = self._attempts.failed(who, now)
            log.warning("a sign-in was refused", extra={"delay_s": round(wait_s, 1)})
            raise SwapdError(Code.SIGN_IN_REFUSED, retry_after_s=wait_s or None)
        self._attempts.succeeded(who)
        return await self._begin(role)

    def signed_in(self, cookie: str | None) -> SignedIn:
        """Who has this cookie. Raises `unauthenticated`."""
        if cookie is None or not 0 < len(cookie) <= MAX_SECRET_CHARS:
            raise SwapdError(Code.UNAUTHENTICATED)
        record, now = self._signed_in.get(digest(cookie)), self._wall()
        if record is None or not self._holds(record, now):
            raise SwapdError(Code.UNAUTHENTICATED)
        if not 0 <= now - record.seen_at < TOUCH_S:
            seen = SignInRecord(record.id, record.role, record.token, record.created_at, now)
            self._signed_in[record.id] = seen
            self._store.post(lambda db: see_sign_in(db, seen.id, now), _no_matter)
        return SignedIn(record.role, CALLERS[record.role], csrf_of(cookie))

    async def sign_out(self, cookie: str | None) -> None:
        """End a sign-in, here at once and durably when it returns. None of that cookie: nothing changes.

        Raises `store_failed`: it is over here, and only its browser can see to it that it stays so.
        """
        record = self._signed_in.pop(digest(cookie or ""), None)
        if record is not None:
            await self._store.commit(lambda db: end_sign_ins(db, [record.id]))

    async def sign_out_everywhere(self, caller: Caller) -> int:
        """End every sign-in, the owner's own as well; says how many. Raises `operator_required`."""
        _owner(caller)
        ended = len(self._signed_in)
        self._signed_in.clear()
        self._codes.clear()
        # Who is being let in just now came before this: it ends as well, here and in the store.
        async with self._begin_turn:
            self._signed_in.clear()
            await self._store.commit(end_all_sign_ins)
        log.warning("everybody was signed out", extra={"count": ended})
        return ended

    # Keys ------------------------------------------------------------------------------------

    def link(self, caller: Caller, role: Role) -> ConsoleLink:
        """Make a one-time link. Raises `operator_required`.

        The code is the fragment of its address, which browsers send to nobody: no log of any server or
        proxy and no Referer has it.
        """
        _owner(caller)
        code = secrets.token_urlsafe(32)
        self._codes.add(digest(code), role, self._clock())
        return ConsoleLink(f"{self._address}/sign-in#{code}", role, VALID_S)

    async def new_tokens(self, caller: Caller) -> None:
        """Make both tokens anew and end every sign-in and code. Raises `operator_required`."""
        _owner(caller)
        # Shielded, two small files long: what is in the files must be what holds here.
        with trio.CancelScope(shield=True):
            async with self._token_turn:
                self._know(await trio.to_thread.run_sync(self._tokens.renew))
        await self.sign_out_everywhere(caller)

    def _know(self, tokens: dict[Role, str]) -> None:
        known = {role: digest(token) for role, token in tokens.items()}
        if self._token_digests and known != self._token_digests:
            self._codes.clear()
            log.warning("the console's tokens have changed")
        self._token_digests = known

    def _role_of(self, given: bytes) -> Role | None:
        """Both tokens are compared, whichever matches first: time tells nothing (B34)."""
        found: Role | None = None
        for role, known in self._token_digests.items():
            if hmac.compare_digest(known, given):
                found = role
        return found

    # Sign-ins ----------------------------------------------------------------------------------

    def _holds(self, record: SignInRecord, now: float) -> bool:
        return record.token == self._token_digests.get(record.role) and not is_over(record, now)

    async def _begin(self, role: Role) -> NewSignIn:
        # Shielded, one disk write long: a sign-in that is durable is one that we know of.
        with trio.CancelScope(shield=True):
            async with self._begin_turn:
                cookie, now = secrets.token_urlsafe(32), self._wall()
                record = SignInRecord(digest(cookie), role, self._token_digests[role], now, now)
                ended = [each.id for each in crowded_out(self._signed_in.values())]
                try:
                    await self._store.commit(lambda db: add_sign_in(db, record, ended))
                except SwapdError as error:
                    if error.code is not Code.STORE_FAILED:
                        raise
                    log.warning("a sign-in holds only until the next start", extra={"code": error.code})
                for each in ended:
                    self._signed_in.pop(each, None)
                self._signed_in[record.id] = record
        log.info("signed in to the console", extra={"kind": role})
        return NewSignIn(cookie, role, LASTS_S)

    async def _prune(self) -> None:
        """Forget what is over."""
        now = self._wall()
        over = [record.id for record in self._signed_in.values() if not self._holds(record, now)]
        for each in over:
            self._signed_in.pop(each)
        if over:
            await self._store.commit(lambda db: end_sign_ins(db, over))


def _owner(caller: Caller) -> None:
    if not caller.is_operator:
        raise SwapdError(Code.OPERATOR_REQUIRED)


def _no_matter(result: object) -> None:
    """When a sign-in was last used may be lost: it ends a minute earlier."""
