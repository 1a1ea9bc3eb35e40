"""What one device learns in one attendance state: first calibration, target, threshold, maturing. Pure."""

from __future__ import annotations

from typing import Final

from swapd.config import PressureConfig
from swapd.pressure.bounds import clamp_pct, effective_cap_pct, target_pct
from swapd.pressure.histogram import Histogram
from swapd.pressure.reading import HINT_ABOVE_CAP, Profile, ProfileState, ProfileSummary

HOUR_S: Final = 3600.0
MATURING_S: Final = 86_400.0


class ProfileLearning:
    """Feed it the readings of one profile, each with the interval that it is credited with."""

    def __init__(self, config: PressureConfig) -> None:
        self._config = config
        self._histogram = Histogram(config.learn_half_life_h * HOUR_S)
        self.learned_samples = 0
        self.learned_s = 0.0
        """Both are for life and do not decay (D13)."""
        self.baseline_pct: float | None = None
        self.target_pct: float | None = None
        self.threshold_pct: float | None = None
        self.maturing_from_pct: float | None = None
        self._rise_from_pct: float
        self._rising_s: float
        """A rise is counted in seconds from where it began: many small steps would add up their rounding."""

    def learn(self, value_pct: float, credited_s: float) -> None:
        """Decay, add, measure, move, in this order (R14, R51)."""
        self._histogram.add(value_pct, credited_s)
        self.learned_samples += 1
        self.learned_s += credited_s
        self._measure()
        if self.threshold_pct is not None:
            self._move(self.threshold_pct, credited_s)
        elif self.target_pct is not None:
            # R54: the reading that completes the first calibration sets the threshold without a limit.
            self._set_threshold(self.target_pct)

    def restore(self, state: ProfileState) -> None:
        """Take over a completed profile; its threshold is bound by the settings of now (R88, R121)."""
        self._histogram.load(state.bins)
        self.learned_samples = state.learned_samples
        self.learned_s = state.learned_s
        if state.maturing_from_pct is not None and state.learned_s < MATURING_S:
            self.maturing_from_pct = clamp_pct(self._config, state.maturing_from_pct)
        self._set_threshold(clamp_pct(self._config, state.threshold_pct))
        self._measure()

    def state(self) -> ProfileState | None:
        """What is worth saving; None before the first calibration is complete (R90)."""
        if self.threshold_pct is None:
            return None
        return ProfileState(
            calibrated=True,
            threshold_pct=self.threshold_pct,
            learned_samples=self.learned_samples,
            learned_s=self.learned_s,
            maturing_from_pct=self.maturing_from_pct,
            bins=self._histogram.bins(),
        )

    @property
    def calibrated(self) -> bool:
        """Whether there is a threshold to go by (R54)."""
        return self.threshold_pct is not None

    @property
    def warmup_have(self) -> int:
        """R53, R62: how far the first calibration is; all of it once complete, come what may (R89)."""
        wanted = self._config.warmup_samples
        return wanted if self.calibrated else min(self.learned_samples, wanted)

    @property
    def hint(self) -> str | None:
        """R43: the owner's normal load lies above the cap itself (D8)."""
        above = self.baseline_pct is not None and self.baseline_pct > effective_cap_pct(self._config)
        return HINT_ABOVE_CAP if above else None

    def summary(self, profile: Profile) -> ProfileSummary:
        """All of it in short."""
        return ProfileSummary(
            profile=profile,
            calibrated=self.calibrated,
            warmup_have=self.warmup_have,
            learned_samples=self.learned_samples,
            learned_s=self.learned_s,
            total_weight=self._histogram.total,
            baseline_pct=self.baseline_pct,
            target_pct=self.target_pct,
            threshold_pct=self.threshold_pct,
            maturing_from_pct=self.maturing_from_pct,
            bins=self._histogram.bins(),
            hint=self.hint,
        )

    def _measure(self) -> None:
        """R66, R112: there is a baseline once the histogram holds `warmup_samples` readings (D16).

        Until then a restored profile's target is the threshold that it has, so nothing moves (D12).
        """
        if self.learned_samples >= self._config.warmup_samples:
            self.baseline_pct = self._histogram.quantile(self._config.learn_quantile)
        if self.baseline_pct is not None:
            self.target_pct = target_pct(self._config, self.baseline_pct)
        else:
            self.target_pct = self.threshold_pct

    def _move(self, threshold_pct: float, credited_s: float) -> None:
        assert self.target_pct is not None
        wanted = self.target_pct
        if self.maturing_from_pct is not None:
            if self.learned_s >= MATURING_S:
                self.maturing_from_pct = None
            else:
                # R113: it may fall back to where it started, not below (D21).
                wanted = max(wanted, self.maturing_from_pct)
        if wanted <= threshold_pct:
            self._set_threshold(wanted)  # R45: in one step, at once
        else:
            # R46, R115: only observed time raises it, also while maturing (R47).
            self._rising_s += credited_s
            risen = self._rise_from_pct + self._config.raise_pct_per_h * self._rising_s / HOUR_S
            if risen < wanted:
                self.threshold_pct = risen
            else:
                self._set_threshold(wanted)

    def _set_threshold(self, value_pct: float) -> None:
        self.threshold_pct = self._rise_from_pct = value_pct
        self._rising_s = 0.0
