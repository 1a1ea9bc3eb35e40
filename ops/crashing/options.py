"""The options of drills that run one service on a `Stage`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from swapd.models.smollm2 import ensure_checkpoint


def add_options(parser: argparse.ArgumentParser, report: str) -> None:
    """Engine, model, pace, seed; `report` says what `--json` writes."""
    parser.add_argument("--engine", choices=("sim", "vllm"), default="sim")
    parser.add_argument("--model", type=Path, help="a checkpoint folder for vllm (SmolLM2-135M-Instruct)")
    parser.add_argument("--step-ms", type=float, default=4.0, help="of the sim engine (4)")
    parser.add_argument("--seed", type=int, default=1, help="of the prompts (1)")
    parser.add_argument("--json", type=Path, help=f"write {report} here")
    parser.add_argument("--keep", action="store_true", help="keep the private folder with its logs")


def model_of(options: argparse.Namespace) -> str:
    """The checkpoint that the workers load, made first where it is missing; the sim engine needs none."""
    if options.engine == "sim":
        return "."
    return str(
        options.model or ensure_checkpoint(report=lambda line: print(line, file=sys.stderr, flush=True))
    )
