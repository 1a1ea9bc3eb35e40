"""Coordinator → worker. Every message is idempotent: a repeat answers as the first did."""

from __future__ import annotations

import msgspec

from swapd.messages.generation import GenerationSpec, Lease, Manifest


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First message of a coordinator; a higher generation fences all lower ones. Answer: `Ready`."""

    expected_incarnation: str | None = None


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Begin decoding. `outputs` are accepted tokens to rebuild from (replay); `limit` as in `Grant`.

    `salvage` names a move that reserved room here for this session under this epoch, and whose source was
    lost: what it had copied is taken up, if all is well with it, and only the rest is computed (B24).
    Answer: `Started`, or `Refused` with `capacity`.
    """

    spec: GenerationSpec
    epoch: int
    limit: int
    outputs: tuple[int, ...] = ()
    salvage: str = ""


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """Tokens up to `accepted` are durable and may be forgotten; up to `limit` may be computed (B9)."""

    session: str
    epoch: int
    accepted: int
    limit: int


class Credit(msgspec.Struct, frozen=True, tag="credit"):
    """Latest-value grants for many sessions. No answer."""

    grants: tuple[Grant, ...]


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """End a session and free its KV, whatever its phase. Answer: `Done`."""

    session: str
    epoch: int


class Reserve(msgspec.Struct, frozen=True, tag="reserve"):
    """Allocate the target's blocks for the whole budget. Answer: `Reserved` or `Refused`.

    `epoch` is the one the session would get here; the source runs under `epoch - 1`. An import that is
    not complete `ttl_s` after its last message is freed by the worker itself (decision 3).
    """

    move: str
    spec: GenerationSpec
    epoch: int
    lease: Lease
    ttl_s: float


class Export(msgspec.Struct, frozen=True, tag="export"):
    """Copy full blocks from `from_block` up to the published frontier into the lease. Answer: `Exported`."""

    move: str
    session: str
    epoch: int
    lease: Lease
    from_block: int


class Import(msgspec.Struct, frozen=True, tag="import"):
    """Check and copy the manifest's blocks into the reserved ones. Answer: `Imported` or `Refused`."""

    move: str
    manifest: Manifest


class Quiesce(msgspec.Struct, frozen=True, tag="quiesce"):
    """Set prefill aside (`on`) or take it up again. Nested batches count. Answer: `Quiesced`."""

    batch: str
    on: bool


class FreezeItem(msgspec.Struct, frozen=True):
    move: str
    session: str
    epoch: int
    lease: Lease
    from_block: int


class Freeze(msgspec.Struct, frozen=True, tag="freeze"):
    """Hold these sessions at one step boundary and export their tails. Answer: `Frozen`.

    A session with more than one block past `from_block` goes on, `not_ready` (B20).
    """

    batch: str
    items: tuple[FreezeItem, ...]


class PrepareItem(msgspec.Struct, frozen=True):
    """`outputs` are all tokens generated so far; `limit` as in `Grant`."""

    move: str
    session: str
    epoch: int
    manifest: Manifest
    outputs: tuple[int, ...]
    limit: int


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """Import and verify the tails, then enter the next engine step together, tokens held back.

    Answer: `Prepared`, sent when the step is entered, not when it ends.
    """

    batch: str
    items: tuple[PrepareItem, ...]


class SessionEpoch(msgspec.Struct, frozen=True, array_like=True):
    session: str
    epoch: int


class Activate(msgspec.Struct, frozen=True, tag="activate"):
    """Permission to emit (decision 1): lets the tokens of prepared sessions out. Answer: `Activated`."""

    items: tuple[SessionEpoch, ...]


class Release(msgspec.Struct, frozen=True, tag="release"):
    """Free the source's copy under exactly this epoch. Answer: `Done`."""

    session: str
    epoch: int


class Resume(msgspec.Struct, frozen=True, tag="resume"):
    """Go on decoding a frozen session. `new_epoch` > epoch is a re-home (B22). Answer: `Done`."""

    session: str
    epoch: int
    new_epoch: int | None = None


class Discard(msgspec.Struct, frozen=True, tag="discard"):
    """Throw away a reservation or a prepared import with its tokens. Answer: `Done`."""

    move: str


class InventoryQuery(msgspec.Struct, frozen=True, tag="inventory"):
    """What do you hold? Answer: `Inventory`."""


class Resend(msgspec.Struct, frozen=True, tag="resend"):
    """Send a session's tokens after `accepted` again, then go on within `limit`. Answer: `Done`."""

    session: str
    epoch: int
    accepted: int
    limit: int


class Schedule(msgspec.Struct, frozen=True, tag="schedule"):
    """Return and forget the recorded step schedule (benches only). Answer: `ScheduleLog`."""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Free everything and exit with 0. Answer: `Done`."""


ToWorker = (
    Hello
    | Start
    | Credit
    | Cancel
    | Reserve
    | Export
    | Import
    | Quiesce
    | Freeze
    | Prepare
    | Activate
    | Release
    | Resume
    | Discard
    | InventoryQuery
    | Resend
    | Schedule
    | Stop
)
