"""`swapd serve`: opens the coordinator's nurseries. Reading this is reading the architecture.

Users stand above the services that they use; they stop in that order: front doors, then the actors that
move sessions, then the links to the workers, then the store. Workers that hold sessions are left running
for the next coordinator; idle ones are stopped (H230).
"""

from __future__ import annotations

import logging
import signal
from pathlib import Path
from typing import Final

import trio
import zmq

from console.app import create_app
from console.server import serve_http
from swapd.config import Config
from swapd.config_file import load_config
from swapd.errors import Code, SwapdError
from swapd.events import EventBus
from swapd.hooks import Hooks
from swapd.migration.ledger import CapacityLedger
from swapd.migration.supervisor import MigrationSupervisor
from swapd.ops.server import run_ops
from swapd.service import SwapdService
from swapd.sessions.admission import Admission
from swapd.sessions.keeper import Keeper
from swapd.sessions.recovery import Recovery
from swapd.sessions.table import SessionTable
from swapd.sessions.tokenizer import SimTokenizer, Tokenizer, load_tokenizer
from swapd.store.drains import open_drains
from swapd.store.ledger import load_tokens
from swapd.store.meta import next_generation
from swapd.store.moves import finish_move, open_moves
from swapd.store.sessions import nonterminal_sessions
from swapd.store.writer import Store
from swapd.transport.arena import Arena
from swapd.transport.leases import LeaseBook
from swapd.transport.paths import ensure_private_dir
from swapd.worker.link import WorkerLink

log = logging.getLogger("swapd.serve")

GRACEFUL_S: Final = 5.0
