"""What the console's settings page gets and sends. `change.values` are texts as a person wrote them."""

from __future__ import annotations

from typing import Literal

import msgspec

from swapd.errors import Code, SwapdError
from swapd.pressure.settings_rules import FieldProblem
from swapd.settings.fields import Kind


class FieldView(msgspec.Struct, frozen=True):
    """One setting. `value` is what the file says as it is entered, `saved` the same in words."""

    key: str
    kind: Kind
    label: str
    meaning: str
    unit: str
    choices: tuple[tuple[str, str], ...]
    value: str
    saved: str
    written: bool
    """Whether it stands in the file; otherwise `value` is the default."""
    default: str
    """In words, as `running`."""
    running: str
    """What is in force now, in words; it changes with the next start (R126)."""
    pending: bool
    """Whether the file's value applies at the next start only."""
    note: str | None = None
    """Why what is in force is not what the file says word for word: a cap over 90, a retired mode."""


class GroupView(msgspec.Struct, frozen=True):
    """Settings under one heading."""

    name: str
    heading: str
    intro: str
    fields: tuple[FieldView, ...]


class SettingsView(msgspec.Struct, frozen=True):
    """The settings page: saved values beside those in force."""

    path: str
    digest: str
    """Of the file, to save against; empty where it cannot be read."""
    groups: tuple[GroupView, ...]
    pending: tuple[str, ...]
    """Labels of the settings that apply at the next start."""
    problem: str | None
    """Why nothing can be saved from here: the file cannot be read, or not be written."""
    retired: tuple[str, ...]
    """Retired keys that the file still holds and a save removes (R122)."""
    warnings: tuple[str, ...]
    """What a start with this file would warn about concerning the owner's settings."""
    others_changed: bool
    """Whether something that is not shown here was changed in the file since the start."""


class SettingsChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A filled-in form, by the fields' keys; what is absent stays. `digest` is of the file it was for."""

    values: dict[str, str]
    digest: str


class Changed(msgspec.Struct, frozen=True):
    """One setting that a save would change, in words."""

    label: str
    before: str
    after: str


class Replayed(msgspec.Struct, frozen=True):
    """What the last six hours come to under some settings."""

    events: int
    """How often pressure engaged."""
    engaged_s: float
    threshold_pct: float | None
    """At the end; None where there was none to go by."""
    refused_readings: int
    """Readings at which the device was not lent because it was still learning."""


class DevicePreview(msgspec.Struct, frozen=True):
    """One device's last six hours, as they went and replayed. `sentence` says it in one."""

    device: str
    sentence: str
    readings: int
    since: float | None
    recorded_events: int
    running: Replayed | None
    new: Replayed | None


ReplayState = Literal["done", "too_long", "not_measured"]


class SettingsPreview(msgspec.Struct, frozen=True):
    """What saving would do: to the file, and to the last six hours."""

    changes: tuple[Changed, ...]
    removed: tuple[str, ...]
    """Retired keys that go with the save (R122)."""
    diff: tuple[str, ...]
    """Lines of a unified diff; lines of other parts of the file are left out."""
    replay: ReplayState
    devices: tuple[DevicePreview, ...]
    notes: tuple[str, ...]
    """What the replay cannot know of this change, in sentences."""
    warnings: tuple[str, ...]


class SettingsRefused(SwapdError):
    """Nothing was written (R40); `problems` stand beside their fields, those of no field under ''."""

    def __init__(self, problems: tuple[FieldProblem, ...]) -> None:
        self.problems = problems
        count = len(problems)
        super().__init__(Code.SETTINGS_INVALID, f"{count} {'thing' if count == 1 else 'things'} to correct")
