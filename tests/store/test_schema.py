"""The schema: made once, refused when newer (H162), and the lock beside it (H122)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from swapd.errors import Code, SwapdError
from swapd.store.schema import migrate
from swapd.store.writer import LOCK_NAME, Store


def test_a_database_is_migrated_once(db: sqlite3.Connection) -> None:
    before = db.execute("SELECT sql FROM sqlite_schema ORDER BY name").fetchall()
    migrate(db)
    assert db.execute("SELECT sql FROM sqlite_schema ORDER BY name").fetchall() == before
    assert db.execute("SELECT name FROM _sqlite_migrations").fetchall() == [
        ("0001_initial",),
        ("0002_devices",),
        ("0003_quarantines",),
        ("0004_activity",),
        ("0005_sign_ins",),
        ("0006_askers",),
        ("0007_revocations",),
    ]


def test_a_store_of_a_newer_swapd_is_refused_and_left_as_it_is(path: Path) -> None:
    """H162"""
    Store.open(path).close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("INSERT INTO _sqlite_migrations (migration_set, name) VALUES ('swapd', '0099_future')")
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(SwapdError) as refusal:
            Store.open(path)
        assert refusal.value.code == Code.SCHEMA_NEWER
        assert "0099_future" in refusal.value.detail
    assert path.read_bytes() == before


def test_migrations_of_others_in_the_same_file_are_no_concern(path: Path) -> None:
    Store.open(path).close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("INSERT INTO _sqlite_migrations (migration_set, name) VALUES ('reports', '0001')")
    Store.open(path).close()


def test_a_file_that_is_no_database_is_not_touched(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"not a database, but somebody's notes\n" * 100)
    with pytest.raises(SwapdError, match="not a database") as caught:
        Store.open(path)
    assert caught.value.code is Code.STORE_FAILED
    assert path.read_bytes().startswith(b"not a database")


@pytest.mark.parametrize("name", ["folder", "a\0b", "file/x.db"])
def test_a_path_that_cannot_be_a_store_is_refused_in_one_sentence(path: Path, name: str) -> None:
    path.parent.mkdir()
    (path.parent / "folder").mkdir()
    (path.parent / "file").touch()
    with pytest.raises(SwapdError) as caught:
        Store.open(path.parent / name)
    assert caught.value.code is Code.STORE_FAILED
    assert str(path.parent) in caught.value.detail
    Store.open(path).close()  # and the lock is free


def test_a_second_store_in_the_same_folder_is_refused_before_anything_is_made(path: Path) -> None:
    """H122: the lock is the folder's, whatever the database is called."""
    store = Store.open(path)
    try:
        other = path.with_name("other.db")
        with pytest.raises(SwapdError) as refusal:
            Store.open(other)
        assert refusal.value.code == Code.COORDINATOR_LOCK_HELD
        assert not other.exists()
        assert (path.parent / LOCK_NAME).exists()
    finally:
        store.close()
    Store.open(path).close()
