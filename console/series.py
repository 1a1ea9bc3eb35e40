"""The metrics of `/metrics` as a table for people: nobody needs a Grafana to look at them (B42). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families


class Row(NamedTuple):
    """One series: its labels' values, and its value. `mean` is set for what is a spread of many."""

    labels: str
    value: str
    mean: str = ""


class Family(NamedTuple):
    """One metric, with what it means."""

    name: str
    help: str
    rows: tuple[Row, ...]


def families(text: bytes) -> list[Family]:
    """Every metric in the order of the text; of its series those that are not zero.

    Where all are, one zero; where there are none, because nothing is known yet, the word.
    """
    found = []
    for metric in text_string_to_metric_families(text.decode()):
        rows = tuple(_spread_rows(metric) if metric.type == "histogram" else _rows(metric))
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        nothing = Row("", "0" if metric.samples else "none")
        found.append(Family(name, metric.documentation, rows or (nothing,)))
    return found


def _rows(metric: Metric) -> Iterator[Row]:
    for sample in metric.samples:
        if sample.value:
            yield Row(_labels(sample.labels.values()), _number(sample.value))


def _spread_rows(metric: Metric) -> Iterator[Row]:
    """How many there were, and their mean."""
    sums = {_key(s.labels): s.value for s in metric.samples if s.name.endswith("_sum")}
    for sample in metric.samples:
        if sample.name.endswith("_count") and sample.value:
            mean = sums[_key(sample.labels)] / sample.value
            yield Row(_labels(sample.labels.values()), _number(sample.value), _number(mean))


def _key(labels: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


def _labels(values: Iterable[str]) -> str:
    return ", ".join(values)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:.4g}"
