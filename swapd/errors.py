"""Every way a request can be refused: one stable code, one sentence, one HTTP status each.

A code is part of the public interface: it is never renamed and never carries data. The sentence
tells a person what to do. `SwapdError.detail` may add numbers and names, never a secret, a prompt,
a token id or generated text.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class Code(StrEnum):
    """Stable reason codes, as clients, operators and logs see them."""

    # requests
    UNAUTHENTICATED = "unauthenticated"
    OPERATOR_REQUIRED = "operator_required"
    SIGN_IN_REFUSED = "sign_in_refused"
    SIGN_IN_LIMITED = "sign_in_limited"
    NOT_FOUND = "not_found"
    SESSION_UNKNOWN = "session_unknown"
    WORKER_UNKNOWN = "worker_unknown"
    DRAIN_UNKNOWN = "drain_unknown"
    DEVICE_UNKNOWN = "device_unknown"
    CERTIFICATE_UNKNOWN = "certificate_unknown"
    MODEL_UNKNOWN = "model_unknown"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    BODY_TOO_LARGE = "body_too_large"
    MALFORMED_JSON = "malformed_json"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    INVALID_REQUEST = "invalid_request"
    PROMPT_EMPTY = "prompt_empty"
    BUDGET_EXCEEDED = "budget_exceeded"
    UNSUPPORTED_PARAMETER = "unsupported_parameter"
    CURSOR_INVALID = "cursor_invalid"
    CURSOR_AHEAD = "cursor_ahead"
    IDEMPOTENCY_CONFLICT = "idempotency_conflict"
    BODY_TIMEOUT = "body_timeout"
    HOST_REFUSED = "host_refused"
    ORIGIN_REFUSED = "origin_refused"
    CSRF_REFUSED = "csrf_refused"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    # admission
    CAPACITY = "capacity"
    NO_ADMITTING_WORKER = "no_admitting_worker"
    NOT_READY = "not_ready"
    DEVICE_NOT_LENT = "device_not_lent"
    DEVICE_CALIBRATING = "device_calibrating"
    STOPPING = "stopping"
    ADMISSION_STOPPED = "admission_stopped"
    # drains and moves
    DRAIN_EXISTS = "drain_exists"
    MIGRATION_DISABLED = "migration_disabled"
    RESERVATIONS_OPEN = "reservations_open"
    NO_EDGE = "no_edge"
    CERTIFICATE_EXPIRED = "certificate_expired"
    CERTIFICATE_REVOKED = "certificate_revoked"
    NO_TARGET = "no_target"
    REPLAY_NOT_PERMITTED = "replay_not_permitted"
    ARENA_UNAVAILABLE = "arena_unavailable"
    ARENA_TOO_SMALL = "arena_too_small"
    ARENA_EXHAUSTED = "arena_exhausted"
    TARGET_FULL = "target_full"
    PARK_FULL = "park_full"
    PARKING_OFF = "parking_off"
    NOT_ELIGIBLE = "not_eligible"
    ALREADY_FINISHED = "already_finished"
    PRECOPY_DIVERGED = "precopy_diverged"
    CHECKSUM_MISMATCH = "checksum_mismatch"
    MANIFEST_MISMATCH = "manifest_mismatch"
    LEASE_STALE = "lease_stale"
    LEASE_EXPIRED = "lease_expired"
    STEP_TIMEOUT = "step_timeout"
    SOURCE_LOST = "source_lost"
    TARGET_LOST = "target_lost"
    TARGET_FAILED = "target_failed"
    DEADLINE = "deadline"
    DRAIN_CANCELLED = "drain_cancelled"
    SESSION_CANCELLED = "session_cancelled"
    NO_READER = "no_reader"
    COORDINATOR_RESTART = "coordinator_restart"
    # ends of a session
    RECOVERY_UNAVAILABLE = "recovery_unavailable"
    DEVICE_TAKEN_BACK = "device_taken_back"
    LIFETIME_EXCEEDED = "lifetime_exceeded"
    DISCONNECT_GRACE_EXPIRED = "disconnect_grace_expired"
    ENGINE_FAILED = "engine_failed"
    # messages between processes
    FRAME_TOO_LARGE = "frame_too_large"
    FRAME_MALFORMED = "frame_malformed"
    VERSION_UNSUPPORTED = "version_unsupported"
    FENCED = "fenced"
    EPOCH_STALE = "epoch_stale"
    TIMEOUT = "timeout"
    # start
    COORDINATOR_LOCK_HELD = "coordinator_lock_held"
    WORKER_LOCK_HELD = "worker_lock_held"
    SOCKET_PATH_TOO_LONG = "socket_path_too_long"
    CONFIG_INVALID = "config_invalid"
    CERTIFICATE_UNREADABLE = "certificate_unreadable"
    PLATFORM_UNSUPPORTED = "platform_unsupported"
    MODEL_MISSING = "model_missing"
    MODEL_UNSUPPORTED = "model_unsupported"
    ENGINE_UNCHECKED = "engine_unchecked"
    ENGINE_REFUSED = "engine_refused"
    STORE_FAILED = "store_failed"
    STORE_STUCK = "store_stuck"
    DISK_FULL = "disk_full"
    DISK_ERROR = "disk_error"
    SCHEMA_NEWER = "schema_newer"
    CALIBRATION_UNUSABLE = "calibration_unusable"
    # settings
    SETTINGS_INVALID = "settings_invalid"
    SETTINGS_CHANGED = "settings_changed"
    SETTINGS_NOT_EDITABLE = "settings_not_editable"
    SETTINGS_NOT_WRITTEN = "settings_not_written"
    INTERNAL = "internal"


class Reason(NamedTuple):
    """What a code means outside: HTTP status, whether trying again can help, and a sentence."""

    status: int
    retryable: bool
    sentence: str


REASONS: Final[dict[Code, Reason]] = {
    Code.UNAUTHENTICATED: Reason(401, False, "Send a known bearer token in the Authorization header."),
    Code.OPERATOR_REQUIRED: Reason(403, False, "This call needs an operator's token."),
    Code.SIGN_IN_REFUSED: Reason(
        401, False, "This is no code that is still good, and no token of this console."
    ),
    Code.SIGN_IN_LIMITED: Reason(
        429, True, "There were too many wrong tries from here; wait before the next."
    ),
    Code.NOT_FOUND: Reason(404, False, "There is nothing at this address."),
    Code.SESSION_UNKNOWN: Reason(404, False, "There is no such session."),
    Code.WORKER_UNKNOWN: Reason(404, False, "There is no such worker."),
    Code.DRAIN_UNKNOWN: Reason(404, False, "There is no such drain."),
    Code.DEVICE_UNKNOWN: Reason(404, False, "There is no such device."),
    Code.CERTIFICATE_UNKNOWN: Reason(404, False, "This service has no certificate of that id."),
    Code.MODEL_UNKNOWN: Reason(404, False, "This service has no model of that name."),
    Code.METHOD_NOT_ALLOWED: Reason(405, False, "This address does not answer that method."),
    Code.BODY_TOO_LARGE: Reason(413, False, "The request body is over the limit."),
    Code.MALFORMED_JSON: Reason(400, False, "The body is not valid JSON."),
    Code.UNSUPPORTED_MEDIA_TYPE: Reason(415, False, "Send the body as application/json."),
    Code.INVALID_REQUEST: Reason(422, False, "A field is missing, unknown or out of range."),
    Code.PROMPT_EMPTY: Reason(422, False, "The prompt has no tokens."),
    Code.BUDGET_EXCEEDED: Reason(422, False, "Prompt and max_new_tokens together exceed the context."),
    Code.UNSUPPORTED_PARAMETER: Reason(422, False, "This sampling parameter is not supported."),
    Code.CURSOR_INVALID: Reason(400, False, "Last-Event-ID must be a whole number, zero or more."),
    Code.CURSOR_AHEAD: Reason(409, False, "The cursor is past the last durable event."),
    Code.IDEMPOTENCY_CONFLICT: Reason(409, False, "This Idempotency-Key was used with another body."),
    Code.BODY_TIMEOUT: Reason(408, True, "The request body did not come in time."),
    Code.HOST_REFUSED: Reason(421, False, "This service does not answer under that host name."),
    Code.ORIGIN_REFUSED: Reason(403, False, "Pages of other sites may not call this service."),
    Code.CSRF_REFUSED: Reason(
        403, False, "This form is not of your present sign-in; reload the page and send it again."
    ),
    Code.TOO_MANY_CONNECTIONS: Reason(503, True, "Too many connections are open; try again later."),
    Code.CAPACITY: Reason(429, True, "All workers are full; try again later."),
    Code.NO_ADMITTING_WORKER: Reason(503, True, "No worker admits new sessions now."),
    Code.NOT_READY: Reason(503, True, "The service is not ready yet."),
    Code.DEVICE_NOT_LENT: Reason(503, True, "No device is lent to this service now."),
    Code.DEVICE_CALIBRATING: Reason(
        503, True, "The device is still learning what its owner's normal load is (calibration)."
    ),
    Code.STOPPING: Reason(503, True, "The service is stopping."),
    Code.ADMISSION_STOPPED: Reason(503, True, "The operator has stopped admission of new sessions."),
    Code.DRAIN_EXISTS: Reason(409, False, "The worker is already draining."),
    Code.MIGRATION_DISABLED: Reason(409, False, "Migration is switched off."),
    Code.RESERVATIONS_OPEN: Reason(409, True, "The worker still holds what failed moves reserved on it."),
    Code.NO_EDGE: Reason(409, False, "No plan allows a native move between these workers."),
    Code.CERTIFICATE_EXPIRED: Reason(
        409, False, "The certificate for this move has expired; the evaluation must be made anew."
    ),
    Code.CERTIFICATE_REVOKED: Reason(409, False, "An operator has revoked the certificate for this move."),
    Code.NO_TARGET: Reason(409, True, "No other worker can take the session."),
    Code.REPLAY_NOT_PERMITTED: Reason(409, False, "The session does not permit replay."),
    Code.ARENA_UNAVAILABLE: Reason(409, False, "There is no shared memory for moves."),
    Code.ARENA_TOO_SMALL: Reason(
        409, False, "The shared memory for moves cannot hold this session; raise arena_bytes."
    ),
    Code.ARENA_EXHAUSTED: Reason(409, True, "The shared memory for moves is in use; the move waits."),
    Code.TARGET_FULL: Reason(409, True, "target already holds the maximum active sessions"),
    Code.PARK_FULL: Reason(409, True, "The memory for parked sessions is full."),
    Code.PARKING_OFF: Reason(409, False, "Parking is switched off; give it memory with park_bytes."),
    Code.NOT_ELIGIBLE: Reason(409, True, "session has not reached an eligible boundary"),
    Code.ALREADY_FINISHED: Reason(409, False, "request has already finished generating"),
    Code.PRECOPY_DIVERGED: Reason(409, True, "The copy did not catch up with decoding."),
    Code.CHECKSUM_MISMATCH: Reason(409, True, "A copied block failed its checksum."),
    Code.MANIFEST_MISMATCH: Reason(
        409, False, "The manifest is of another schema, session, epoch, lease, fingerprint or state."
    ),
    Code.LEASE_STALE: Reason(409, False, "The arena lease belongs to another move by now."),
    Code.LEASE_EXPIRED: Reason(409, True, "The reservation's lease ran out."),
    Code.STEP_TIMEOUT: Reason(504, True, "A step of the move took too long."),
    Code.SOURCE_LOST: Reason(503, True, "The source worker is gone."),
    Code.TARGET_LOST: Reason(503, True, "The target worker is gone."),
    Code.TARGET_FAILED: Reason(503, True, "The target worker failed when the session was already its own."),
    Code.DEADLINE: Reason(409, True, "The drain's deadline has passed."),
    Code.DRAIN_CANCELLED: Reason(409, False, "The drain was cancelled."),
    Code.SESSION_CANCELLED: Reason(409, False, "The session was cancelled."),
    Code.NO_READER: Reason(409, True, "Nobody reads the session; it goes on when somebody does."),
    Code.COORDINATOR_RESTART: Reason(503, True, "The coordinator was restarted meanwhile."),
    Code.RECOVERY_UNAVAILABLE: Reason(
        503, False, "The worker was lost and the session does not permit replay."
    ),
    Code.DEVICE_TAKEN_BACK: Reason(
        503, True, "The owner took the device back and no other worker could take the session."
    ),
    Code.LIFETIME_EXCEEDED: Reason(409, False, "The session reached its lifetime."),
    Code.DISCONNECT_GRACE_EXPIRED: Reason(409, False, "No client was connected for the grace time."),
    Code.ENGINE_FAILED: Reason(500, True, "The engine failed on this session."),
    Code.FRAME_TOO_LARGE: Reason(413, False, "The frame is over the limit."),
    Code.FRAME_MALFORMED: Reason(400, False, "The frame cannot be read."),
    Code.VERSION_UNSUPPORTED: Reason(400, False, "The frame's version is not supported."),
    Code.FENCED: Reason(409, False, "The sender was replaced by a newer one."),
    Code.EPOCH_STALE: Reason(409, False, "The session has a newer owner."),
    Code.TIMEOUT: Reason(504, True, "No answer came in time."),
    Code.COORDINATOR_LOCK_HELD: Reason(409, False, "Another coordinator runs on this store."),
    Code.WORKER_LOCK_HELD: Reason(409, False, "Another worker runs under this id."),
    Code.SOCKET_PATH_TOO_LONG: Reason(
        422, False, "The socket path is too long; choose a shorter socket_dir."
    ),
    Code.CONFIG_INVALID: Reason(422, False, "The configuration is not valid."),
    Code.CERTIFICATE_UNREADABLE: Reason(422, False, "The file of certificate_path cannot be used."),
    Code.PLATFORM_UNSUPPORTED: Reason(422, False, "swapd runs on Linux, not on this system."),
    Code.MODEL_MISSING: Reason(422, False, "The model folder is not there or not complete."),
    Code.MODEL_UNSUPPORTED: Reason(422, False, "This model's attention layout cannot be moved."),
    Code.ENGINE_UNCHECKED: Reason(422, False, "This vLLM version was not checked with swapd."),
    Code.ENGINE_REFUSED: Reason(422, False, "The configuration does not allow this engine."),
    Code.STORE_FAILED: Reason(503, True, "The store cannot write; nothing more is acknowledged."),
    Code.STORE_STUCK: Reason(503, True, "The disk of the database does not answer."),
    Code.DISK_FULL: Reason(503, True, "The disk of the database is full."),
    Code.DISK_ERROR: Reason(503, True, "The disk of the database reports errors."),
    Code.SCHEMA_NEWER: Reason(422, False, "The store was written by a newer swapd."),
    Code.CALIBRATION_UNUSABLE: Reason(409, False, "The saved calibration cannot be used."),
    Code.SETTINGS_INVALID: Reason(422, False, "Nothing was saved: some settings need correcting."),
    Code.SETTINGS_CHANGED: Reason(
        409, False, "Nothing was saved: the configuration file was changed meanwhile; look at it again."
    ),
    Code.SETTINGS_NOT_EDITABLE: Reason(
        409, False, "Nothing was saved: the layout of the configuration file needs a text editor."
    ),
    Code.SETTINGS_NOT_WRITTEN: Reason(409, False, "The configuration file could not be written."),
    Code.INTERNAL: Reason(500, True, "An internal error was logged."),
}


class SwapdError(Exception):
    """A refusal with a stable code; `detail` adds names and numbers for people.

    `retry_after_s` says when trying again may help, where that is known.
    """

    def __init__(self, code: Code, detail: str = "", retry_after_s: float | None = None) -> None:
        self.code = code
        self.detail = detail
        self.retry_after_s = retry_after_s
        super().__init__(self.sentence)

    @property
    def status(self) -> int:
        return REASONS[self.code].status

    @property
    def retryable(self) -> bool:
        return REASONS[self.code].retryable

    @property
    def sentence(self) -> str:
        base = REASONS[self.code].sentence
        return f"{base} ({self.detail})" if self.detail else base
