"""Local time follows the zone that the machine is set to, also when it is set anew."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from swapd.lending.local_time import LocalTime
from tests.lending import zones

JANUARY_S = 1_767_225_600.0
JULY_S = JANUARY_S + 182 * 86_400


def hours(local: LocalTime, wall_s: float) -> float:
    offset = local.at(wall_s).utcoffset()
    assert offset is not None
    return offset / timedelta(hours=1)


def test_the_zone_is_the_machines_with_its_summer_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    path = tmp_path / "localtime"
    path.write_bytes(zones.zone_bytes(zones.BERLIN))
    local = LocalTime(str(path))
    assert hours(local, JANUARY_S) == 1
    assert hours(local, JULY_S) == 2
    assert local.at(JANUARY_S).timestamp() == JANUARY_S


def test_a_zone_that_is_set_anew_holds_at_once(tmp_path: Path) -> None:
    path = tmp_path / "localtime"
    (tmp_path / "berlin").write_bytes(zones.zone_bytes(zones.BERLIN))
    (tmp_path / "kolkata").write_bytes(zones.zone_bytes(zones.KOLKATA))
    path.symlink_to("berlin")
    local = LocalTime(str(path))
    assert hours(local, JANUARY_S) == 1
    path.unlink()
    assert hours(local, JANUARY_S) == 0  # none is set: UTC
    path.symlink_to("kolkata")
    assert hours(local, JANUARY_S) == 5.5


def test_a_file_that_is_no_zone_means_utc(tmp_path: Path) -> None:
    path = tmp_path / "localtime"
    path.write_bytes(b"nothing of the kind")
    assert hours(LocalTime(str(path)), JULY_S) == 0
