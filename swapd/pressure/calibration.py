"""What one device has learned and whether its owner needs it: both profiles and the hysteresis. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from swapd.config import PressureConfig
from swapd.pressure.bounds import fixed_threshold_pct, gap_limit_s, interval_s
from swapd.pressure.hysteresis import Hysteresis
from swapd.pressure.profile import ProfileLearning
from swapd.pressure.reading import (
    PROFILES,
    Attendance,
    Decision,
    Profile,
    ProfileState,
    ProfileSummary,
    Reading,
)


class DevicePressure:
    """Feed it every reading of one device, in order of time; it never looks at a clock itself."""

    def __init__(self, config: PressureConfig, *, headless: bool = False) -> None:
        self._headless = headless
        self._fixed = config.mode == "fixed"
        self._fixed_threshold_pct = fixed_threshold_pct(config)
        self._gap_limit_s = gap_limit_s(config)
        self._learning = {profile: ProfileLearning(config) for profile in PROFILES}
        self._hysteresis = Hysteresis(config)
        self._last_s: float | None = None
        """When the reading was taken that the next one continues; None where nothing may be credited."""
        self._last_profile: Profile | None = None

    def observe(self, t_s: float, reading: Reading, attendance: Attendance) -> Decision:
        """Take one reading in and say what follows from it.

        A number outside [0, 100] is taken as `invalid` (R22).
        """
        profile = self._profile(attendance)
        value = reading if not isinstance(reading, str) and 0.0 <= reading <= 100.0 else None
        credited_s = self._credit(t_s, reading, profile, value is not None)
        learning = self._learning[profile] if profile is not None else None
        if value is not None:
            if learning is not None and not self._fixed:
                learning.learn(value, credited_s)
            threshold = self._threshold_pct(learning)
            if threshold is not None:
                # R8: without a threshold there is no pressure, and what is engaged stays so (D33).
                self._hysteresis.observe(t_s, value, threshold)
        return self._decision(t_s, reading, profile, learning, credited_s)

    def restore(self, profile: Profile, state: ProfileState) -> None:
        """Take over what an earlier run saved, bounded by the settings in force (R88). Before any reading.

        In fixed mode nothing is taken over (R76), nor a profile that was not completed (R90).
        """
        if state.calibrated and not self._fixed:
            self._learning[profile].restore(state)

    def completed(self) -> Mapping[Profile, ProfileState]:
        """What is worth saving: completed profiles only (R90).

        Of a headless machine also a `locked` profile that was restored: it may get its screen back.
        """
        states = {profile: learning.state() for profile, learning in self._learning.items()}
        return {profile: state for profile, state in states.items() if state is not None}

    def summaries(self) -> Sequence[ProfileSummary]:
        """Both live histograms in short, `locked` first; one, `unlocked`, when headless."""
        return [
            learning.summary(profile)
            for profile, learning in self._learning.items()
            if profile == "unlocked" or not self._headless
        ]

    @property
    def engaged(self) -> bool:
        """Whether pressure is engaged."""
        return self._hysteresis.engaged

    def _profile(self, attendance: Attendance) -> Profile | None:
        if self._headless:
            return "unlocked"
        return None if attendance == "unknown" else attendance

    def _credit(self, t_s: float, reading: Reading, profile: Profile | None, valid: bool) -> float:
        """R16-R28: the observed interval that belongs to this reading, in seconds."""
        if profile != self._last_profile:
            # R23, R24: time elsewhere credits nothing.
            self._last_s, self._last_profile = None, profile
        if not valid:
            if reading != "missing":
                # R21, R22: an attempt that gave nothing breaks the line, a skipped tick does not (R20, D4).
                self._last_s = None
            return 0.0
        if profile is None or self._fixed:
            return 0.0
        since_s, self._last_s = self._last_s, t_s
        if since_s is None:
            return 0.0  # R17, R25
        passed_s = interval_s(since_s, t_s)
        # R18: all of an interval counts or nothing of it; R28: a clock that stepped back credits nothing.
        return max(passed_s, 0.0) if passed_s <= self._gap_limit_s else 0.0

    def _threshold_pct(self, learning: ProfileLearning | None) -> float | None:
        if self._fixed:
            return self._fixed_threshold_pct
        return learning.threshold_pct if learning is not None else None

    def _decision(
        self,
        t_s: float,
        reading: Reading,
        profile: Profile | None,
        learning: ProfileLearning | None,
        credited_s: float,
    ) -> Decision:
        threshold = self._threshold_pct(learning)
        return Decision(
            t_s=t_s,
            profile=profile,
            credited_s=credited_s,
            baseline_pct=learning.baseline_pct if learning is not None else None,
            target_pct=learning.target_pct if learning is not None else None,
            threshold_pct=threshold,
            calibrated=threshold is not None,
            engaged=self._hysteresis.engaged,
            learned_samples=learning.learned_samples if learning is not None else 0,
            learned_s=learning.learned_s if learning is not None else 0.0,
            hint=learning.hint if learning is not None else None,
            reading=reading,
            above_s=self._hysteresis.above_s,
            below_s=self._hysteresis.below_s,
            warmup_have=learning.warmup_have if learning is not None else 0,
        )
