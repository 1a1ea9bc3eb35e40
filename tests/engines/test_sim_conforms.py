"""The sim engine keeps the claims of every engine."""

import pytest

from swapd.config import SimConfig
from swapd.engines.sim import open_sim
from tests.engines.conformance import EngineClaims
from tests.engines.moving import PLACES, Pair

CONFIG = SimConfig(
    step_ms=0,
    block_tokens=32,
    block_bytes=32 * 16,
    blocks=200,
    max_model_len=1280,
    vocab_size=49152,
    max_num_seqs=PLACES,
)


class TestClaims(EngineClaims):
    value_bytes = 16

    @pytest.fixture
    def pair(self) -> Pair:
        return Pair(open_sim(CONFIG), open_sim(CONFIG))
