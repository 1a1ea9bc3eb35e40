"""From what one NVIDIA device told to the owner's share of it. Pure.

Rules of a reading:
- The owner's share of an engine is the larger of two figures: what the processes that are neither lender nor
  ignored used, and what the device did beyond the lenders' and the ignored processes' use. Processes sum to
  less than the device (nvtop #177, #280), and the device's figure is shorter than theirs. The reading is the
  largest of SM, encoder and decoder (R3).
- A process that we do not know is the owner's, also when it is gone already (nvitop #152).
- Samples that are not newer than the last one of before are old news (ksysguard6 #18), and a figure over 100
  is nonsense (nvtop #110); nonsense about a lender, or nothing but nonsense, makes the reading invalid (R22).
- Times are of NVML's own clock; ours is never compared with it (gpu-metrics-agent #37). A sample's age is
  counted from the newest of its batch.
- Right after initialisation NVML's own work shows as load: the first poll only tells where to go on from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final, Literal, NamedTuple

import msgspec

from swapd.devices.nvml_raw import NvmlFailure, NvmlFault, ProcessMemory, ProcessUse, RawDevice
from swapd.messages.sampler import Measurement

FULL_PCT: Final = 100
LENDER_WINDOW_US: Final = 2_000_000
"""The device's figure covers the last second at most: an older sample must not be subtracted from it."""
OWNER_WINDOW_US: Final = 10_000_000
"""Older use is over, also when polls were missed meanwhile."""
NO_PIDS: Final = frozenset({0, 0xFFFFFFFF})
"""No process has them: a driver and a binding that disagree on a struct tell such (nvitop #75)."""

MIG: Final = "the card is cut in slices (MIG): the use of each process cannot be told"
WSL: Final = "under WSL the use of each process cannot be told"
NAMESPACE: Final = (
    "swapd runs in a container that hides the host's processes: it cannot tell lenders from owners"
    " (start it with the host's process ids, such as --pid=host)"
)
SCRAMBLED: Final = "the driver's list of processes makes no sense: nvidia-ml-py does not fit the driver"
NONSENSE: Final = "the driver told a use of more than 100 %"
WENT_BACK: Final = "the driver's clock went back: its figures count from the next poll on"

Refusal = Literal["first", "failed", "invalid", "unsupported", "asleep"]


class Who(NamedTuple):
    """The processes of a device that are not the owner's, and the names of `owner.always` that are on it."""

    lenders: frozenset[int]
    ignored: frozenset[int] = frozenset()
    always_seen: tuple[str, ...] = ()


class Judged(NamedTuple):
    """A measurement, and where to go on from at the next poll."""

    measurement: Measurement
    last_us: int


class _Use(NamedTuple):
    """Percent of one engine, summed."""

    owner: int
    lender: int
    ignored: int


class _Shares(NamedTuple):
    sm: _Use
    encoder: _Use
    decoder: _Use


def pids(raw: RawDevice) -> frozenset[int]:
    """All processes that a device told of."""
    return frozenset([each.pid for each in raw.uses] + [each.pid for each in raw.processes]) - NO_PIDS


def tell_who(
    told: Collection[int],
    lenders: frozenset[int],
    ignore: Iterable[str],
    always: Iterable[str],
    name_matches: Callable[[int, Iterable[str]], bool],
) -> Who:
    """Sort the pids of a device by configured names (D23, D37). A lender is a lender, whatever its name."""
    others = sorted(set(told) - lenders)
    ignore = tuple(ignore)
    return Who(
        lenders,
        frozenset(pid for pid in others if ignore and name_matches(pid, ignore)),
        tuple(name for name in always if any(name_matches(pid, (name,)) for pid in others)),
    )


def judge(device: str, at_s: float, raw: RawDevice, last_us: int | None, who: Who) -> Judged:
    """Judge one poll. `last_us` is the newest sample's time of the poll before, None at the first.

    0 for `last_us` is a poll before without any sample.
    """
    fresh = [each for each in raw.uses if each.at_us > (last_us or 0)]
    sound = _newest(each for each in fresh if _is_sound(each))
    newest_us = max((each.at_us for each in sound), default=last_us or 0)

    def judged(measurement: Measurement) -> Judged:
        return Judged(measurement, newest_us)

    if NO_PIDS & {*(each.pid for each in raw.uses), *(each.pid for each in raw.processes)}:
        return judged(refused(device, at_s, "invalid", SCRAMBLED, raw))
    bad = [each for each in fresh if not _is_sound(each)]
    if raw.device_pct > FULL_PCT or (bad and (not sound or any(each.pid in who.lenders for each in bad))):
        return judged(refused(device, at_s, "invalid", NONSENSE, raw))
    shares = _shares(sound, newest_us, who)
    measurement = Measurement(
        device=device,
        result="first" if last_us is None else "ok",
        at_s=at_s,
        reading_pct=None if last_us is None else _reading(raw, shares),
        device_pct=float(raw.device_pct),
        lender_pct=_clamp(shares.sm.lender),
        ignored_pct=_clamp(shares.sm.ignored),
        encoder_pct=_engine(raw.encoder_pct, shares.encoder),
        decoder_pct=_engine(raw.decoder_pct, shares.decoder),
        others_hold_memory=_others_hold_memory(raw.processes, who),
        always_seen=who.always_seen,
        lender_memory_bytes=_held_bytes(raw.processes, who.lenders),
    )
    return judged(_with_facts(measurement, raw))


def refused(
    device: str, at_s: float, result: Refusal, reason: str, raw: RawDevice | None = None
) -> Measurement:
    """A measurement without a reading, and so never 0 % (R21, R22, R130)."""
    measurement = Measurement(device=device, result=result, at_s=at_s, reason=reason)
    return measurement if raw is None else _with_facts(measurement, raw)


def failed(device: str, at_s: float, failure: NvmlFailure, *, told_before: bool) -> Measurement:
    """What a failed call means for the reading.

    What is not supported is so for good, except on a device that has told its use before: then it is one of
    the drivers that do so now and then (nvtop #448). What may not be seen makes a value not to be trusted.
    """
    if failure.fault in (NvmlFault.NOT_SUPPORTED, NvmlFault.NO_FUNCTION) and not told_before:
        return refused(device, at_s, "unsupported", failure.sentence)
    if failure.fault is NvmlFault.NO_PERMISSION:
        return refused(device, at_s, "invalid", failure.sentence)
    return refused(device, at_s, "failed", failure.sentence)


def ring_newest_us(ring: Iterable[ProcessUse]) -> int | None:
    """The newest time in all that the driver keeps. Older than one told before: its clock was set back."""
    return max((each.at_us for each in ring if _is_sound(each)), default=None)


def _is_sound(use: ProcessUse) -> bool:
    return max(use.sm_pct, use.encoder_pct, use.decoder_pct) <= FULL_PCT


def _newest(uses: Iterable[ProcessUse]) -> list[ProcessUse]:
    """The last sample of each process."""
    newest: dict[int, ProcessUse] = {}
    for use in uses:
        if use.pid not in newest or use.at_us > newest[use.pid].at_us:
            newest[use.pid] = use
    return list(newest.values())


def _shares(uses: Iterable[ProcessUse], newest_us: int, who: Who) -> _Shares:
    owner: list[ProcessUse] = []
    lender: list[ProcessUse] = []
    ignored: list[ProcessUse] = []
    for use in uses:
        age_us = newest_us - use.at_us
        if use.pid not in who.lenders | who.ignored:
            if age_us <= OWNER_WINDOW_US:
                owner.append(use)
        elif age_us <= LENDER_WINDOW_US:
            (lender if use.pid in who.lenders else ignored).append(use)

    def summed(percent: Callable[[ProcessUse], int]) -> _Use:
        return _Use(*(sum(percent(use) for use in side) for side in (owner, lender, ignored)))

    return _Shares(
        summed(lambda use: use.sm_pct),
        summed(lambda use: use.encoder_pct),
        summed(lambda use: use.decoder_pct),
    )


def _reading(raw: RawDevice, shares: _Shares) -> float:
    return max(
        _owner_pct(raw.device_pct, shares.sm),
        _owner_pct(raw.encoder_pct, shares.encoder),
        _owner_pct(raw.decoder_pct, shares.decoder),
    )


def _owner_pct(device_pct: int | None, use: _Use) -> float:
    beyond = 0 if device_pct is None or device_pct > FULL_PCT else device_pct - use.lender - use.ignored
    return _clamp(max(use.owner, beyond))


def _engine(device_pct: int | None, use: _Use) -> float:
    """The device's own figure, or the processes' sum where it has none."""
    return _clamp(sum(use) if device_pct is None else device_pct)


def _clamp(percent: int) -> float:
    return float(min(max(percent, 0), FULL_PCT))


def _others_hold_memory(processes: Iterable[ProcessMemory], who: Who) -> bool:
    """Unknown memory counts as some (D37): the list names only processes that use the device."""
    return any(
        each.pid not in who.lenders and each.pid not in who.ignored and each.used_bytes != 0
        for each in processes
    )


def _held_bytes(processes: Iterable[ProcessMemory], holders: Collection[int]) -> int | None:
    """What these processes hold; None where the driver does not tell (nvitop #55)."""
    held: dict[int, int] = {}
    for each in processes:
        if each.pid not in holders:
            continue
        if each.used_bytes is None:
            return None
        # One process may stand in the list of compute and in that of graphics, each with all its memory.
        held[each.pid] = max(held.get(each.pid, 0), each.used_bytes)
    return sum(held.values())


def _with_facts(measurement: Measurement, raw: RawDevice) -> Measurement:
    memory = raw.memory
    return msgspec.structs.replace(
        measurement,
        memory_used_bytes=memory.used_bytes if memory else None,
        memory_free_bytes=memory.free_bytes if memory else None,
        memory_total_bytes=memory.total_bytes if memory else None,
        uuid=raw.uuid,
        pci=raw.pci,
        product=raw.product,
        sm_clock_mhz=raw.sm_clock_mhz,
        power_state=raw.power_state,
    )
