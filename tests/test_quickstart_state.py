"""The quickstart's folder is private, its configuration is valid, and its tokens stay between runs."""

from __future__ import annotations

import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from swapd import host_checks
from swapd.config_file import load_config
from swapd.errors import SwapdError
from swapd.quickstart import state as quickstart
from swapd.quickstart.state import choose_port, default_folder, open_state, write_config


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="qs-", dir="/tmp") as made:
        monkeypatch.setenv("XDG_RUNTIME_DIR", made)
        yield Path(made) / "state"


def model_in(folder: Path) -> Path:
    model = folder / "a model"
    model.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (model / name).write_text("{}")
    return model


@pytest.mark.parametrize(
    ("cores", "bound"), [([0, 1], [(0,), (1,)]), ([3], [(3,), (3,)]), ([2, 5, 6], [(2,), (5,)])]
)
def test_its_configuration_is_one_that_serve_takes(
    folder: Path, cores: list[int], bound: list[tuple[int, ...]]
) -> None:
    state = open_state(folder)
    write_config(state, model=model_in(folder), port=8080, cores=cores, lend=False)
    config, _ = load_config(state.config_path)
    assert [worker.worker_id for worker in config.workers] == ["a", "b"]
    assert [worker.cores for worker in config.workers] == bound
    assert {worker.engine for worker in config.workers} == {"vllm"}
    assert config.self_certify
    assert config.socket_dir == str(state.socket_dir)
    assert [(each.token, each.is_operator) for each in config.credentials] == [
        (state.tenant_token, False),
        (state.operator_token, True),
    ]
    assert 256 << 20 <= config.arena_bytes <= 512 << 20


@pytest.mark.parametrize(
    ("cores", "lend", "expected"),
    [
        ([0, 1], True, [("cpu0", (0,)), ("cpu1", (1,))]),
        ([2, 5, 6], True, [("cpu0", (2,)), ("cpu1", (5,))]),
        ([3], True, []),
        ([0, 1], False, []),
    ],
)
def test_it_lends_each_workers_core_where_there_are_two(
    folder: Path,
    cores: list[int],
    lend: bool,
    expected: list[tuple[str, tuple[int, ...]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """D40: the quickstart's configuration gives the owner's consent."""
    monkeypatch.setattr(host_checks, "online_cores", lambda: frozenset(range(8)))
    state = open_state(folder)
    write_config(state, model=model_in(folder), port=8080, cores=cores, lend=lend)
    config, _ = load_config(state.config_path)
    assert [(device.name, device.cores) for device in config.devices] == expected
    assert config.owner.consent is bool(expected)
    if expected:
        assert [worker.device for worker in config.workers] == ["cpu0", "cpu1"]
        assert config.owner.gpu_pressure.poll_ms <= 1000


def test_what_the_owner_has_set_lasts_to_the_next_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R126: what the settings page saved applies then, also where the rest of the file is written anew."""
    monkeypatch.setattr(host_checks, "online_cores", lambda: frozenset(range(8)))
    state, model = open_state(folder), model_in(folder)
    write_config(state, model=model, port=8080, cores=[0, 1], lend=True)
    text = state.config_path.read_text()
    saved = text.replace("cap_pct = 60", "cap_pct = 70 # mine").replace("consent = true", "consent = false")
    state.config_path.write_text(saved)
    for lend in (False, True):
        write_config(state, model=model, port=9090, cores=[2, 3], lend=lend)
        config, _ = load_config(state.config_path)
        assert (config.port, config.owner.consent, config.owner.gpu_pressure.cap_pct) == (9090, False, 70.0)
    assert "cap_pct = 70 # mine" in state.config_path.read_text()
    assert [device.cores for device in config.devices] == [(2,), (3,)]
    # A file that nobody can read starts anew.
    state.config_path.write_text("[owner\n")
    write_config(state, model=model, port=8080, cores=[0, 1], lend=True)
    assert load_config(state.config_path)[0].owner.consent


def test_what_it_keeps_is_for_its_user_alone(folder: Path) -> None:
    """H107, B34."""
    state = open_state(folder)
    write_config(state, model=model_in(folder), port=8080, cores=[0], lend=True)
    for path, mode in (
        (folder, 0o700),
        (state.socket_dir, 0o700),
        (state.config_path, 0o600),
        (folder / "tokens.json", 0o600),
    ):
        assert stat.S_IMODE(path.stat().st_mode) == mode, path


def test_tokens_are_random_once_and_stay(folder: Path) -> None:
    first = open_state(folder)
    assert len(first.tenant_token) >= 32
    assert first.tenant_token != first.operator_token
    assert open_state(folder) == first
    other = open_state(folder.with_name("other"))
    assert other.tenant_token != first.tenant_token
    assert other.socket_dir != first.socket_dir


def test_a_damaged_token_file_is_one_sentence(folder: Path) -> None:
    open_state(folder)
    (folder / "tokens.json").write_text("{")
    with pytest.raises(SwapdError, match="remove it to get new tokens"):
        open_state(folder)


def test_a_folder_that_others_may_enter_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    with pytest.raises(SwapdError, match="chmod 0700"):
        open_state(folder)


def test_sockets_go_to_a_short_folder_whatever_the_state_folder_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H105."""
    deep = folder / ("d" * 90) / ("e" * 90)
    state = open_state(deep)
    assert len(str(state.socket_dir)) < 60
    write_config(state, model=model_in(deep), port=8080, cores=[0], lend=True)
    load_config(state.config_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/" + "r" * 80)
    assert str(quickstart._short_dir(deep)).startswith("/tmp/swapd-")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    assert str(quickstart._short_dir(deep)).startswith("/tmp/swapd-")


def test_the_default_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/var/state")
    assert default_folder() == Path("/var/state/swapd/quickstart")
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_STATE_HOME", value)
        monkeypatch.setenv("HOME", "/home/me")
        assert default_folder() == Path("/home/me/.local/state/swapd/quickstart")


def test_a_port_in_use_is_replaced_by_a_free_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert choose_port(port) != port
    assert choose_port(port) == port
    assert choose_port(0) > 0
