"""A machine that its owner calls headless: nobody sits at it, so there is one profile, `unlocked` (D34)."""

from __future__ import annotations

from typing import Final

from swapd.attendance.rules import Seen

HEADLESS: Final = Seen("unlocked", "headless by configuration")
