"""Which of the whole deployments run on each Python: those that are chosen (see conftest.py)."""

from __future__ import annotations

import pytest


def test_a_whole_deployment_counts_as_once(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("once")


@pytest.mark.each_python
def test_but_for_those_that_were_chosen(request: pytest.FixtureRequest) -> None:
    assert not request.node.get_closest_marker("once")
