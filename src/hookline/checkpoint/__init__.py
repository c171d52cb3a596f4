"""Checkpoints: saving and restoring the variables of a session, through Orbax."""

from __future__ import annotations

from hookline.checkpoint.failures import RetryPolicy
from hookline.checkpoint.listener import CheckpointSaverListener
from hookline.checkpoint.reading import list_variables, load_variable, verify
from hookline.checkpoint.save import PendingSave
from hookline.checkpoint.saver import Saver
from hookline.checkpoint.state_file import CheckpointState, checkpoint_exists, get_checkpoint_state, latest_checkpoint
from hookline.checkpoint.waiting import checkpoints_iterator, wait_for_new_checkpoint
from hookline.checkpoint.warm_start import (
    assign_from_checkpoint,
    assign_from_checkpoint_fn,
    init_from_checkpoint,
    warm_start,
)
