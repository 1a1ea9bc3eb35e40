"""`python -m swapd.worker FILE`: what `swapd worker --settings FILE` does, without the CLI."""

from __future__ import annotations

import sys

from swapd.errors import SwapdError
from swapd.log import configure_logging
from swapd.worker.process import leave, run_worker
from swapd.worker.settings import load_settings


def main() -> int:
    """Run a worker from a settings file; exit code 2 for a refusal, with its code and sentence on stderr."""
    configure_logging()
    try:
        return run_worker(load_settings(sys.argv[1]))
    except SwapdError as error:
        sys.stderr.write(f"{error.code}: {error.sentence}\n")
        return 2


if __name__ == "__main__":
    leave(main())
