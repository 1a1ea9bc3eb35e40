"""vLLM 0.32 in process: the engine adapter that can hand a running generation over.

Importing this package does not import vLLM; `open_engine` does, after the environment is set.
"""

from swapd.engines.vllm.opening import open_engine

__all__ = ["open_engine"]
