"""First paint and weight of pages, measured by a real browser."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ops.judging import NotRun

if TYPE_CHECKING:
    # Not installed on every Python that the tests of this bench run on.
    from playwright.sync_api import Browser

CHROMIUM: Final = Path("/usr/bin/chromium")
ARGUMENTS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-quic",
    "--no-first-run",
    "--disable-component-update",
    "--disable-sync",
)
PAINT_MS: Final = 10_000
SETTLED_S: Final = 1.0
"""A fresh profile is a new window, and for most of a second that loads the browser's own pages beside ours:
its address bar's pop-up is one. Two cores would be shared with that; a trace showed 30 to 60 ms of it."""
_PAINTED: Final = """() => new Promise(done => {
  const first = () => performance.getEntriesByName('first-contentful-paint')[0];
  if (first()) return done(first().startTime);
  new PerformanceObserver((_, o) => { if (first()) { o.disconnect(); done(first().startTime); } })
    .observe({type: 'paint', buffered: true});
})"""
_WEIGHT: Final = """() => performance.getEntriesByType('navigation')
  .concat(performance.getEntriesByType('resource').filter(e => !e.name.includes('/live/')))
  .reduce((sum, entry) => sum + entry.transferSize, 0)"""


class Paint(NamedTuple):
    """One page, opened `len(paint_ms)` times by a browser that had nothing of it; bytes as transferred."""

    page: str
    paint_ms: tuple[float, ...]
    bytes: int


def paints(
    address: str, token: str, pages: Sequence[str], times: int, told: Callable[[str], None]
) -> list[Paint]:
    """Open every page `times` times, in turns. Raises `NotRun` where there is no browser to measure with."""
    from playwright.sync_api import Error, sync_playwright

    if not CHROMIUM.exists():
        raise NotRun(f"{CHROMIUM} is not installed")
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=str(CHROMIUM), headless=True, args=list(ARGUMENTS)
            )
            found: dict[str, list[tuple[float, int]]] = {page: [] for page in pages}
            for turn in range(times + 1):
                for page in pages:
                    figures = _open(browser, address + page, token)
                    # The browser's own first page of a kind is slower, whatever is on it.
                    if turn:
                        found[page].append(figures)
                if turn % 5 == 0:
                    told(f"pages opened {turn} of {times} times")
            browser.close()
    except Error as error:
        raise NotRun(f"the browser failed: {error.message.splitlines()[0]}") from error
    return [
        Paint(page, tuple(round(paint, 1) for paint, _ in each), max(weight for _, weight in each))
        for page, each in found.items()
    ]


def _open(browser: Browser, address: str, token: str) -> tuple[float, int]:
    context = browser.new_context(extra_http_headers={"Authorization": f"Bearer {token}"})
    try:
        page = context.new_page()
        page.set_default_timeout(PAINT_MS)
        time.sleep(SETTLED_S)
        answer = page.goto(address)
        if answer is None or not answer.ok:
            raise NotRun(f"{address} answered {answer.status if answer else 'nothing'}")
        return float(page.evaluate(_PAINTED)), int(page.evaluate(_WEIGHT))
    finally:
        context.close()
