"""Time zones made from their rule alone, so that the tests need no zone files of the machine."""

from __future__ import annotations

import io
import struct
from zoneinfo import ZoneInfo

# Rules as POSIX writes them.
BERLIN = "CET-1CEST,M3.5.0,M10.5.0/3"
NEW_YORK = "EST5EDT,M3.2.0,M11.1.0"
LORD_HOWE = "<+1030>-10:30<+11>-11,M10.1.0,M4.1.0"
"""Half an hour of summer time, south of the equator."""
KOLKATA = "IST-5:30"
MIDNIGHT_JUMP = "EET-2EEST,M3.4.5/0,M10.5.5/0"
"""Clocks go from 0:00 to 1:00, as in Beirut or Cairo: that day has no midnight."""


def zone_bytes(rule: str) -> bytes:
    """A zone file (TZif, version 2) that holds no transition but the rule for all times."""
    part = b"TZif2" + bytes(15) + struct.pack(">6l", 0, 0, 0, 0, 1, 1) + struct.pack(">lbb", 0, 0, 0) + b"\0"
    return part + part + b"\n" + rule.encode() + b"\n"


def zone(rule: str) -> ZoneInfo:
    return ZoneInfo.from_file(io.BytesIO(zone_bytes(rule)), key=rule)
