"""Turn a GGUF file into a checkpoint folder: `python -m swapd.models.convert GGUF FOLDER`.

A process of its own, because torch and transformers never enter the coordinator. The weights are
de-quantized to bfloat16; the result depends on the file alone, byte by byte.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def convert(gguf: Path, folder: Path) -> None:
    """Write config, weights and tokenizer of `gguf` into `folder`."""
    where, name = str(gguf.parent), gguf.name
    tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(
        where, gguf_file=name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
