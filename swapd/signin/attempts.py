"""How soon somebody who gave a wrong token may try again. Pure: the time is passed in.

Each peer has a few tries free; then it waits, twice as long after each further failure. While it waits its
tokens are not even looked at. A peer is an IPv4 address or an IPv6 network of 64 bits.

Over all peers failures fill a level that drains with time. While it is high somebody guesses from many
addresses: a peer then has one try, and its first wait is long. The level never makes a peer wait that has
not failed itself, so an attacker elsewhere locks nobody out; for who shares the attacker's address, such as
another user of this machine, there is the one-time link, which is not counted here.
"""

from __future__ import annotations

import ipaddress
from typing import Final, NamedTuple

FREE_TRIES: Final = 5
FIRST_WAIT_S: Final = 1.0
MAX_WAIT_S: Final = 900.0
FORGET_S: Final = 3600.0
"""A peer that failed for the last time so long ago starts afresh."""
MAX_PEERS: Final = 1024
"""Who failed least recently is forgotten."""

CALM_LEVEL: Final = 30.0
"""Failures over all peers that mean nothing yet."""
MAX_LEVEL: Final = 100.0
DRAIN_PER_S: Final = 1 / 6
"""So the highest level is calm again after seven minutes."""
DOUBLE_EVERY: Final = 10.0
"""Each so many failures above the calm level double the first wait."""


class _Peer(NamedTuple):
    failures: int
    failed_at: float
    until: float


def peer_of(address: str | None) -> str:
    """What counts as one peer: a home has a whole IPv6 network, so that is one."""
    try:
        ip = ipaddress.ip_address(address or "")
    except ValueError:
        return "unknown"
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return str(ip.ipv4_mapped)
        return str(ipaddress.ip_network((ip.packed[:8] + bytes(8), 64)))
    return str(ip)


class Attempts:
    """The failures of the last hour. Times are of one monotonic clock."""

    def __init__(self) -> None:
        # In the order of their last failure.
        self._peers: dict[str, _Peer] = {}
        self._level = 0.0
        self._level_at = 0.0

    def __len__(self) -> int:
        return len(self._peers)

    def level(self, now: float) -> float:
        """How much is being guessed, from 0 to `MAX_LEVEL`."""
        return max(self._level - DRAIN_PER_S * max(now - self._level_at, 0.0), 0.0)

    def wait_s(self, peer: str, now: float) -> float:
        """How long this peer must wait before its next try; 0: not at all."""
        known = self._peers.get(peer)
        return max(known.until - now, 0.0) if known is not None else 0.0

    def failed(self, peer: str, now: float) -> float:
        """Count a wrong try; return how long this peer waits now."""
        known = self._peers.pop(peer, None)
        before = known.failures if known is not None and now - known.failed_at < FORGET_S else 0
        self._level, self._level_at = min(self.level(now) + 1, MAX_LEVEL), now
        excess = self._level - CALM_LEVEL
        free = FREE_TRIES if excess <= 0 else 1
        first_s = FIRST_WAIT_S * 2 ** (max(excess, 0) / DOUBLE_EVERY)
        # The exponent is bounded, because a power of two beyond it is no float.
        beyond = min(before + 1 - free, 32)
        wait_s = min(first_s * 2**beyond, MAX_WAIT_S) if beyond >= 0 else 0.0
        self._peers[peer] = _Peer(before + 1, now, now + wait_s)
        while len(self._peers) > MAX_PEERS:
            del self._peers[next(iter(self._peers))]
        return wait_s

    def succeeded(self, peer: str) -> None:
        """Forget the failures of a peer that has the token after all."""
        self._peers.pop(peer, None)
