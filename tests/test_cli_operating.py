"""The commands of an operator, on real sockets."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import trio

from swapd.certify.registry import End
from swapd.errors import SwapdError
from swapd.views import Reconciled, ReconciliationView
from tests.signin.memory import OWNER_TOKEN
from tests.test_cli import Running

ENTRIES = (
    Reconciled("ses_1", "resumed", "owner_has_it", "a", 1, 40),
    Reconciled("ses_2", "failed", "worker_absent", "b", 1, 7, code="recovery_unavailable"),
)
REPORT = ReconciliationView(
    "done", 1.0, 2.0, {"a": "found", "b": "absent"}, 1.5, 0.0123, {"resumed": 1, "failed": 1}, ENTRIES, 0
)


@pytest.fixture
def running() -> Iterator[Running]:
    with tempfile.TemporaryDirectory(prefix="cli-", dir="/tmp") as folder, Running(Path(folder)) as started:
        yield started


def test_admission_is_stopped_shown_and_reopened(running: Running) -> None:
    """H163"""
    assert running.swapd("admission").stdout == "admission is open\n"
    stopped = running.swapd("admission", "stop").stdout
    assert stopped.startswith("admission is stopped by the operator since 19")
    assert "admission is stopped by the operator" in running.swapd("status").stdout
    assert running.swapd("admission").stdout == stopped
    assert running.swapd("admission", "reopen").stdout == "admission is open\n"
    assert "admission" not in running.swapd("status").stdout
    view = json.loads(running.swapd("admission", "stop", "--json").stdout)
    assert (view["admission"], view["migration"]) == (False, True)


def test_migration_is_turned_off_and_on(running: Running) -> None:
    """A13"""
    off = running.swapd("migration", "off")
    assert (off.exit_code, off.stdout[:32]) == (0, "migration is off by the operator")
    assert running.swapd("migration", "on").stdout == "migration is on\n"


def test_migration_that_the_configuration_turns_off_cannot_be_turned_on_here(running: Running) -> None:
    """A13: exit status 1, because it is not as asked."""
    view = msgspec.structs.replace(running.service.switches_view, migration_configured=False)

    async def stays_off(*args: object, **kwargs: object) -> object:
        return msgspec.structs.replace(view, migration=False)

    running.service.turn_switch = stays_off  # type: ignore[method-assign,assignment]
    answer = running.swapd("migration", "on")
    assert answer.exit_code == 1
    assert answer.stdout == "migration is off by the configuration (migration_enabled = false)\n"


def test_a_quarantine_is_cleared_and_an_unknown_worker_refused(running: Running) -> None:
    """H79"""
    answer = running.swapd("clear-quarantine", "a")
    assert answer.stdout == "worker a is not quarantined and admits sessions\n"
    assert running.service.cleared == ["a"]
    refused = running.swapd("clear-quarantine", "zz")
    assert refused.exit_code == 2
    assert "worker_unknown" in refused.stderr


def test_the_report_of_a_start_is_shown_session_by_session(running: Running) -> None:
    """H152"""
    running.service.report = REPORT
    shown = running.swapd("reconciliation")
    assert shown.exit_code == 0
    lines = shown.stdout.splitlines()
    assert lines[1].split() == ["ses_1", "resumed", "a", "1", "40", "0", "owner_has_it"]
    assert lines[2].split()[-1] == "recovery_unavailable"
    assert "reconciliation: done; 1 failed, 1 resumed; workers: a found, b absent" in lines
    assert lines[-1] == "decided 0.012 s after the last worker was found"
    told = json.loads(running.swapd("reconciliation", "--json").stdout)
    assert told == json.loads(msgspec.json.encode(REPORT))


def test_a_report_that_is_not_finished_says_so(running: Running) -> None:
    """H142, H152"""
    running.service.report = msgspec.structs.replace(REPORT, state="deciding", undecided=3)
    shown = running.swapd("reconciliation")
    assert shown.exit_code == 1
    assert "3 sessions are undecided" in shown.stdout


def test_a_link_to_the_console_signs_in_once_as_who_it_is_for(running: Running) -> None:
    url = running.swapd("console-link").stdout.strip()
    told = json.loads(running.swapd("console-link", "--viewer", "--json").stdout)
    assert (told["role"], told["valid_s"]) == ("viewer", 900.0)
    door = running.service.door
    for link, role in ((url, "owner"), (told["url"], "viewer")):
        assert link.startswith("http://127.0.0.1:")
        code = link.partition("/sign-in#")[2]
        assert trio.run(door.sign_in, code, None).role == role
        with pytest.raises(SwapdError):
            trio.run(door.sign_in, code, None)


def test_new_tokens_sign_everybody_out(running: Running) -> None:
    door = running.service.door
    made = trio.run(door.sign_in, OWNER_TOKEN, None)
    assert running.swapd("console-link", "--new-tokens").exit_code == 0
    with pytest.raises(SwapdError):
        door.signed_in(made.cookie)
    with pytest.raises(SwapdError):
        trio.run(door.sign_in, OWNER_TOKEN, None)


def test_plans_show_each_way_its_grounds_and_its_end(running: Running) -> None:
    """H132, H135"""
    double = running.service.plans
    lines = running.swapd("plans").stdout.splitlines()
    assert lines[0].split() == ["FROM", "TO", "BASIS", "EXPIRES", "CERTIFICATE"]
    assert lines[1].split()[:3] == ["a", "b", "evaluated"]
    assert lines[1].split()[-1] == double.known.id
    assert f"certificate {double.known.id}: evaluated, expires 20" in lines[3]
    assert lines[-1] == "transfer: arena of 64 MiB, page-locked"
    told = json.loads(running.swapd("plans", "--json").stdout)
    assert [each["edge"] for each in told["edges"]] == [
        {"source": "a", "target": "b"},
        {"source": "b", "target": "a"},
    ]
    double.now = double.known.expires_at + 60.0
    lines = running.swapd("plans").stdout.splitlines()
    assert lines[0] == "refused:"
    assert lines[2].split()[:3] == ["a", "b", "expired"]
    assert ", expired 20" in lines[4]


def test_with_one_worker_plans_say_that_there_is_no_target(running: Running) -> None:
    """H116"""
    running.service.plans.ends = [End("a", "fp")]
    assert running.swapd("plans").stdout.startswith("no target: it takes two workers")


def test_a_certificate_is_revoked_once_and_an_unknown_one_refused(running: Running) -> None:
    """H137, A14"""
    name = running.service.plans.known.id
    for _ in range(2):
        assert running.swapd("revoke", name).stdout.startswith(f"certificate {name} is revoked since 19")
    assert json.loads(running.swapd("revoke", name, "--json").stdout) == {
        "certificate": name,
        "revoked_at": 100.0,
    }
    assert "revoked" in running.swapd("plans").stdout
    refused = running.swapd("revoke", "another")
    assert (refused.exit_code, "certificate_unknown" in refused.stderr) == (2, True)
