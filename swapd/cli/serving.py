"""Commands that run something: the service, a worker, the quickstart; and `check-config`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from swapd.cli import place
from swapd.cli.boundary import refusals_as_json
from swapd.errors import Code, SwapdError

if TYPE_CHECKING:
    from swapd.worker.settings import WorkerSettings


def refuse_windows(platform: str) -> None:
    """Refuse to run on Windows, in a sentence instead of a failed import (D35). `platform` is `sys.platform`.

    Raises `platform_unsupported`.
    """
    if platform in ("win32", "cygwin", "msys"):
        raise SwapdError(
            Code.PLATFORM_UNSUPPORTED, "on Windows use a Linux machine; WSL hides who uses the GPU"
        )


@click.command(short_help="Run the service of a configuration.")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    default=place.DEFAULT_CONFIG,
    show_default=True,
    help="The configuration; nothing else is read.",
)
def serve(config: Path) -> None:
    """Run the service: HTTP API, ops socket, and the workers of the configuration.

    SIGTERM or Ctrl-C stops it; sessions that run go on in their workers and are taken up at the next start.
    """
    refuse_windows(sys.platform)
    import trio

    from swapd.log import configure_logging
    from swapd.serve import serve as run_service

    configure_logging()
    trio.run(partial(run_service, config, announce=_announce))


def _announce(host: str, port: int, link: Callable[[], str]) -> None:
    shown = f"[{host}]" if ":" in host else host
    click.echo(f"swapd serves http://{shown}:{port}")
    # A link is for a person's eyes: what is no terminal is somebody's log.
    if sys.stdout.isatty():
        click.echo(f"Owner console, for 15 minutes and one sign-in: {link()}")
    else:
        click.echo("Owner console: `swapd console-link` makes a link")


@click.command(short_help="Run one worker by hand.")
@click.option("--settings", type=click.Path(path_type=Path), help="A settings file as the service writes it.")
@click.option("--worker-id", help="The worker's name in the configuration.")
@click.option("--socket-dir", type=click.Path(path_type=Path), help="The service's folder of sockets.")
@click.option(
    "--engine",
    type=click.Choice(["vllm", "sim"]),
    default="vllm",
    show_default=True,
    help="sim makes up its output.",
)
@click.option("--model", type=click.Path(path_type=Path), help="The checkpoint's folder; vllm needs it.")
@click.option("--alias", help="The model's name; default: the folder's.")
@click.option("--max-model-len", type=int, help="The longest context in tokens.")
@click.option("--gpu-memory-utilization", type=float, help="Share of the GPU's memory that vLLM may take.")
@click.option("--kv-cache-bytes", type=int, help="Size of the KV cache on a CPU.")
@click.option("--cores", help="CPU cores to bind the engine to, as 0,1,2.")
@click.option("--window", type=int, help="Tokens that may be computed ahead of the store.")
def worker(settings: Path | None, **options: Any) -> None:
    """Run one worker by hand; the service starts its own unless its entry says `spawn = false`.

    Prints one JSON line when it is ready. Its settings come from --settings or from the other options.
    """
    refuse_windows(sys.platform)
    from swapd.log import configure_logging
    from swapd.worker.process import leave, run_worker
    from swapd.worker.settings import load_settings

    given = sorted(name for name, value in options.items() if value is not None and name != "engine")
    if settings is not None and given:
        names = ", ".join("--" + name.replace("_", "-") for name in given)
        raise SwapdError(Code.INVALID_REQUEST, f"--settings goes alone, without {names}")
    read = load_settings(str(settings)) if settings is not None else _settings(options)
    configure_logging()
    leave(run_worker(read))


def _settings(options: dict[str, Any]) -> WorkerSettings:
    """Settings from options (H100). Raises `invalid_request`."""
    from swapd.config import ModelConfig
    from swapd.worker.settings import WorkerSettings

    for name in ("worker_id", "socket_dir", *(("model",) if options["engine"] == "vllm" else ())):
        if options[name] is None:
            raise SwapdError(Code.INVALID_REQUEST, f"--{name.replace('_', '-')} is missing")
    model = None
    if options["model"] is not None:
        folder: Path = options["model"].resolve()
        limits = {
            name: options[name]
            for name in ("max_model_len", "gpu_memory_utilization", "kv_cache_bytes")
            if options[name] is not None
        }
        model = ModelConfig(alias=options["alias"] or folder.name, path=str(folder), **limits)
    try:
        return WorkerSettings(
            worker_id=options["worker_id"],
            socket_dir=str(options["socket_dir"].resolve()),
            engine=options["engine"],
            model=model,
            cores=tuple(int(core) for core in (options["cores"] or "").split(",") if core),
            **({"window": options["window"]} if options["window"] is not None else {}),
        )
    except ValueError as error:
        raise SwapdError(Code.INVALID_REQUEST, str(error)) from None


@click.command(hidden=True, short_help="Measure devices for the service, which starts it.")
@click.option("--settings", type=click.Path(path_type=Path), required=True, help="As the service writes it.")
def sampler(settings: Path) -> None:
    """Measure the devices of one kind whenever the service asks. The service starts it; people need not."""
    from swapd.devices.sampler import load_sampler_settings, run_sampler
    from swapd.log import configure_logging

    configure_logging()
    run_sampler(load_sampler_settings(str(settings)))


@click.command("check-config", short_help="Check a configuration without starting anything.")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    default=place.DEFAULT_CONFIG,
    show_default=True,
    help="The configuration to check.",
)
@place.json_option
def check_config(config: Path, as_json: bool) -> None:
    """Check a configuration as `serve` would, without starting or locking anything.

    \f
    H127.
    """
    import json

    from swapd.config_file import load_config

    with refusals_as_json(as_json):
        read, warnings = load_config(config)
    if as_json:
        click.echo(json.dumps({"ok": True, "warnings": warnings}))
        return
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    names = ", ".join(each.worker_id for each in read.workers)
    click.echo(f"{config} is valid: workers {names}; model {read.models[0].alias}; {place.base_url(read)}")


@click.command(short_help="Serve a small real model on this machine's CPU.")
@click.option("--once", is_flag=True, help="Move one running generation, report as JSON, and exit.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="Where it listens; another one when it is taken.",
)
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where its configuration and data go; default: under ~/.local/state.",
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Also write --once's report here.")
def quickstart(once: bool, port: int, folder: Path | None, json_path: Path | None) -> None:
    """Serve a small real model from two CPU workers on this machine, with nothing to configure.

    Prints the address, a token and commands to try, and serves until Ctrl-C. With --once it moves one
    running generation between the workers instead; the last line of its output is a JSON report.
    """
    refuse_windows(sys.platform)
    from swapd.quickstart import run_quickstart

    status = run_quickstart(once=once, port=port, folder=folder, json_path=json_path)
    click.get_current_context().exit(status)
