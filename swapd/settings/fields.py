"""The settings that the console changes, in the words of their page. Pure.

They are those of the calibration rules (`SETTABLE`, `SETTABLE_EXCEPTIONS`) and the owner's policies that need
no engineer. A field is named by its key: no key stands in both tables.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from swapd.config import OwnerConfig, PressureConfig
from swapd.config_lines import Path
from swapd.config_rules import RANGES

Kind = Literal["choice", "flag", "number", "whole", "lines"]

OWNER: Final[Path] = ("owner",)
PRESSURE: Final[Path] = ("owner", "gpu_pressure")

YES, NO = "yes", "no"


class Field(NamedTuple):
    """One setting: where it stands in the file, and what it means to an owner."""

    key: str
    table: Path
    kind: Kind
    label: str
    meaning: str
    unit: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    """What the file says, and what the page says for it."""

    @property
    def path(self) -> Path:
        return (*self.table, self.key)

    @property
    def range(self) -> tuple[float, float] | None:
        """Smallest and largest number; None where it is none."""
        return RANGES[PressureConfig if self.table == PRESSURE else OwnerConfig].get(self.key)


class Group(NamedTuple):
    """Fields under one heading."""

    name: str
    heading: str
    intro: str
    fields: tuple[Field, ...]


GROUPS: Final = (
    Group(
        "lending",
        "When your devices are lent",
        "",
        (
            Field(
                "consent",
                OWNER,
                "flag",
                "Lend my devices",
                "While this says no, nothing is lent.",
                choices=((YES, "yes"), (NO, "no")),
            ),
            Field(
                "lend_when",
                OWNER,
                "choice",
                "Lend them",
                "Unlocking the screen takes them back if you choose the second.",
                choices=(("always", "at any time"), ("locked", "only while the screen is locked")),
            ),
            Field(
                "quiet_hours",
                OWNER,
                "lines",
                "Quiet hours",
                "Nothing is lent then. One span a line, by the clock on your wall: 22:00-07:00 or"
                " Mon-Fri 09:00-17:30.",
            ),
            Field(
                "quiet_lead_s",
                OWNER,
                "number",
                "Begin to give back before quiet hours",
                "So that the device is free when they begin.",
                "seconds",
            ),
            Field(
                "resume_after_s",
                OWNER,
                "number",
                "Rest before lending again",
                "For so long you must not have needed a device before it is lent again.",
                "seconds",
            ),
        ),
    ),
    Group(
        "return",
        "How you get a device back",
        "",
        (
            Field(
                "release",
                OWNER,
                "choice",
                "The programs that swapd runs on it",
                "Ending them gives you all of its memory; keeping them lends it again sooner.",
                choices=(("stop", "end, and their memory is yours"), ("keep", "stay, without work")),
            ),
            Field(
                "when_full",
                OWNER,
                "choice",
                "Work that no other device has room for",
                "Waiting in memory needs park_bytes in the configuration file.",
                choices=(
                    ("finish", "may finish, for the time below"),
                    ("cancel", "ends at once"),
                    ("park", "waits in this machine's memory"),
                ),
            ),
            Field(
                "finish_s",
                OWNER,
                "number",
                "Time to finish",
                "The longest that you wait for such work.",
                "seconds",
            ),
            Field(
                "min_free_mib",
                OWNER,
                "whole",
                "Memory that you want free",
                "With less than this free on a device while others hold some of it, it is given back."
                " 0: this is not watched.",
                "MiB",
            ),
            Field(
                "gamemode",
                OWNER,
                "flag",
                "Give back for games",
                "A game that registers with GameMode takes the devices back at once.",
                choices=((YES, "yes"), (NO, "no")),
            ),
        ),
    ),
    Group(
        "exceptions",
        "Whose work counts",
        "Names of programs as the system shows them, one a line, such as obs; not paths.",
        (
            Field(
                "ignore",
                OWNER,
                "lines",
                "Programs that do not count",
                "What they use is not taken for your need. Under another list swapd learns each device anew.",
            ),
            Field(
                "always",
                OWNER,
                "lines",
                "Programs that always count",
                "While one of them is on a device, the device is yours, however little it uses.",
            ),
        ),
    ),
    Group(
        "pressure",
        "When your load counts as a need",
        "A load below the threshold never counts, however long it lasts: for that there are programs that"
        " always count, quiet hours, and taking the device back by hand.",
        (
            Field(
                "mode",
                PRESSURE,
                "choice",
                "Threshold",
                "The load from which on a device is given back.",
                choices=(("calibrated", "learned from your normal use"), ("fixed", "fixed, set by you")),
            ),
            Field(
                "threshold_pct",
                PRESSURE,
                "number",
                "Fixed threshold",
                "Above 0 and at most 100; left empty while the threshold is learned."
                " Lowest and highest threshold below do not bind it.",
                "%",
            ),
            Field(
                "sustain_s",
                PRESSURE,
                "number",
                "For how long",
                "Every reading must be at or above the threshold for so long before a device is given back.",
                "seconds",
            ),
        ),
    ),
    Group(
        "learning",
        "How the threshold is learned",
        "They count while the threshold is learned. What was learned is kept when they change.",
        (
            Field(
                "learn_quantile",
                PRESSURE,
                "number",
                "Share of the time that is normal",
                "Your normal load is the one that you stay below for this share of the time, 0.75 being"
                " three quarters.",
            ),
            Field(
                "learn_half_life_h",
                PRESSURE,
                "number",
                "Half-life of what was seen",
                "After so many hours of observed use a reading counts half.",
                "hours",
            ),
            Field(
                "margin_pct",
                PRESSURE,
                "number",
                "Margin above normal",
                "The threshold is so far above your normal load.",
                "points",
            ),
            Field(
                "floor_pct",
                PRESSURE,
                "number",
                "Lowest threshold (floor)",
                "However idle the device normally is.",
                "%",
            ),
            Field(
                "cap_pct",
                PRESSURE,
                "number",
                "Highest threshold (cap)",
                "Not below the floor and at most 90. A load at or above it counts, whatever was learned.",
                "%",
            ),
            Field(
                "raise_pct_per_h",
                PRESSURE,
                "number",
                "How fast it may rise",
                "In an hour of observed use. It falls at once.",
                "% an hour",
            ),
            Field(
                "warmup_samples",
                PRESSURE,
                "whole",
                "Readings before lending",
                "A device of which nothing was learned yet is lent after so many.",
                "readings",
            ),
        ),
    ),
)
FIELDS: Final = {field.key: field for group in GROUPS for field in group.fields}


def value_of(owner: OwnerConfig, field: Field) -> object:
    """What a configuration has for a field, written or by default."""
    return getattr(owner.gpu_pressure if field.table == PRESSURE else owner, field.key)
