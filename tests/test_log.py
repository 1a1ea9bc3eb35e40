"""A log line holds what its field list names, and nothing that a client wrote."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from swapd.errors import Code, SwapdError
from swapd.log import LIBRARY_MESSAGE, AllowlistFormatter, configure_logging

CANARY = "canary-7f3a-prompt"


class Log:
    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.formatter: AllowlistFormatter = configure_logging(self.stream, logging.DEBUG)
        self.ours = logging.getLogger("swapd.test")

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]

    def last(self) -> dict[str, Any]:
        return self.lines()[-1]


@pytest.fixture
def log() -> Iterator[Log]:
    root = logging.getLogger()
    before = (root.handlers[:], root.level, logging.raiseExceptions, sys.excepthook, threading.excepthook)
    yield Log()
    logging.captureWarnings(False)
    root.handlers[:], _, logging.raiseExceptions, sys.excepthook, threading.excepthook = before
    root.setLevel(before[1])


def test_a_line_is_one_json_object_with_its_named_fields(log: Log) -> None:
    """H181."""
    log.ours.info("worker ready", extra={"worker": "a", "pid": 12, "took_s": 1.5, "ready": True})
    line = log.last()
    assert line["message"] == "worker ready"
    assert line["level"] == "info"
    assert line["logger"] == "swapd.test"
    assert (line["worker"], line["pid"], line["took_s"], line["ready"]) == ("a", 12, 1.5, True)
    assert "fields_dropped" not in line


@pytest.mark.parametrize(
    "extra",
    [
        {"prompt": CANARY},
        {"token": CANARY},
        {"worker": [CANARY]},
        {"worker": {"a": CANARY}},
        {"reason": CANARY * 100},
        {"code": CANARY.encode()},
        {"error": f"bad value {CANARY}"},
    ],
)
def test_a_field_that_is_not_named_or_not_plain_is_dropped_and_counted(log: Log, extra: Any) -> None:
    """H181, H182."""
    log.ours.warning("something", extra=extra)
    assert CANARY not in log.stream.getvalue()
    assert log.last()["fields_dropped"] == 1
    assert log.formatter.statistics().fields_dropped == 1
    assert log.formatter.statistics().lines == 1


def test_an_argument_of_a_message_is_never_written(log: Log) -> None:
    """H181: the message is a constant, not a format of user data."""
    log.ours.info("read %s", CANARY)
    assert log.last()["message"] == "read %s"
    assert log.last()["fields_dropped"] == 1
    log.ours.info(SwapdError(Code.INTERNAL, CANARY))
    assert CANARY not in log.stream.getvalue()


def test_an_exception_is_written_by_type_code_and_place(log: Log) -> None:
    """H183."""
    try:
        raise SwapdError(Code.TARGET_FULL, CANARY)
    except SwapdError:
        log.ours.exception("a move failed")
    line = log.last()
    assert line["error_type"] == "SwapdError"
    assert line["error_code"] == "target_full"
    assert line["error_at"].startswith("swapd/") or "test_log.py:" in line["error_at"]
    assert CANARY not in log.stream.getvalue()


def test_an_error_field_may_hold_a_type_and_nothing_longer(log: Log) -> None:
    """H183."""
    log.ours.error("failed", extra={"error_type": "ValueError"})
    assert log.last()["error_type"] == "ValueError"


def test_a_group_of_exceptions_is_written_by_its_leaves(log: Log) -> None:
    """H183."""
    error = ExceptionGroup(
        CANARY, [ValueError(CANARY), ExceptionGroup("", [SwapdError(Code.TIMEOUT, CANARY)])]
    )
    log.ours.error("several", exc_info=error)
    assert log.last()["error_type"] == "ValueError+SwapdError"
    assert log.last()["error_code"] == "timeout"
    assert CANARY not in log.stream.getvalue()


def test_a_library_goes_through_the_same_filter(log: Log) -> None:
    """H183: engines and servers log what their users send."""
    for name in ("vllm.engine", "hypercorn.error", "quart.app", "swapdish"):
        logging.getLogger(name).error(f"Received prompt {CANARY}", extra={"body": CANARY})  # noqa: G004
        line = log.last()
        assert line["message"] == LIBRARY_MESSAGE
        assert line["logger"] == name
        assert line["at"].startswith("test_log:")
    assert CANARY not in log.stream.getvalue()


def test_a_library_with_handlers_of_its_own_loses_them(log: Log) -> None:
    """H183."""
    own = io.StringIO()
    library = logging.getLogger("library.with.handlers")
    library.addHandler(logging.StreamHandler(own))
    library.propagate = False
    again = configure_logging(log.stream, logging.DEBUG)
    library.error(CANARY)
    assert own.getvalue() == ""
    assert again.statistics().lines == 1
    assert CANARY not in log.stream.getvalue()


def test_a_warning_of_python_is_a_line_too(log: Log) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn(CANARY, stacklevel=1)
    assert log.last()["logger"] == "py.warnings"
    assert CANARY not in log.stream.getvalue()


def test_an_uncaught_exception_is_written_without_its_text(log: Log) -> None:
    """H183."""
    sys.excepthook(ValueError, ValueError(CANARY), None)
    assert log.last()["error_type"] == "ValueError"

    def fail() -> None:
        raise RuntimeError(CANARY)

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    assert log.last()["error_type"] == "RuntimeError"
    assert CANARY not in log.stream.getvalue()


def test_newlines_in_a_field_do_not_make_a_second_line(log: Log) -> None:
    log.ours.info("odd", extra={"reason": "a\nb\u2028c"})
    assert len(log.stream.getvalue().split("\n")) == 2
    assert log.last()["reason"] == "a\nb\u2028c"
