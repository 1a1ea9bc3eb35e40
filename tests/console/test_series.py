"""The metrics as people read them."""

from __future__ import annotations

from console.series import Row, families
from swapd.distribution import Distribution
from swapd.metrics import METRICS
from swapd.scrape import Scrape


def scraped():
    scrape = Scrape(["gpu0"], strict=True)
    scrape.put("swapd_tokens_accepted_total", 41_000.0)
    scrape.put_all("swapd_migrations_total", {"completed_native": 5, "failed": 1})
    scrape.put("swapd_pressure_reading_pct", 3.25, "gpu0", "locked")
    pauses = Distribution((0.1, 1.0))
    for seconds in (0.05, 0.15):
        pauses.add(seconds)
    scrape.put_spread("swapd_frozen_pause_seconds", pauses.spread())
    return scrape.text()


def test_every_metric_is_shown_with_its_meaning():
    """B42: under the name and with the help of `/metrics`."""
    shown = families(scraped())
    assert [(one.name, one.help) for one in shown] == [(one.name, one.help) for one in METRICS]


def test_what_is_not_zero_is_shown_by_its_labels():
    rows = {one.name: one.rows for one in families(scraped())}
    assert rows["swapd_tokens_accepted_total"] == (Row("", "41,000"),)
    assert rows["swapd_migrations_total"] == (Row("completed_native", "5"), Row("failed", "1"))
    assert rows["swapd_pressure_reading_pct"] == (Row("gpu0, locked", "3.25"),)
    assert rows["swapd_ready"] == (Row("", "0"),)
    assert rows["swapd_frozen_pause_seconds"] == (Row("", "2", "0.1"),)
    assert rows["swapd_store_commit_seconds"] == (Row("", "none"),)
    assert rows["swapd_pressure_baseline_pct"] == (Row("", "none"),)
