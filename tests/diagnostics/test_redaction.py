"""Only what a list names may leave the machine: of settings and of log lines (B42)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from swapd.config import (
    Config,
    CredentialConfig,
    DeviceConfig,
    ModelConfig,
    OwnerConfig,
    PressureConfig,
    WorkerConfig,
)
from swapd.diagnostics.redaction import LINE_KEYS, SHOWN, shown_config, shown_line
from swapd.log import LIBRARY_MESSAGE

SECRET = "canary-secret"
FULL = Config(
    database_path=f"/home/{SECRET}/swapd.db",
    socket_dir=f"/run/{SECRET}",
    park_dir=f"/var/{SECRET}",
    host=f"{SECRET}.lan",
    workers=(WorkerConfig("a", device="gpu0", python=f"/opt/{SECRET}/python", incarnation=SECRET),),
    models=(ModelConfig("m", f"/models/{SECRET}", weights_digest=SECRET, tokenizer_digest=SECRET),),
    credentials=(CredentialConfig(SECRET, SECRET, None), CredentialConfig("ops", None, "ab" * 32, True)),
    devices=(DeviceConfig("gpu0", selector="GPU-1"),),
    owner=OwnerConfig(
        consent=True,
        ignore=(SECRET,),
        always=(SECRET,),
        gpu_pressure=PressureConfig(cap_pct=55.0, state_file=f"/home/{SECRET}/p.json"),
    ),
)


def test_credentials_paths_and_names_of_programs_are_left_out() -> None:
    """B42, H182"""
    shown = shown_config(FULL)
    text = json.dumps(shown)
    assert SECRET not in text
    assert "ab" * 32 not in text
    assert shown["owner"]["consent"] is True
    assert shown["owner"]["gpu_pressure"]["cap_pct"] == 55.0
    assert shown["devices"] == [{"name": "gpu0", "kind": "nvml", "selector": "GPU-1", "cores": []}]
    assert shown["timers"]["rpc_s"] == 2.0
    assert shown["limits"]["max_new_tokens"] is None
    assert shown["models"][0]["alias"] == "m"


def test_what_is_left_out_is_named() -> None:
    left_out = set(shown_config(FULL)["left_out"])
    assert {"credentials", "database_path", "socket_dir", "host", "park_dir", "models.path"} <= left_out
    assert {"owner.ignore", "owner.always", "owner.gpu_pressure.state_file", "workers.python"} <= left_out
    plain = Config("d", "s", (WorkerConfig("a"),), (ModelConfig("m", "p"),), ())
    assert "owner.ignore" not in shown_config(plain)["left_out"]


def test_a_setting_that_nobody_has_looked_at_is_private() -> None:
    """B42: a list of what is harmless, not one of what is secret."""

    class Later(OwnerConfig, frozen=True, forbid_unknown_fields=True):
        new_setting: str = SECRET

    later = msgspec.structs.replace(FULL, owner=Later())
    shown = shown_config(later)
    assert SECRET not in json.dumps(shown)
    assert shown["owner"] == {}  # not even its known ones, for nobody has looked at that section


def test_every_setting_that_is_shown_exists() -> None:
    for kind, names in SHOWN.items():
        assert names <= set(kind.__struct_fields__), kind


def line(**changes: Any) -> str:
    fields = {"time": "t", "level": "info", "logger": "swapd.x", "message": "worker ready", "worker": "a"}
    return json.dumps(fields | changes)


def test_a_line_of_ours_is_shown_without_what_no_list_names() -> None:
    """H181, B42"""
    shown = shown_line(line(prompt=SECRET, path=f"/home/{SECRET}", nested={"a": SECRET}, reason="x" * 999))
    assert shown == {
        "time": "t",
        "level": "info",
        "logger": "swapd.x",
        "message": "worker ready",
        "worker": "a",
    }
    assert not LINE_KEYS & {"prompt", "token", "text", "path", "socket_dir", "endpoint", "database", "host"}


@pytest.mark.parametrize(
    "text",
    [
        f"INFO engine said {SECRET}",
        "",
        "[1, 2]",
        "null",
        "{" * 3000,
        json.dumps({"message": SECRET}),
        line(logger="vllm.engine", message=SECRET),
        line(logger=5, message=SECRET),
    ],
)
def test_what_is_no_line_of_ours_is_dropped(text: str) -> None:
    """H183, B42: an engine prints what its users send."""
    assert shown_line(text) is None


def test_a_librarys_line_is_shown_for_its_place() -> None:
    """H183"""
    shown = shown_line(line(logger="vllm.engine", message=LIBRARY_MESSAGE, at="core:12"))
    assert shown is not None
    assert shown["at"] == "core:12"
