"""A checkpoint with made-up weights: the model of a few dozen million parameters that moves are tried with.

Its text means nothing. Both workers and the control load the same file, so they must say the same nonsense.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

SEED: Final = 7
VOCABULARY: Final = 512
"""256 bytes and names for the rest: the control run of the bench uses ids up to 404."""
SHAPE: Final[dict[str, Any]] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": VOCABULARY - 1,
    "torch_dtype": "bfloat16",
}
SPREAD: Final = 0.05
"""Of the weights: large enough that the output depends on the whole context."""


def write_checkpoint(folder: Path) -> Path:
    """Write it into an empty folder, and return that. Needs torch and safetensors."""
    import torch
    from safetensors.torch import save_file

    random = torch.Generator().manual_seed(SEED)

    def drawn(*shape: int) -> Any:
        return (torch.randn(*shape, generator=random) * SPREAD).to(torch.bfloat16)

    hidden, inner = SHAPE["hidden_size"], SHAPE["intermediate_size"]
    weights = {
        "model.embed_tokens.weight": drawn(VOCABULARY, hidden) / SPREAD,
        "lm_head.weight": drawn(VOCABULARY, hidden),
        "model.norm.weight": torch.ones(hidden, dtype=torch.bfloat16),
    }
    for layer in range(SHAPE["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        for each in ("q_proj", "k_proj", "v_proj", "o_proj"):
            weights[f"{name}.self_attn.{each}.weight"] = drawn(hidden, hidden)
        weights[f"{name}.mlp.gate_proj.weight"] = drawn(inner, hidden)
        weights[f"{name}.mlp.up_proj.weight"] = drawn(inner, hidden)
        weights[f"{name}.mlp.down_proj.weight"] = drawn(hidden, inner)
        for each in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{name}.{each}.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(SHAPE, indent=1))
    write_tokenizer(folder / "tokenizer.json")
    return folder


def write_tokenizer(path: Path) -> None:
    """A token a byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*letters, *(f"<{index}>" for index in range(len(letters), VOCABULARY))]
    tokenizer = Tokenizer(models.BPE(vocab={name: index for index, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path))
