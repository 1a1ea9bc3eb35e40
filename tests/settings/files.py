"""A configuration file of a lent CPU device, with a token and comments that must survive."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from swapd.config import Config
from swapd.config_file import parse_config

TOKEN: Final = "a-secret-of-sufficient-length"
HEAD: Final = f"""# My machine.
database_path = "data/swapd.db"
socket_dir = "run"
allow_sim_engine = true

[[workers]]
worker_id = "a"
engine = "sim"
device = "cpu0"

[[models]]
alias = "m"
path = "model"

# The token of the front desk: {TOKEN}
[[credentials]]
namespace = "me"
token = "{TOKEN}" # keep it
is_operator = true

[[devices]]
name = "cpu0"
kind = "cpu"
cores = [0]
"""
OWNER: Final = """
# What I allow.
[owner]  # mine
consent = true    # yes
ignore = [
  "obs", # records the screen
  "beep",
]

# Learned, mostly.
[owner.gpu_pressure]
cap_pct = 40  # was 50
baseline_quantile = 0.2  # old
"""
GOOD: Final = HEAD + OWNER


def parsed(text: str) -> Config:
    return parse_config(text, folder=Path("/srv"), name="swapd.toml")
