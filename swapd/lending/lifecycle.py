"""The states of a lent device and every way from one to another. Pure.

Rules of this file:

- Every transition stands in `TRANSITIONS`; an event that is not listed for a state is an error.
- The state follows the verdict and what is on the device, never the other way round: `next_event` looks at
  both and says what, if anything, has happened. Whoever drives it calls it until it says nothing more, so
  that every order of events ends in the same place.
- New work is let in while `lent` and in no other state.

    refused <--closed/opened--> lent
       |  needed                 | needed
       v                         v
    vacating --emptied--> free --released--> returning --started--> refused
       ^  released → returning                    |
       +------------------- needed --------------+
"""

from __future__ import annotations

from typing import Final, Literal

from swapd.lending.device import DeviceState, Verdict

DeviceChange = Literal["opened", "closed", "needed", "emptied", "released", "started"]
"""opened, closed: new work may, may not come. needed, released: the owner wants it, does not any more.
emptied: nothing of ours is on it. started: a worker of it is ready."""

TRANSITIONS: Final[dict[DeviceState, dict[DeviceChange, DeviceState]]] = {
    "refused": {"opened": "lent", "needed": "vacating"},
    "lent": {"closed": "refused", "needed": "vacating"},
    "vacating": {"emptied": "free", "released": "returning"},
    "free": {"released": "returning"},
    "returning": {"started": "refused", "needed": "vacating"},
}


class IllegalChange(AssertionError):
    """Something happened to a device that cannot in its state: a defect of ours."""


def change(state: DeviceState, event: DeviceChange) -> DeviceState:
    """The state after an event. Raises `IllegalChange` naming both."""
    after = TRANSITIONS[state].get(event)
    if after is None:
        raise IllegalChange(f"{event} while {state}")
    return after


def next_event(state: DeviceState, verdict: Verdict, *, empty: bool, started: bool) -> DeviceChange | None:
    """What has happened, by the verdict in force and what is on the device; None: nothing more.

    `empty`: no session is on it and no process of ours that must end. `started`: a worker is ready.
    """
    match state:
        case "refused":
            if not verdict.hold:
                return "needed"
            return "opened" if verdict.admit else None
        case "lent":
            if not verdict.hold:
                return "needed"
            return None if verdict.admit else "closed"
        case "vacating":
            if verdict.hold:
                return "released"
            return "emptied" if empty else None
        case "free":
            return "released" if verdict.hold else None
        case "returning":
            if not verdict.hold:
                return "needed"
            return "started" if started else None
