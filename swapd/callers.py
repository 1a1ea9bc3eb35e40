"""Who asks: credentials of the configuration, and what each kind of caller may do (H9, B34)."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from swapd.config import CredentialConfig
from swapd.errors import Code, SwapdError
from swapd.views import Caller


class Credentials:
    """The configured bearer tokens, as digests."""

    def __init__(self, credentials: Iterable[CredentialConfig]) -> None:
        self._known = [
            (bytes.fromhex(each.token_sha256) if each.token_sha256 else _digest(each.token or ""), each)
            for each in credentials
        ]

    def authenticate(self, token: str | None) -> Caller:
        """Compare with every credential, whatever matches first: time tells nothing (B34).

        Raises `unauthenticated`.
        """
        found: Caller | None = None
        digest = _digest(token or "")
        for known, credential in self._known:
            if hmac.compare_digest(known, digest) and token:
                found = Caller(credential.namespace, credential.is_operator)
        if found is None:
            raise SwapdError(Code.UNAUTHENTICATED)
        return found


def require_operator(caller: Caller) -> None:
    """Who may change the service as a whole."""
    if not caller.is_operator:
        raise SwapdError(Code.OPERATOR_REQUIRED)


def require_reader(caller: Caller) -> None:
    """Who may look at the service as a whole: operators, and viewers of the console."""
    if not (caller.is_operator or caller.is_viewer):
        raise SwapdError(Code.OPERATOR_REQUIRED)


def refuse_viewer(caller: Caller) -> None:
    """A viewer changes nothing, and has no text of its own to read."""
    if caller.is_viewer:
        raise SwapdError(Code.OPERATOR_REQUIRED)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
