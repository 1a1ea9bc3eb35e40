"""The rules once more, written from the document alone and as slowly as it reads: an oracle for the tests.

A reading is kept for ever with the observed time at which it came; weights are made anew each time, 2 to the
observed time over the half-life (O1, the other algorithm). Nothing of `swapd.pressure` is used here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from fractions import Fraction
from typing import Any

HINT = "learned load is above the calibration cap; target held at cap"


def weights(seen: list[tuple[Fraction, float]], half_life_s: Fraction) -> dict[int, float]:
    """Weight of each half-percent bin; the newest observed time weighs 1."""
    newest = seen[-1][0]
    parts: dict[int, list[float]] = defaultdict(list)
    for observed_s, value in seen:
        number = 199 if value == 100 else math.floor(Fraction(value) * 2)
        parts[number].append(2.0 ** float((observed_s - newest) / half_life_s))
    return {number: math.fsum(each) for number, each in sorted(parts.items())}


def quantile(by_bin: dict[int, float], share: float) -> tuple[float, float]:
    """The upper edge, and how far the decision was from a tie as a share of the total."""
    total = sum(Fraction(weight) for weight in by_bin.values())
    needed, below = Fraction(share) * total, Fraction(0)
    distances = []
    found = None
    for number, weight in by_bin.items():
        below += Fraction(weight)
        distances.append(abs(below - needed) / total)
        if found is None and below >= needed:
            found = (number + 1) / 2
    assert found is not None
    return found, float(min(distances))


class ModelProfile:
    def __init__(self) -> None:
        self.seen: list[tuple[Fraction, float]] = []
        self.observed_s = Fraction(0)
        self.threshold: Fraction | None = None


class Model:
    """One device, calibrated mode. `settings` by their names in the configuration."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.set = {name: Fraction(value) for name, value in settings.items()}
        self.profiles = {"locked": ModelProfile(), "unlocked": ModelProfile()}
        self.before: tuple[Fraction, str] | None = None
        self.engaged = False
        self.judged: list[tuple[Fraction, Fraction, Fraction]] = []
        """Time, value and threshold of valid readings since pressure last changed."""
        self.tie = 1.0
        """The closest that any decision was to a tie."""

    @property
    def gap(self) -> Fraction:
        return max(3 * self.set["poll_ms"], Fraction(20000)) / 1000

    @property
    def cap(self) -> Fraction:
        cap, floor = self.set["cap_pct"], self.set["floor_pct"]
        return floor if cap < floor else max(floor, min(cap, Fraction(90)))

    def step(self, t_s: float, reading: float | str, attendance: str) -> dict[str, Any]:
        time = Fraction(t_s)
        if attendance == "unknown":
            self.before = None
            return self._row(None, Fraction(0))
        if self.before is not None and self.before[1] != attendance:
            self.before = None
        profile = self.profiles[attendance]
        if isinstance(reading, str):
            if reading != "missing":
                self.before = None
            return self._row(profile, Fraction(0))
        passed = time - self.before[0] if self.before is not None else Fraction(0)
        credited = passed if 0 <= passed <= self.gap else Fraction(0)
        self.before = (time, attendance)
        profile.observed_s += credited
        profile.seen.append((profile.observed_s, reading))
        target = self._target(profile)
        if target is not None:
            if profile.threshold is None or target < profile.threshold:
                profile.threshold = target
            else:
                step = self.set["raise_pct_per_h"] * credited / 3600
                profile.threshold += min(target - profile.threshold, step)
            self._judge(time, Fraction(reading), profile.threshold)
        return self._row(profile, credited)

    def _baseline(self, profile: ModelProfile) -> float | None:
        if len(profile.seen) < self.set["warmup_samples"]:
            return None
        by_bin = weights(profile.seen, self.set["learn_half_life_h"] * 3600)
        edge, distance = quantile(by_bin, float(self.set["learn_quantile"]))
        self.tie = min(self.tie, distance)
        return edge

    def _target(self, profile: ModelProfile) -> Fraction | None:
        baseline = self._baseline(profile)
        if baseline is None:
            return None
        return max(self.set["floor_pct"], min(self.cap, Fraction(baseline) + self.set["margin_pct"]))

    def _judge(self, time: Fraction, value: Fraction, threshold: Fraction) -> None:
        if self.judged and not 0 <= time - self.judged[-1][0] <= self.gap:
            self.judged = []
        self.judged.append((time, value, threshold))
        spell = []
        for each in reversed(self.judged):
            at, load, limit = each
            band = min(self.set["release_band_pct"], limit / 2)
            if not (load < limit - band if self.engaged else load >= limit):
                break
            spell.append(at)
        needed = self.set["release_s"] if self.engaged else self.set["sustain_s"]
        if spell and spell[0] - spell[-1] >= needed:
            self.engaged = not self.engaged
            # The reading that changed it begins no spell of the other kind, but its time stays the last one.
            self.judged = [(time, Fraction(-1) if not self.engaged else Fraction(101), threshold)]

    def _row(self, profile: ModelProfile | None, credited: Fraction) -> dict[str, Any]:
        baseline = self._baseline(profile) if profile is not None and profile.seen else None
        target = self._target(profile) if profile is not None and profile.seen else None
        return {
            "credited_s": credited,
            "baseline_pct": baseline,
            "target_pct": target,
            "threshold_pct": profile.threshold if profile is not None else None,
            "engaged": self.engaged,
            "learned_samples": len(profile.seen) if profile is not None else 0,
            "learned_s": profile.observed_s if profile is not None else 0,
            "hint": HINT if baseline is not None and Fraction(baseline) > self.cap else None,
        }
