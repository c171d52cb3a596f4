"""Checkpoints: saving and restoring the variables of a session, through Orbax."""

from __future__ import annotations

from hookline.checkpoint.listener import CheckpointSaverListener
from hookline.checkpoint.pending import PendingSave
from hookline.checkpoint.reading import checkpoints_iterator, list_variables, load_variable, verify
from hookline.checkpoint.retry import RetryPolicy
from hookline.checkpoint.saver import Saver
from hookline.checkpoint.state import CheckpointState, checkpoint_exists, get_checkpoint_state, latest_checkpoint

__all__ = [
    "CheckpointSaverListener",
    "CheckpointState",
    "PendingSave",
    "RetryPolicy",
    "Saver",
    "checkpoint_exists",
    "checkpoints_iterator",
    "get_checkpoint_state",
    "latest_checkpoint",
    "list_variables",
    "load_variable",
    "verify",
]
