"""Runs a worker whose exports are wrong as a file says: `python -m tests.worker.tampering FILE ...`.

FILE names what is wrong with each tail from now on; without the file the worker is honest. The rest of the
command line is what the service passes to a worker's interpreter (`[[workers]] python`).
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from swapd.messages import snapshot
from swapd.messages.generation import Manifest, StateEntry
from swapd.worker import transfers

STRANGE: Final[dict[str, dict[str, Any]]] = {
    "schema": {"schema": snapshot.SNAPSHOT_SCHEMA + 1},
    "session": {"session": "another"},
    "epoch": {"epoch": 99},
    "fingerprint": {"fingerprint": "another"},
    "generation": {"generation": 99},
    "state": {"state": (StateEntry("transcript", "of another"),)},
}
"""Manifests that are whole, but of something else."""


def tampered(manifest: Manifest, what: str) -> Manifest:
    """A manifest that is wrong in one way."""
    if what in STRANGE:
        return snapshot.seal(msgspec.structs.replace(manifest, **STRANGE[what]))
    if what == "digest":
        return msgspec.structs.replace(manifest, digest="0" * 32)
    *rest, last = manifest.blocks
    if what == "bytes":
        # As if the block had changed in the arena after its checksum was made.
        wrong = msgspec.structs.replace(last, crc=last.crc ^ 1)
        return snapshot.seal(msgspec.structs.replace(manifest, blocks=(*rest, wrong)))
    assert what == "valid", what
    wrong = msgspec.structs.replace(last, valid=last.valid - 1)
    return snapshot.seal(msgspec.structs.replace(manifest, blocks=(*rest, wrong)))


def main() -> None:
    file = Path(sys.argv.pop(1))

    def bind(*args: Any, **named: Any) -> Manifest:
        manifest = snapshot.bind(*args, **named)
        state: Sequence[StateEntry] = manifest.state
        return tampered(manifest, file.read_text()) if state and file.exists() else manifest

    transfers.bind = bind
    assert sys.argv[1] == "-m", sys.argv
    module = sys.argv[2]
    sys.argv[:] = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
