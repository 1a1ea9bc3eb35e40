"""The check for machines with a GPU, against the fake NVML: it has to work before it meets a card."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from ops.gpu_checking.copies import check_copies, told
from ops.gpu_checking.load import NO_TORCH
from ops.gpu_checking.report import Check, summary, table
from tests.devices.fake_nvml import VERSION_MISMATCH, FakeCard, FakeNvml, compiler

pytestmark = pytest.mark.once
ROOT: Final = Path(__file__).resolve().parents[2]
CARD: Final = FakeCard()

# It says in the fake's control file what a process that computes would make the driver say.
LOAD: Final = """
import os, sys
from pathlib import Path
control = Path(sys.argv[1])
before = control.read_text()
pid = os.getpid()
def write(text):
    staging = control.with_name("control.load")
    staging.write_text(text)
    staging.replace(control)
write(before + f"sample 0 {pid} now 95 0 0 0\\nprocess 0 compute {pid} 1073741824\\n")
print("ready", flush=True)
sys.stdin.read()
write(before)
"""


@pytest.fixture
def fake_nvml(tmp_path: Path) -> FakeNvml:
    if compiler() is None:
        pytest.skip("the fake NVML is C, and there is no C compiler")
    return FakeNvml(tmp_path)


def check(nvml: FakeNvml, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "ops/gpu_check.py", "--poll-s", "0.001", "--arena-mib", "0", *options],
        capture_output=True,
        text=True,
        timeout=50,
        cwd=ROOT,
        env=nvml.env(),
        stdin=subprocess.DEVNULL,
    )


def with_load(nvml: FakeNvml) -> tuple[str, str]:
    control = nvml.library.with_name("control")
    return "--load", shlex.join([sys.executable, "-c", LOAD, str(control)])


def states(report: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["state"] for each in report["checks"]}


def test_the_whole_nvml_part_holds_against_the_fake(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    fake_nvml.set(devices=[CARD, FakeCard(uuid="GPU-other", pci="00000000:41:00.0")])
    report = tmp_path / "report.json"
    done = check(
        fake_nvml, "--json", str(report), "--arena-mib", "4", "--device", CARD.uuid, *with_load(fake_nvml)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    assert states(found) == {
        "what a container hides": "seen",
        "selection by UUID": "holds",
        "polls": "holds",
        "a stranger's work is the owner's": "holds",
        "a lender's work is subtracted": "holds",
        "a lender's memory is told": "holds",
        "times of samples are microseconds": "holds",
        "stale samples": "holds",
        "page-locked copies through the arena": "skipped",
    }
    assert found["card"]["uuid"] == CARD.uuid
    assert done.stdout.splitlines()[-1] == (
        f"gpu_check: {CARD.product}, driver 570.86.15: 7 hold, 0 fail, 1 skipped"
    )


def test_a_driver_that_attributes_nothing_fails_the_check(fake_nvml: FakeNvml) -> None:
    """A card at 95 % of which no process is known: a lender's work would be the owner's."""
    fake_nvml.card(util=95)
    control = fake_nvml.library.with_name("control")
    blind = LOAD.replace("sample 0 {pid} now 95 0 0 0", "")
    assert blind != LOAD
    done = check(fake_nvml, "--load", shlex.join([sys.executable, "-c", blind, str(control)]))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "fails    a lender's work is subtracted" in done.stdout


def test_without_a_load_the_rest_is_still_told(fake_nvml: FakeNvml) -> None:
    done = check(fake_nvml, "--load", f"{sys.executable} -c 'raise SystemExit({NO_TORCH})'")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped  attribution" in done.stdout
    assert "no torch here that sees the card" in done.stdout


def test_a_card_in_slices_is_told_and_is_no_failure(fake_nvml: FakeNvml) -> None:
    fake_nvml.card(mig=1)
    done = check(fake_nvml)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "unsupported: the card is cut in slices (MIG)" in done.stdout


def test_without_a_gpu_it_says_so_and_ends_with_3(fake_nvml: FakeNvml) -> None:
    fake_nvml.set(devices=[])
    done = check(fake_nvml)
    assert done.returncode == 3
    assert done.stdout == "gpu_check: no NVIDIA GPU to check: the driver is loaded, and tells of no card.\n"
    fake_nvml.set(init=VERSION_MISMATCH)
    done = check(fake_nvml)
    assert done.returncode == 3
    assert "the NVIDIA driver was updated, reboot needed" in done.stdout
    fake_nvml.library.unlink()
    fake_nvml.library.write_bytes(b"")
    done = check(fake_nvml)
    assert done.returncode == 3
    assert len(done.stdout.splitlines()) == 1


COPIES: Final[dict[str, Any]] = {
    "bytes": 1,
    "page_locked": True,
    "register_error": None,
    "copies": [{"registered": True, "to_card_gb_s": 24.0, "to_host_gb_s": 25.0, "intact": True}],
}


def test_copies_hold_when_they_are_whole_and_cuda_takes_the_arena() -> None:
    assert told(COPIES).state == "holds"
    assert "24.0 GB/s to the card, 25.0 GB/s back" in told(COPIES).detail
    assert told(COPIES | {"register_error": "CUDA error 1"}).state == "fails"
    damaged = [COPIES["copies"][0] | {"intact": False}]
    assert told(COPIES | {"copies": damaged}).state == "fails"


def test_copies_that_end_badly_fail_with_their_last_line() -> None:
    def run(body: str) -> Check:
        return check_copies(1, "GPU-a", (sys.executable, "-c", body))

    assert run(f"raise SystemExit({NO_TORCH})").state == "skipped"
    assert run("raise RuntimeError('out of memory')").detail == "RuntimeError: out of memory"
    assert run(f"print({json.dumps(json.dumps(COPIES))})").state == "holds"


def test_the_table_has_a_line_a_check_and_the_summary_counts() -> None:
    checks = [Check("a", "holds", "x"), Check("bcd", "seen", "y"), Check("e", "fails", "z")]
    assert table(checks).splitlines()[1] == "seen     bcd  y"
    assert summary("Card", checks) == "gpu_check: Card: 1 hold, 1 fail, 0 skipped"
