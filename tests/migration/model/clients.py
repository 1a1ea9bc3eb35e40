"""A client of the model: what it asked for, what it was shown, and what it would be shown without harm."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import msgspec
import trio

from swapd.engines.sim import open_sim
from swapd.messages.generation import GenerationSpec, Sampling
from swapd.sessions.subscription import Reader
from swapd.views import Caller, NewSession
from tests.migration.model.site import Site
from tests.migration.model.worker import SIM

TENANT = Caller("tenant")
OPERATOR = Caller("ops", is_operator=True)


@cache
def reference(prompt: tuple[int, ...], count: int, seed: int) -> tuple[int, ...]:
    """The tokens of an engine that nobody disturbs."""
    engine = open_sim(SIM)
    sampling = Sampling(temperature=0.8, seed=seed, ignore_eos=True)
    engine.start("x", GenerationSpec("x", prompt, sampling, count), ())
    tokens: list[int] = []
    while engine.runnable():
        tokens += [token.token_id for token in engine.step().tokens]
    return tuple(tokens)


@dataclass
class Client:
    """One session and its reader."""

    prompt: tuple[int, ...]
    count: int
    seed: int
    replay: bool
    goes_on: bool
    session: str | None = None
    present: bool = True
    cancelled: bool = False
    """It has asked for that; whether it was heard is another question."""
    shown: list[int] = field(default_factory=list)
    end: str | None = None
    ends: int = 0
    _connection: trio.CancelScope = field(default_factory=trio.CancelScope)

    @property
    def reference(self) -> tuple[int, ...]:
        return reference(self.prompt, self.count, self.seed)

    def request(self) -> NewSession:
        return NewSession(
            prompt=list(self.prompt),
            max_new_tokens=self.count,
            temperature=0.8,
            seed=self.seed,
            ignore_eos=True,
            allow_replay_fallback=self.replay,
            on_disconnect="continue" if self.goes_on else "pause",
        )

    def leave(self) -> None:
        self.present = False
        self._connection.cancel()

    async def read(self, site: Site) -> None:
        """Follow the session on one connection, from what is known of it."""
        assert self.session is not None
        with trio.CancelScope() as self._connection:
            async with site.service.subscribe(TENANT, self.session, len(self.shown)) as reader:
                assert isinstance(reader, Reader)
                async for batch in reader:
                    for event in batch:
                        if event.name == "token":
                            told = msgspec.json.decode(event.data)
                            assert told["pos"] == len(self.shown) + 1, "an event was lost or doubled"
                            self.shown.append(told["token_id"])
                        elif event.name != "created":
                            self.end = event.name
                            self.ends += 1
