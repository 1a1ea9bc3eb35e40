"""The settings as their page shows them: what the file says beside what is in force. Pure."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping

import msgspec

from swapd import config_lending
from swapd.config import Config, OwnerConfig
from swapd.pressure.bounds import effective_cap_pct
from swapd.pressure.settings_rules import RETIRED_KEYS
from swapd.settings.change import entered, in_words
from swapd.settings.fields import GROUPS, Field, value_of
from swapd.settings.file import FileNow
from swapd.settings.views import FieldView, GroupView, SettingsView

DEFAULTS = OwnerConfig()


def settings_view(running: Config, saved: Config, now: FileNow, path: str) -> SettingsView:
    """The page for a file that can be read."""
    written: object = tomllib.loads(now.text)
    groups = _groups(running.owner, saved.owner, written)
    return SettingsView(
        path=path,
        digest=now.digest,
        groups=groups,
        pending=tuple(field.label for group in groups for field in group.fields if field.pending),
        problem=now.locked,
        retired=tuple(key for key in RETIRED_KEYS if getattr(saved.owner.gpu_pressure, key) is not None),
        warnings=tuple(found.text for found in config_lending.warnings(saved)),
        others_changed=_without_fields(saved) != _without_fields(running),
    )


def blank_view(running: Config, path: str, problem: str) -> SettingsView:
    """The page while the file cannot be read: what is in force, and why nothing can be changed."""
    groups = _groups(running.owner, running.owner, {})
    return SettingsView(path, "", groups, (), problem, (), (), others_changed=False)


def _groups(running: OwnerConfig, saved: OwnerConfig, written: object) -> tuple[GroupView, ...]:
    return tuple(
        GroupView(
            group.name,
            group.heading,
            group.intro,
            tuple(_field(field, running, saved, written) for field in group.fields),
        )
        for group in GROUPS
    )


def _field(field: Field, running: OwnerConfig, saved: OwnerConfig, written: object) -> FieldView:
    value, in_force = _offered(value_of(saved, field)), _offered(value_of(running, field))
    for name in field.path[:-1]:
        written = written.get(name, {}) if isinstance(written, Mapping) else {}
    return FieldView(
        key=field.key,
        kind=field.kind,
        label=field.label,
        meaning=field.meaning,
        unit=field.unit,
        choices=field.choices,
        value=entered(value, field.key),
        saved=in_words(field, value),
        written=isinstance(written, Mapping) and field.key in written,
        default=in_words(field, value_of(DEFAULTS, field)),
        running=in_words(field, in_force),
        pending=value != in_force,
        note=_note(field, running),
    )


def _offered(value: object) -> object:
    """R78: what runs as calibrated is shown as that."""
    return "calibrated" if value == "adaptive" else value


def _note(field: Field, running: OwnerConfig) -> str | None:
    pressure = running.gpu_pressure
    if field.key == "mode" and pressure.mode == "adaptive":
        return 'The file was started with mode = "adaptive", which is retired and runs as learned.'
    held = effective_cap_pct(pressure)
    if field.key == "cap_pct" and held != pressure.cap_pct:
        return f"In force it is held at {held:g} %."
    return None


def _without_fields(config: Config) -> Config:
    """A configuration with all that the page shows at its defaults."""
    shown = [field for group in GROUPS for field in group.fields]
    below = {f.key: value_of(DEFAULTS, f) for f in shown if f.path[1] == "gpu_pressure"}
    below |= dict.fromkeys(RETIRED_KEYS)
    here = {f.key: value_of(DEFAULTS, f) for f in shown if f.path[1] != "gpu_pressure"}
    pressure = msgspec.structs.replace(config.owner.gpu_pressure, **below)
    owner = msgspec.structs.replace(config.owner, **here, gpu_pressure=pressure)
    return msgspec.structs.replace(config, owner=owner)
