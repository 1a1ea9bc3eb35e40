"""The pages on configuration and command line name everything that there is."""

from __future__ import annotations

import re
from pathlib import Path

import click
import msgspec
import pytest

from swapd import config
from swapd.cli import main
from swapd.config_rules import RANGES
from swapd.messages.ops import commands

DOCS = Path(__file__).parent.parent / "docs"
CLI = (DOCS / "cli.md").read_text()
CONFIGURATION = (DOCS / "configuration.md").read_text()

SECTIONS: dict[str, type[msgspec.Struct]] = {
    "The service": config.Config,
    "`[[workers]]`": config.WorkerConfig,
    "`[[models]]`": config.ModelConfig,
    "`[[credentials]]`": config.CredentialConfig,
    "`[[devices]]`": config.DeviceConfig,
    "`[owner]`": config.OwnerConfig,
    "`[owner.gpu_pressure]`": config.PressureConfig,
    "`[timers]`": config.TimerConfig,
    "`[limits]`": config.LimitConfig,
    "`[sim]`": config.SimConfig,
}


def section(text: str, head: str) -> str:
    """The part of a page under one `##` heading."""
    found = re.search(rf"^## {re.escape(head)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, head
    return found[1]


def rows(head: str) -> dict[str, str]:
    """A section's table: key to default, as written."""
    found = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section(CONFIGURATION, head), re.MULTILINE)
    return {key: default.strip() for key, default in found}


@pytest.mark.parametrize("head", SECTIONS)
def test_every_setting_is_documented_in_its_section_and_nothing_else_is(head: str) -> None:
    """H118."""
    fields = {field.name for field in msgspec.structs.fields(SECTIONS[head])}
    nested = {
        "workers",
        "models",
        "credentials",
        "devices",
        "owner",
        "gpu_pressure",
        "timers",
        "limits",
        "sim",
    }
    assert set(rows(head)) == fields - nested


@pytest.mark.parametrize("head", SECTIONS)
def test_documented_defaults_are_the_real_ones(head: str) -> None:
    for field in msgspec.structs.fields(SECTIONS[head]):
        told = rows(head).get(field.name)
        if told is None:
            continue
        if field.required:
            assert told == "required", field.name
        elif field.default is None or field.default == ():
            assert told in ("none", "`[]`", "the context", "the checkpoint's"), field.name
        elif "iB" in told:
            number, unit = told.split()
            assert int(number) << {"MiB": 20, "GiB": 30}[unit] == field.default, field.name
        else:
            value = field.default
            written = str(value).lower() if isinstance(value, bool) else str(value)
            quoted = f'"{value}"' if isinstance(value, str) else written.removesuffix(".0")
            assert told == f"`{quoted}`", field.name


@pytest.mark.parametrize("head", ["`[owner]`", "`[owner.gpu_pressure]`"])
def test_documented_ranges_of_lending_are_the_real_ones(head: str) -> None:
    found = re.findall(
        r"^\| `(\w+)` \| [^|]+ \| ([\d.]+) to (a day|[\d.]+) \|", section(CONFIGURATION, head), re.MULTILINE
    )
    told = {key: (float(low), 86_400.0 if high == "a day" else float(high)) for key, low, high in found}
    assert {key: bounds for key, bounds in told.items() if key != "borrower_ports"} == RANGES[SECTIONS[head]]


def test_the_limits_of_learned_pressure_are_told() -> None:
    """R9: a load below the threshold is never the owner's need, and the page says so."""
    told = " ".join(section(CONFIGURATION, "`[owner.gpu_pressure]`").split())
    assert "A load below the threshold never takes the device back, however long it lasts" in told


def test_the_example_is_a_configuration_that_is_taken() -> None:
    from swapd.config_file import parse_config

    example = re.search(r"```toml\n(.*?)```", CONFIGURATION, re.DOTALL)
    assert example is not None
    parsed = parse_config(example[1].replace("…", "0" * 64), folder=Path("/srv"), name="swapd.toml")
    assert [worker.worker_id for worker in parsed.workers] == ["a", "b"]


def test_every_command_has_its_section() -> None:
    assert set(re.findall(r"^## swapd (\S+)", CLI, re.MULTILINE)) == set(main.commands)


def test_every_option_that_the_page_names_exists() -> None:
    groups = [main, *(each for each in main.commands.values() if isinstance(each, click.Group))]
    known = {
        option
        for group in groups
        for command in group.commands.values()
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for option in parameter.opts
    }
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", CLI)) <= known | {"--help"}


def test_every_ops_command_is_named() -> None:
    for command in commands.OpsCommand.__args__:
        assert f"`{command.__struct_config__.tag}`" in section(CLI, "Scripts"), command
