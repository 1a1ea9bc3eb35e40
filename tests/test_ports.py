"""Ports that tests hand to services."""

from __future__ import annotations

import socket

from tests.ports import FIRST, PART, PARTS, free_port


def test_ports_are_free_different_and_none_that_the_kernel_gives_away() -> None:
    ports = [free_port() for _ in range(20)]
    assert len(set(ports)) == len(ports)
    assert all(FIRST <= port < FIRST + PART * PARTS < 32_768 for port in ports)
    with socket.create_server(
        ("127.0.0.1", ports[-1] + 1 if ports[-1] + 1 < FIRST + PART else FIRST)
    ) as taken:
        assert free_port() != taken.getsockname()[1]
