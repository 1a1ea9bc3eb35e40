"""`swapd generate`: one session, streamed to the terminal over the HTTP API."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from swapd.cli import place
from swapd.cli.boundary import EXIT_INTERRUPTED, EXIT_NOT_AS_ASKED, refusals_as_json
from swapd.errors import Code, SwapdError

if TYPE_CHECKING:
    from swapd.client import HttpClient
    from swapd.sse import SseEvent

CANCEL_TIMEOUT_S: Final = 5.0


@click.command(short_help="Generate from a prompt and print the text as it comes.")
@click.argument("prompt", required=False)
@click.option("--max-new-tokens", type=int, default=256, show_default=True, help="How many tokens at most.")
@click.option(
    "--temperature", type=float, default=1.0, show_default=True, help="0 always takes the likeliest."
)
@click.option(
    "--top-p",
    type=float,
    default=1.0,
    show_default=True,
    help="Draw from the likeliest tokens of this share.",
)
@click.option("--top-k", type=int, default=0, show_default=True, help="Draw from this many tokens; 0: all.")
@click.option("--seed", type=int, help="The same seed gives the same text.")
@click.option("--stop", multiple=True, help="Stop before this text; may be given several times.")
@click.option("--ignore-eos", is_flag=True, help="Go on to --max-new-tokens whatever the model says.")
@click.option("--allow-replay", is_flag=True, help="Permit recomputing if the worker is lost.")
@click.option("--keep", is_flag=True, help="On Ctrl-C leave the session running; its id is shown.")
@click.option("--url", help="The service's address, instead of the configuration's.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A file that holds the bearer token, instead of the configuration's.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help=place.CONFIG_HELP,
)
@place.json_option
def generate(
    prompt: str | None,
    url: str | None,
    token_file: Path | None,
    config: Path | None,
    keep: bool,
    as_json: bool,
    allow_replay: bool,
    stop: tuple[str, ...],
    **sampling: Any,
) -> None:
    """Generate from PROMPT, or from standard input, and print the text as it comes.

    A broken connection is taken up again where it broke. Ctrl-C cancels the session, unless --keep.
    """
    import trio

    text = prompt if prompt is not None else sys.stdin.read()
    with refusals_as_json(as_json):
        client = _client(url, token_file, config)
        body = {"prompt": text, **{name: value for name, value in sampling.items() if value is not None}}
        body |= {"stop": list(stop), "allow_replay_fallback": allow_replay}
        run = _Run(client, body, keep=keep, echo=not as_json)
        trio.run(run.main)
    if as_json:
        click.echo(run.as_json())
    elif run.terminal is not None and run.terminal.name != "completed":
        code = run.terminal.json().get("code") or run.terminal.json().get("reason")
        click.echo(f"swapd: the session ended as {run.terminal.name} [{code}]", err=True)
    if run.interrupted:
        click.get_current_context().exit(EXIT_INTERRUPTED)
    if run.terminal is None or run.terminal.name != "completed":
        click.get_current_context().exit(EXIT_NOT_AS_ASKED)


def _client(url: str | None, token_file: Path | None, config: Path | None) -> HttpClient:
    from swapd.client import HttpClient

    token = token_file.read_text().strip() if token_file is not None else None
    if url is None or token is None:
        read = place.require_config(config)
        url = url or place.base_url(read)
        token = token or place.plain_token(read)
    if token is None:
        raise SwapdError(
            Code.UNAUTHENTICATED, "the configuration holds digests only; name the token with --token-file"
        )
    return HttpClient(url, token)


def _lost(error: SwapdError) -> None:
    """Say that the stream broke, on a line of its own; the text goes on after it."""
    click.echo(f"\nswapd: the connection is lost, trying again ({error.detail or error.sentence})", err=True)


class _Run:
    """One generation, and what came of it."""

    def __init__(self, client: HttpClient, body: dict[str, Any], *, keep: bool, echo: bool) -> None:
        self.terminal: SseEvent | None = None
        self.interrupted = False
        self._client = client
        self._body = body
        self._keep = keep
        self._echo = echo
        self._session = ""
        self._text: list[str] = []
        self._reconnects = 0
        self._failure: SwapdError | None = None

    async def main(self) -> None:
        """Create, read to the end, and on a signal cancel. Raises the service's refusals."""
        import trio

        from swapd.views import SessionView

        view = await self._client.view("POST", "/v1/sessions", SessionView, self._body)
        self._session = view.id
        async with trio.open_nursery() as nursery:
            await nursery.start(self._watch_signals, nursery.cancel_scope)
            await self._read()
            nursery.cancel_scope.cancel()
        if self.interrupted:
            await self._leave()
        if self._failure is not None:
            raise self._failure

    async def _read(self) -> None:
        try:
            async with self._client.events(self._session, reconnect=True, on_lost=_lost) as stream:
                async for event in stream:
                    self._reconnects = stream.reconnects
                    if event.name == "token":
                        self._show(str(event.json().get("text", "")))
                    elif event.name != "created":
                        self._show(str(event.json().get("text") or ""))
                        self.terminal = event
        except SwapdError as error:
            # Raised by `main` once the nursery is closed, so that it does not arrive in a group.
            self._failure = error
        if self._echo:
            click.echo()

    def _show(self, text: str) -> None:
        self._text.append(text)
        if self._echo and text:
            click.echo(text, nl=False)
            sys.stdout.flush()

    async def _watch_signals(self, scope: Any, *, task_status: Any) -> None:
        import trio

        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for _number in signals:
                self.interrupted = True
                scope.cancel()
                return

    async def _leave(self) -> None:
        import trio

        from swapd.client import Unreachable

        if self._keep:
            click.echo(f"\nsession {self._session} goes on; `swapd cancel {self._session}` ends it", err=True)
            return
        said = "could not be cancelled: the service did not answer"
        with trio.move_on_after(CANCEL_TIMEOUT_S), suppress(Unreachable):
            await self._client.request("DELETE", f"/v1/sessions/{self._session}")
            said = "cancelled"
        click.echo(f"\nsession {self._session} {said}", err=True)

    def as_json(self) -> str:
        import json

        end = self.terminal.json() if self.terminal is not None else {}
        return json.dumps(
            {
                "session": self._session,
                "state": self.terminal.name if self.terminal is not None else None,
                "finish_reason": end.get("finish_reason"),
                "code": end.get("code"),
                "text": "".join(self._text),
                "reconnects": self._reconnects,
            }
        )
