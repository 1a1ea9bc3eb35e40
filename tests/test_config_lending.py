"""What a configuration may say about lending, and the sentence with its line for what it may not."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from swapd import host_checks
from swapd import serve as serving
from swapd.cli import main
from swapd.cli.serving import refuse_windows
from swapd.config import Config, OwnerConfig, PressureConfig
from swapd.config_file import load_config, parse_config
from swapd.config_rules import RANGES
from swapd.errors import Code, SwapdError

UUID = "GPU-0f1e2d3c-0001-4a5b-8c9d-00112233aabb"
RUNS = "calibrated mode runs with a cap of"
ROOT = Path(__file__).parent.parent

GOOD = f"""database_path = "swapd.db"
socket_dir = "/run/swapd"
allow_sim_engine = true
[[devices]]
name = "desk"
selector = "{UUID}"
[[devices]]
name = "cores"
kind = "cpu"
cores = [0]
[[workers]]
worker_id = "a"
engine = "sim"
device = "desk"
[[workers]]
worker_id = "b"
engine = "sim"
device = "cores"
[[models]]
alias = "smollm2"
path = "model"
[[credentials]]
namespace = "me"
token = "a-secret-of-sufficient-length"
[owner]
consent = true
[owner.gpu_pressure]
"""
"""What is appended is line 28."""


def parse(text: str) -> Config:
    return parse_config(text, folder=Path("/srv"), name="swapd.toml")


def refusal(text: str) -> str:
    with pytest.raises(SwapdError) as caught:
        parse(text)
    assert caught.value.code is Code.CONFIG_INVALID
    return caught.value.sentence


@pytest.fixture
def on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(host_checks, "online_cores", lambda: frozenset({0, 1, 2, 3}))
    path = tmp_path / "swapd.toml"
    path.touch(mode=0o600)
    return path


def warnings(path: Path, text: str) -> list[str]:
    """The warnings that point into the file."""
    path.write_text(text)
    return [each for each in load_config(path)[1] if each.startswith("swapd.toml")]


def test_a_configuration_that_lends_is_taken_without_a_warning(on_disk: Path) -> None:
    assert len(GOOD.splitlines()) == 27
    assert warnings(on_disk, GOOD) == []


def test_an_empty_pressure_table_has_the_documented_defaults() -> None:
    """R1: no mode means calibrated. D1, D33: the values that are our decision."""
    pressure = parse(GOOD).owner.gpu_pressure
    assert pressure == PressureConfig(
        enabled=True,
        mode="calibrated",
        threshold_pct=0.0,
        learn_quantile=0.75,
        learn_half_life_h=72.0,
        margin_pct=20.0,
        floor_pct=25.0,
        cap_pct=40.0,
        raise_pct_per_h=1.0,
        warmup_samples=60,
        poll_ms=5000,
        sustain_s=10.0,
        release_band_pct=5.0,
        release_s=30.0,
        state_file=None,
        baseline_quantile=None,
        baseline_window_s=None,
    )
    assert parse(GOOD.split("[owner]")[0]).owner.gpu_pressure == pressure


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        # parking (B3)
        (
            "consent = true",
            'consent = true\nwhen_full = "park"',
            'line 27: when_full = "park" needs memory to park sessions in: set park_bytes',
        ),
        # devices
        ('name = "desk"', 'name = "Desk"', "line 5: a device's name must be 1 to 32 characters of a-z"),
        ('name = "desk"', 'name = ""', "line 5: a device's name must be"),
        ('name = "desk"', 'name = "ops"', "line 5: device name 'ops' is a name that swapd itself uses"),
        ('name = "desk"', 'name = "sampler-nvml"', "line 5: device name 'sampler-nvml' is a name that"),
        ('name = "cores"', 'name = "desk"', "line 8: device name 'desk' is used twice"),
        ('name = "desk"\n', "", "line 4: 'name' is missing in devices[0]"),
        (
            'name = "desk"',
            'name = "desk"\nkind = "amd"',
            "line 6: devices[0].kind: must be one of 'nvml', 'cpu'",
        ),
        (f'selector = "{UUID}"\n', "", "line 4: device 'desk' needs a selector: the GPU's UUID"),
        (UUID, "", "line 6: selector '' is neither"),
        (UUID, "00000000:01:00.0", "line 6: selector '00000000:01:00.0' is neither a GPU's UUID (GPU-…"),
        (UUID, UUID[:-1], f"line 6: selector '{UUID[:-1]}' is neither"),
        (UUID, UUID[:-1] + "g", "line 6: selector"),
        (UUID, "00", "line 6: selector '00' is neither"),
        (UUID, "-1", "line 6: selector '-1' is neither"),
        (UUID, "MIG-" + UUID[4:], "line 6: a part of a GPU (MIG) cannot be lent"),
        (UUID, f"MIG-{UUID}/1/0", "line 6: a part of a GPU (MIG) cannot be lent"),
        ('name = "desk"', 'name = "desk"\ncores = [1]', 'line 6: cores are for a device of kind = "cpu"'),
        (
            "cores = [0]",
            'cores = [0]\nselector = "0"',
            'line 11: a selector is for a device of kind = "nvml"',
        ),
        ("cores = [0]\n", "", "line 7: device 'cores' needs cores"),
        ("cores = [0]", "cores = []", "line 7: device 'cores' needs cores"),
        ("cores = [0]", "cores = [1, 1]", "line 10: cores must be distinct numbers"),
        ("cores = [0]", "cores = [-1]", "line 10: cores must be distinct numbers"),
        # devices that overlap
        (
            'kind = "cpu"\ncores = [0]',
            f'selector = "{UUID.lower()}"',
            f"line 9: devices 'desk' and 'cores' are one GPU: selector '{UUID.lower()}'",
        ),
        (
            f'selector = "{UUID}"',
            'kind = "cpu"\ncores = [1,\n 0]',
            "line 12: core 0 is of device 'desk' and of device 'cores'",
        ),
        # workers and devices
        (
            'device = "desk"',
            'device = "disk"',
            "line 14: worker 'a' runs on 'disk', which no [[devices]] entry",
        ),
        ('device = "desk"\n', "", "line 11: worker 'a' runs on 'cpu', which no [[devices]] entry names"),
        (
            'device = "cores"',
            'device = "cores"\ncores = [0, 2]',
            "line 19: worker 'b' is bound to core 2, which is none of 'cores'",
        ),
        ('worker_id = "a"', 'worker_id = "sampler-cpu"', "line 12: worker_id 'sampler-cpu' is a name that"),
        # the owner
        ("consent = true", "consent = 1", "line 26: owner.consent: expected bool, got int"),
        (
            "consent = true",
            'presence = "remote"',
            "line 26: owner.presence: must be one of 'auto', 'headless'",
        ),
        (
            "consent = true",
            'lend_when = "idle"',
            "line 26: owner.lend_when: must be one of 'always', 'locked'",
        ),
        (
            "consent = true",
            'presence = "headless"\nlend_when = "locked"',
            'line 27: lend_when = "locked" never lends with presence = "headless"',
        ),
        (
            "consent = true",
            'quiet_hours = ["22:00-07:00",\n"Mo 10:00-11:00"]',
            "line 27: quiet_hours: 'mo' in 'Mo 10:00-11:00' is no day",
        ),
        ("consent = true", 'ignore = ["/usr/bin/obs"]', "line 26: ignore holds names of processes, such as"),
        ("consent = true", 'always = ["blender", ""]', "line 26: always holds names of processes"),
        ("consent = true", 'always = ["a\\u0007"]', "line 26: always holds names of processes"),
        (
            "consent = true",
            'ignore = ["OBS"]\nalways = ["steam", "obs"]',
            "line 27: 'obs' is in ignore and in always",
        ),
        ("consent = true", "borrower_ports = [8000, 0]", "line 26: borrower port 0 is outside 1 to 65535"),
        ("consent = true", "borrower_ports = [65536]", "line 26: borrower port 65536 is outside"),
        (
            "consent = true",
            "consnt = true",
            "line 26: unknown key 'consnt' in [owner]; did you mean 'consent'?",
        ),
        ("consent = true", "resume_after_s = -1", "line 26: resume_after_s = -1.0 is outside 0 to 86400"),
        # pressure
        ("", "state_file = ''", "line 28: state_file is empty; leave it out for the default"),
        (
            "",
            "capp_pct = 40",
            "line 28: unknown key 'capp_pct' in [owner.gpu_pressure]; did you mean 'cap_pct'?",
        ),
        ("", "warmup_samples = 2.5", "line 28: owner.gpu_pressure.warmup_samples: expected int, got float"),
        (
            "",
            "baseline_quantile = 'x'",
            "line 28: owner.gpu_pressure.baseline_quantile: expected float, got str",
        ),
    ],
)
def test_a_mistake_about_lending_is_named_with_its_line(old: str, new: str, said: str) -> None:
    """H119 for devices, owner and pressure."""
    assert old in GOOD
    text = GOOD.replace(old, new, 1) if old else GOOD + new + "\n"
    assert f"swapd.toml {said}" in refusal(text)


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in (OwnerConfig, PressureConfig) for name in RANGES[kind]]
)
def test_every_number_has_its_bounds_and_what_is_no_number_is_refused(
    kind: type[OwnerConfig | PressureConfig], name: str
) -> None:
    low, high = RANGES[kind][name]
    whole = isinstance(getattr(kind(), name), int)
    head, consent, rest = GOOD.partition("consent = true\n")

    def with_value(value: str) -> str:
        line = f"{name} = {value}\n"
        return GOOD + line if kind is PressureConfig else head + line + consent + rest

    for value in (low - 1, high + 1, *(() if whole else ("nan", "inf", "-inf"))):
        shown = value if isinstance(value, str) else f"{value:.0f}" if whole else repr(float(value))
        line = 28 if kind is PressureConfig else 26
        assert f"line {line}: {name} = " in (said := refusal(with_value(shown)))
        assert f"is outside {low:g} to {high:g}" in said
    for bound in (low, high):
        text = with_value(f"{bound:.0f}" if whole else repr(bound))
        if name == "threshold_pct":
            # It goes with its mode alone (R71, R75).
            text += 'mode = "fixed"\n' if bound else ""
        table = parse(text).owner
        assert getattr(table if kind is OwnerConfig else table.gpu_pressure, name) == bound


def test_every_number_of_owner_and_pressure_is_bounded() -> None:
    for kind in (OwnerConfig, PressureConfig):
        numbers = {
            name
            for name in kind.__struct_fields__
            if isinstance(value := getattr(kind(), name), int | float) and not isinstance(value, bool)
        }
        assert set(RANGES[kind]) == numbers


def test_a_fixed_mode_needs_its_threshold() -> None:
    """R71."""
    needs = 'line 28: mode = "fixed" needs threshold_pct, above 0 and at most 100'
    assert needs.replace("28", "27") in refusal(GOOD + 'mode = "fixed"\n')
    assert needs in refusal(GOOD + 'threshold_pct = 0\nmode = "fixed"\n')
    assert "line 29: threshold_pct = -5.0 is outside" in refusal(
        GOOD + 'mode = "fixed"\nthreshold_pct = -5\n'
    )
    assert parse(GOOD + 'mode = "fixed"\nthreshold_pct = 0.5\n').owner.gpu_pressure.threshold_pct == 0.5


@pytest.mark.parametrize("mode", ["", 'mode = "calibrated"\n', 'mode = "adaptive"\n'])
def test_a_threshold_without_fixed_mode_is_refused(mode: str) -> None:
    """R75, R78: also where the mode is a retired one."""
    said = refusal(GOOD + "threshold_pct = 30\n" + mode)
    assert 'line 28: threshold_pct is for mode = "fixed"; in mode = ' in said
    parse(GOOD + "threshold_pct = 0\n" + mode)


def test_another_mode_is_refused_and_a_retired_one_not_proposed() -> None:
    """R79."""
    for mode in ("learned", "Fixed", ""):
        said = refusal(GOOD + f'mode = "{mode}"\n')
        assert "line 28: owner.gpu_pressure.mode: must be one of 'calibrated', 'fixed'" in said
        assert "adaptive" not in said


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        # R39: nothing where floor <= cap <= 90, equality included
        ("", None),
        ("floor_pct = 40\n", None),
        ("cap_pct = 25\n", None),
        ("cap_pct = 90\n", None),
        ("floor_pct = 90\ncap_pct = 90\n", None),
        ("floor_pct = 0\ncap_pct = 0\n", None),
        # R37
        ("cap_pct = 20\n", f"line 28: cap_pct = 20 is below floor_pct = 25: {RUNS} 25"),
        ("floor_pct = 40.5\n", f"line 28: cap_pct = 40 is below floor_pct = 40.5: {RUNS} 40.5"),
        ("\nfloor_pct = 50\ncap_pct = 30\n", "line 30: cap_pct = 30 is below floor_pct = 50: "),
        # R38
        ("cap_pct = 95\n", f"line 28: cap_pct = 95 is over 90: {RUNS} 90"),
        ("cap_pct = 90.5\n", f"line 28: cap_pct = 90.5 is over 90: {RUNS} 90"),
        ("cap_pct = 100\n", f"line 28: cap_pct = 100 is over 90: {RUNS} 90"),
        # the floor wins
        ("floor_pct = 95\n", f"line 28: cap_pct = 40 is below floor_pct = 95: {RUNS} 95"),
        ("floor_pct = 95\ncap_pct = 95\n", f"line 29: cap_pct = 95 is over 90: {RUNS} 95"),
        ("floor_pct = 95\ncap_pct = 92\n", "line 29: cap_pct = 92 is below floor_pct = 95: "),
    ],
)
def test_a_cap_that_does_not_hold_loads_with_one_warning(on_disk: Path, keys: str, said: str | None) -> None:
    """R37, R38, R39, D6."""
    found = warnings(on_disk, GOOD + keys)
    if said is None:
        assert found == []
    else:
        (one,) = found
        assert one.startswith(f"swapd.toml {said}")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ('mode = "adaptive"\n', ['line 28: mode = "adaptive" is retired and runs as "calibrated"']),
        ("baseline_quantile = 0.25\n", ["line 28: baseline_quantile is retired and ignored; remove it"]),
        ("baseline_quantile = 0.75\n", ["line 28: baseline_quantile is retired and ignored; remove it"]),
        ("baseline_window_s = 0\n", ["line 28: baseline_window_s is retired and ignored; remove it"]),
        ("baseline_window_s = nan\n", ["line 28: baseline_window_s is retired and ignored; remove it"]),
        (
            "baseline_window_s = 86400\nbaseline_quantile = 0\n",
            ["line 28: baseline_window_s is retired", "line 29: baseline_quantile is retired"],
        ),
    ],
)
def test_what_is_retired_loads_with_one_warning_each(on_disk: Path, keys: str, said: list[str]) -> None:
    """R78 and R122: whatever the value, and only where the key is there."""
    found = warnings(on_disk, GOOD + keys)
    assert len(found) == len(said)
    for warning, start in zip(found, said, strict=True):
        assert warning.startswith(f"swapd.toml {start}")


def test_what_will_never_be_lent_is_told(on_disk: Path) -> None:
    """D40: nothing without consent; and what else leaves a device alone."""
    without = GOOD.replace("consent = true", "consent = false")
    consent = "nothing is lent before owner.consent = true"
    assert warnings(on_disk, without) == [f"swapd.toml line 26: {consent}"]
    assert warnings(on_disk, GOOD.split("[owner]")[0]) == [f"swapd.toml: {consent}"]
    quiet = GOOD.replace("consent = true", 'consent = true\nquiet_hours = ["00:00-24:00"]')
    assert warnings(on_disk, quiet) == [
        "swapd.toml line 27: quiet_hours leave no minute of the week: nothing is ever lent"
    ]
    idle = GOOD.replace('device = "desk"', 'device = "cores"')
    assert warnings(on_disk, idle) == ["swapd.toml line 4: device 'desk' has no worker: nothing runs on it"]


def test_an_index_is_taken_and_what_it_costs_is_told(on_disk: Path) -> None:
    """R91's warning before it is a surprise."""
    assert warnings(on_disk, GOOD.replace(UUID, "0")) == [
        "swapd.toml line 6: device 'desk' is selected by an index: what is learned is not kept; use its UUID"
    ]


def test_an_owner_without_devices_owns_nothing(on_disk: Path) -> None:
    start = GOOD.split("[[devices]]")[0]
    end = "[[workers]]" + GOOD.split("[[workers]]", 1)[1]
    text = start + end
    assert warnings(on_disk, text) == [
        "swapd.toml line 18: [owner] has no effect: there are no [[devices]], so nothing is an owner's"
    ]
    assert warnings(on_disk, text.split("[owner]")[0]) == []


def test_cores_that_are_not_there_are_refused(on_disk: Path) -> None:
    on_disk.write_text(GOOD.replace("cores = [0]", "cores = [0,\n 4]"))
    with pytest.raises(SwapdError) as caught:
        load_config(on_disk)
    assert "swapd.toml line 11: this machine has no core 4 (it has 0-3)" in caught.value.sentence


@pytest.mark.parametrize(
    ("text", "cores", "shown"),
    [("0\n", {0}, "0"), ("0-3\n", {0, 1, 2, 3}, "0-3"), ("0,2-4,9\n", {0, 2, 3, 4, 9}, "0,2-4,9")],
)
def test_the_kernels_list_of_cores_is_read(text: str, cores: set[int], shown: str) -> None:
    assert host_checks.parse_cores(text) == cores
    assert host_checks.show_cores(frozenset(cores)) == shown


def test_where_the_kernel_lists_no_cores_python_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(host_checks.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(host_checks, "ONLINE_CORES_PATH", tmp_path / "none")
    assert host_checks.online_cores() == {0, 1}
    (tmp_path / "none").write_text("nonsense")
    assert host_checks.online_cores() == {0, 1}


def test_a_worker_on_lent_cores_uses_those_where_it_names_none() -> None:
    config = parse(GOOD)
    assert [worker.cores for worker in config.workers] == [(), (0,)]
    two = GOOD.replace("cores = [0]", "cores = [0, 1]").replace(
        '"cores"\n[[mod', '"cores"\ncores = [1]\n[[mod'
    )
    assert parse(two).workers[1].cores == (1,)


def test_without_devices_a_workers_device_is_a_label() -> None:
    text = GOOD.split("[[devices]]")[0] + "[[workers]]" + GOOD.split("[[workers]]", 1)[1]
    config = parse(text)
    assert config.devices == ()
    assert [(worker.device, worker.cores) for worker in config.workers] == [("desk", ()), ("cores", ())]


def test_the_state_file_is_relative_to_the_configuration() -> None:
    """R81: `state_file` overrides the default, which stays open here."""
    assert parse(GOOD).owner.gpu_pressure.state_file is None
    for written, resolved in (("learned/p.json", "/srv/learned/p.json"), ("/var/p.json", "/var/p.json")):
        assert parse(GOOD + f'state_file = "{written}"\n').owner.gpu_pressure.state_file == resolved


def test_the_room_that_a_sampler_needs_in_the_socket_folder_is_told_before_the_start(on_disk: Path) -> None:
    """H105: its files have longer names than those of a worker with a short id."""
    room = 107 - len("/sampler-nvml.settings.json")
    for length, fits in ((room, True), (room + 1, False)):
        on_disk.write_text(GOOD.replace('"/run/swapd"', f'"/{"x" * (length - 1)}"'))
        if fits:
            load_config(on_disk)
        else:
            with pytest.raises(SwapdError) as caught:
                load_config(on_disk)
            assert caught.value.code is Code.SOCKET_PATH_TOO_LONG


def test_a_folder_where_others_may_write_is_told_with_the_reason_and_line(on_disk: Path) -> None:
    """R98: as the start would find it, and nothing is made there."""
    open_to_all = on_disk.parent / "shared"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    (one,) = warnings(on_disk, GOOD + 'state_file = "shared/p.json"\n')
    assert one.startswith("swapd.toml line 28: pressure cache not used: ")
    assert str(open_to_all) in one
    assert list(open_to_all.iterdir()) == []


def test_check_config_and_the_start_tell_the_same_warnings(
    on_disk: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R37, R38, R78, R122: at startup and in check-config, which then exits with 0."""
    on_disk.write_text(
        GOOD.replace("consent = true\n", "") + 'mode = "adaptive"\ncap_pct = 95\nbaseline_quantile = 0.25\n'
    )
    result = CliRunner().invoke(main, ["check-config", "--config", str(on_disk)])
    assert result.exit_code == 0
    told = [line.removeprefix("warning: ") for line in result.stderr.splitlines()]
    assert [line.split(":")[0] for line in told if line.startswith("swapd.toml")] == [
        "swapd.toml line 25",
        "swapd.toml line 27",
        "swapd.toml line 28",
        "swapd.toml line 29",
    ]
    as_json = CliRunner().invoke(main, ["check-config", "--json", "--config", str(on_disk)])
    assert json.loads(as_json.stdout) == {"ok": True, "warnings": told}

    class Enough(Exception):
        pass

    def stop_here(_path: object) -> None:
        raise Enough

    monkeypatch.setattr(serving, "ensure_private_dir", stop_here)
    start = serving.serve(on_disk)
    with caplog.at_level(logging.WARNING, "swapd.serve"), pytest.raises(Enough):
        start.send(None)
    assert [record.reason for record in caplog.records] == told  # type: ignore[attr-defined]  # `extra`


def test_swapd_does_not_start_on_windows() -> None:
    """D35."""
    refuse_windows("linux")
    for platform in ("win32", "cygwin"):
        with pytest.raises(SwapdError) as caught:
            refuse_windows(platform)
        assert caught.value.code is Code.PLATFORM_UNSUPPORTED
        assert caught.value.sentence.startswith("swapd runs on Linux, not on this system. (on Windows use")


def test_serve_on_windows_says_so_before_it_imports_what_is_not_there() -> None:
    """D35."""
    program = (
        "import sys; from swapd.cli import main; sys.platform = 'win32'\n"
        "sys.modules['trio'] = sys.modules['resource'] = sys.modules['swapd.serve'] = None\n"
        "main(['serve'])"
    )
    served = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=30
    )
    assert served.returncode == 2
    assert served.stderr.startswith("swapd: swapd runs on Linux")
    assert "[platform_unsupported]" in served.stderr
