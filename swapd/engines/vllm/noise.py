"""Where the noise of sampling comes from. Pure.

The noise of a token is a pure function of (seed, output position): before every step the generator of each
scheduled request is seeded anew with `position_seed`. So no generator state moves with a session, a replay
draws what the first run drew, and a prompt computed in one chunk or in ten leaves no trace (H89).
"""

from __future__ import annotations

from typing import Final

NOISE_OF_POSITION: Final = "splitmix64(seed, position)"
_MASK_64: Final = (1 << 64) - 1
_GOLDEN_64: Final = 0x9E3779B97F4A7C15


def position_seed(seed: int, position: int) -> int:
    """Return 64 well-mixed bits of (seed, position), SplitMix64's finaliser over both.

    torch's CPU generator uses the low 32 bits only, so neighbours must differ there too.
    """
    mixed = _mix((seed & _MASK_64) + _GOLDEN_64)
    return _mix(mixed + (position & _MASK_64) * _GOLDEN_64)


def _mix(value: int) -> int:
    value &= _MASK_64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return value ^ (value >> 31)
