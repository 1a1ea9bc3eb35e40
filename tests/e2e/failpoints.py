"""Holding, ending and watching the processes of a deployment at named points of a move."""

from __future__ import annotations

import trio

from tests.e2e.deployment import Deployment


class Points:
    """The failpoints of one deployment, whose configuration allows them."""

    def __init__(self, deployment: Deployment) -> None:
        self._folder = deployment.folder / "s" / "failpoints"
        self._folder.mkdir(mode=0o700, exist_ok=True)

    def arm(self, role: str, point: str, action: str = "hold") -> None:
        draft = self._folder / f"{role}.{point}.draft"
        draft.write_text(action)
        draft.rename(draft.with_suffix(".arm"))

    async def reached(self, role: str, point: str, within_s: float = 60.0) -> None:
        with trio.fail_after(within_s):
            while not (self._folder / f"{role}.{point}.reached").exists():  # noqa: ASYNC110  # others' file
                await trio.sleep(0.01)

    def let_go(self, role: str, point: str) -> None:
        (self._folder / f"{role}.{point}.go").touch()

    def clear(self) -> None:
        """A point may be armed anew."""
        for path in self._folder.iterdir():
            path.unlink()
