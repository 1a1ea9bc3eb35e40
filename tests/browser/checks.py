"""What holds for every page: nobody is shut out, it fits a phone, and it is light."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from PIL import Image
from playwright.sync_api import Page

from tests.browser.visit import PHONE

Scheme = Literal["light", "dark"]

HERE: Final = Path(__file__).resolve().parent
PICTURES: Final = HERE.parents[1] / "docs" / "console"
MAX_PICTURE_BYTES: Final = 200_000
MAX_WEIGHT_BYTES: Final = 150_000
MIN_TARGET_PX: Final = 24
"""WCAG 2.2, 2.5.8; links within a sentence are exempt there."""
COLOURS: Final = 128

AXE_RUN: Final = "axe.run(document, {resultTypes: ['violations']}).then(found => found.violations)"
# What is one pixel wide is for screen readers, and shown in full once it has the focus.
SMALL_TARGETS: Final = """least => [...document.querySelectorAll('a, button, input, select, summary')]
  .filter(each => each.type !== 'hidden' && each.checkVisibility({visibilityProperty: true}))
  .filter(each => each.tagName !== 'A' || !each.closest('p, li, dd, td, figcaption'))
  .map(each => [(each.closest('label') || each).getBoundingClientRect(), each.outerHTML])
  .filter(([box]) => box.width > 1 && (box.width < least || box.height < least))
  .map(([box, text]) => `${text.slice(0, 120)}: ${box.width} x ${box.height}`)"""
TOO_WIDE: Final = """() => [...document.querySelectorAll('body *')]
  .filter(each => each.getBoundingClientRect().right > innerWidth + 0.5)
  .map(each => each.outerHTML.slice(0, 120))"""
TWO_FRAMES: Final = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
WEIGHT: Final = """() => ['navigation', 'resource'].flatMap(kind => performance.getEntriesByType(kind))
  .filter(each => !each.name.includes('/live/')).map(each => [each.name, each.transferSize])"""


@cache
def _axe() -> str:
    return (HERE / "vendor" / "axe.min.js").read_text()


def show_in(page: Page, scheme: Scheme) -> None:
    """Switch to light or dark, and wait until the page is painted so."""
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.wait_for_function(f"matchMedia('(prefers-color-scheme: {scheme})').matches")
    page.evaluate(TWO_FRAMES)
    page.wait_for_function("document.getAnimations().every(each => each.playState === 'finished')")


def assert_accessible(page: Page) -> None:
    """axe-core finds nothing wrong with what the page shows now."""
    # Evaluated by the debugger's protocol, which the page's own policy does not bind.
    page.evaluate(_axe())
    violations: list[Any] = page.evaluate(AXE_RUN)
    told = [
        f"{found['id']} ({found['impact']}): {found['help']}\n"
        + "\n".join(f"  {' '.join(node['target'])}\n    {node['failureSummary']}" for node in found["nodes"])
        for found in violations
    ]
    assert not told, "\n" + "\n".join(told)


def assert_fits_phone(page: Page) -> None:
    """At 360 px nothing has to be scrolled sideways, and everything can be hit with a thumb."""
    before = page.viewport_size
    page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= PHONE["width"], (width, page.evaluate(TOO_WIDE))
    small = page.evaluate(SMALL_TARGETS, MIN_TARGET_PX)
    assert not small, "\n".join(small)
    if before is not None:
        page.set_viewport_size(before)


def assert_light(page: Page) -> None:
    """A first visit brings under 150 KB in all; to be asked of a page that was opened with an empty cache."""
    parts = page.evaluate(WEIGHT)
    weight = sum(size for _, size in parts)
    # The page itself and its style at least: else the sizes were not told.
    assert sum(size > 0 for _, size in parts) >= 2, parts
    assert weight < MAX_WEIGHT_BYTES, (weight, parts)


def picture(page: Page, name: str, folder: Path = PICTURES) -> Path:
    """A picture of the whole page, small enough for the docs."""
    raw = page.screenshot(full_page=True, animations="disabled")
    image = Image.open(io.BytesIO(raw)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    path = folder / f"{name}.png"
    image.save(path, optimize=True)
    assert path.stat().st_size < MAX_PICTURE_BYTES, (name, path.stat().st_size)
    return path
