from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from swapd.store.schema import migrate


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    """An empty store's tables in memory, for what needs no disk."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection)
        yield connection


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test's database is made."""
    return tmp_path / "data" / "swapd.db"
