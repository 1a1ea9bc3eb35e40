"""swapd lends idle GPUs to LLM serving and gives each back the moment its owner needs it."""

__version__ = "0.1.0"
