"""Logs: one JSON object a line on stderr, through an allowlist, so that nothing of a client gets out (H181).

A message is a constant. What varies goes into `extra={...}`, and only fields that are named here, of a
plain type and a bounded length, are written; the rest is dropped and counted. An exception is written by
type, code and place, never by its text (H183). A library's own messages are made of data that we do not
know, so of those only the logger, the level and the place are written.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Final, TextIO

import msgspec

from swapd.errors import SwapdError

OURS: Final = ("swapd", "console")
LIBRARY_MESSAGE: Final = "message of a library, withheld"
MAX_FIELD_CHARS: Final = 256
MAX_MESSAGE_CHARS: Final = 200
MAX_ERROR_TYPES: Final = 8

ALLOWED_FIELDS: Final = frozenset(
    {
        # who and what
        *("worker", "incarnation", "session", "epoch", "drain", "migration", "move", "batch", "device"),
        *("model", "engine", "engine_version", "fingerprint", "namespace", "origin", "source", "target"),
        # state and outcome
        *("state", "phase", "outcome", "reason", "code", "kind", "step", "generation", "request"),
        *("certificate", "basis"),
        *("finish", "signal", "status", "method", "version", "attempt", "ready", "page_locked"),
        # numbers, with their unit in the name
        *("count", "limit", "position", "accepted", "frontier", "blocks", "sessions", "rounds", "bytes"),
        *("arena_bytes", "frame_bytes", "precopied_bytes", "frozen_bytes", "needed_bytes", "free_bytes"),
        *("pause_ms", "frozen_ms", "copy_ms", "boundary_ms", "commit_ms", "step_ms", "took_ms"),
        *("after_s", "delay_s", "deadline_s", "grace_s", "timeout_s", "uptime_s", "took_s", "silent_s"),
        *("pid", "exit_code", "fd", "fds", "threads", "host", "port", "rows", "schema", "window_tokens"),
        *("dropped", "refused", "fenced", "reopened", "lines", "warning", "errno"),
        # what is learned of a device, and what follows from it
        *("attendance", "profile", "result", "reading_pct", "baseline_pct", "target_pct", "threshold_pct"),
        *("calibrated", "engaged", "hint", "credited_s", "above_s", "below_s", "learned_s"),
        *("learned_samples", "warmup_have", "migrated_legacy_baseline", "invalid_profile"),
        # places that the configuration names
        *("path", "socket_dir", "endpoint", "database"),
    }
)


ERROR_FIELDS: Final = frozenset({"error", "error_type", "error_code"})
"""Allowed where the value is one word: a type's name or a code, never an exception's text (H183)."""

_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.+]{0,63}")


class LogStatistics(msgspec.Struct, frozen=True):
    """`swapd_log_fields_dropped_total` and how many lines there were."""

    lines: int
    fields_dropped: int


def log_statistics() -> LogStatistics:
    """Those of the filter that this process logs through; zeros where `configure_logging` was not called."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, AllowlistFormatter):
            return handler.formatter.statistics()
    return LogStatistics(0, 0)


def keep_lines(keep: Callable[[str], None]) -> None:
    """Give `keep` every line from now on, as it is written; without `configure_logging` there are none.

    It is called in the thread that logs, and must neither log nor raise.
    """
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, AllowlistFormatter):
            handler.formatter.keep = keep


_BORN_WITH: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class AllowlistFormatter(logging.Formatter):
    """Writes a record as one JSON line; safe to call from any thread."""

    def __init__(self) -> None:
        super().__init__()
        self.keep: Callable[[str], None] = lambda line: None
        self._lock = threading.Lock()
        self._lines = 0
        self._dropped = 0

    def statistics(self) -> LogStatistics:
        with self._lock:
            return LogStatistics(self._lines, self._dropped)

    def format(self, record: logging.LogRecord) -> str:
        ours = record.name.partition(".")[0] in OURS
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name[:MAX_FIELD_CHARS],
            "message": _constant(record) if ours else LIBRARY_MESSAGE,
        }
        if not ours:
            line["at"] = f"{record.module}:{record.lineno}"
        fields, dropped = _fields(record)
        # A message with arguments is a format of data: its template is written, the arguments are not.
        if ours and record.args:
            dropped += len(record.args)
        line |= fields
        if record.exc_info and record.exc_info[1] is not None:
            line |= describe_error(record.exc_info[1])
        if dropped:
            line["fields_dropped"] = dropped
        with self._lock:
            self._lines += 1
            self._dropped += dropped
        written = json.dumps(line, ensure_ascii=True, separators=(",", ":"))
        self.keep(written)
        return written


def _constant(record: logging.LogRecord) -> str:
    return record.msg[:MAX_MESSAGE_CHARS] if isinstance(record.msg, str) else LIBRARY_MESSAGE


def _fields(record: logging.LogRecord) -> tuple[dict[str, object], int]:
    fields: dict[str, object] = {}
    dropped = 0
    for name, value in record.__dict__.items():
        if name in _BORN_WITH:
            continue
        named = name in ALLOWED_FIELDS or (
            name in ERROR_FIELDS and isinstance(value, str) and _WORD.fullmatch(value) is not None
        )
        plain = value is None or isinstance(value, (bool, int, float, str))
        fits = not isinstance(value, str) or len(value) <= MAX_FIELD_CHARS
        if named and plain and fits:
            # An enum's name is its value here, whatever its repr.
            fields[name] = str(value) if isinstance(value, str) else value
        else:
            dropped += 1
    return fields, dropped


def describe_error(error: BaseException) -> dict[str, object]:
    """An exception as a log may show it: types, stable code, place; never its text (H183)."""
    leaves = _leaves(error)
    told: dict[str, object] = {
        "error_type": "+".join(dict.fromkeys(type(leaf).__name__ for leaf in leaves[:MAX_ERROR_TYPES]))
    }
    codes = [leaf.code for leaf in leaves if isinstance(leaf, SwapdError)]
    if codes:
        told["error_code"] = str(codes[0])
    frames = traceback.extract_tb(leaves[0].__traceback__)
    if frames:
        last = frames[-1]
        told["error_at"] = f"{'/'.join(PurePath(last.filename).parts[-3:])}:{last.lineno}"
    return told


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in _leaves(each)]
    return [error]


def configure_logging(stream: TextIO | None = None, level: int = logging.INFO) -> AllowlistFormatter:
    """Send every logger of the process, libraries' too, through the one filter.

    Replaces handlers that libraries have put on their own loggers. Uncaught exceptions of the main thread
    and of others are logged in the same way.
    """
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    formatter = AllowlistFormatter()
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in list(logging.root.manager.loggerDict):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    logging.captureWarnings(True)
    # The last resort of the standard library would print the text of a failing record.
    logging.raiseExceptions = False
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread
    return formatter


def _log_uncaught(kind: type[BaseException], error: BaseException, _trace: object) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    logging.getLogger("swapd").critical("uncaught exception", exc_info=error)


def _log_uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        logging.getLogger("swapd").critical("uncaught exception in a thread", exc_info=args.exc_value)
