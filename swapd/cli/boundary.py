"""Where a refusal becomes one sentence and an exit status, instead of a traceback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import click

from swapd.errors import SwapdError

EXIT_DONE: Final = 0
EXIT_NOT_AS_ASKED: Final = 1
EXIT_REFUSED: Final = 2
EXIT_INTERRUPTED: Final = 130


class SentenceGroup(click.Group):
    """Prints a `SwapdError` as `swapd: sentence [code]` and exits with 2."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SwapdError as error:
            refused = error
        except BaseExceptionGroup as group:
            # A nursery on the way wraps what passes through it.
            refusals, rest = group.split(SwapdError)
            if refusals is None or rest is not None:
                raise
            refused = _first(refusals)
        except KeyboardInterrupt:
            ctx.exit(EXIT_INTERRUPTED)
        click.echo(f"swapd: {refused.sentence} [{refused.code}]", err=True)
        return ctx.exit(EXIT_REFUSED)


def _first(group: BaseExceptionGroup[SwapdError]) -> SwapdError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


@contextmanager
def refusals_as_json(wanted: bool) -> Iterator[None]:
    """With `--json` a refusal is also an object on stdout, as in the HTTP API."""
    try:
        yield
    except SwapdError as error:
        if wanted:
            body = {"code": str(error.code), "message": error.sentence, "retryable": error.retryable}
            click.echo(json.dumps({"error": body}))
        raise
