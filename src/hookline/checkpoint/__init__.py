"""Checkpoints: saving and restoring the variables of a session, through Orbax."""

from __future__ import annotations

from hookline.checkpoint.directory.state_file import (
    CheckpointState,
    checkpoint_exists,
    get_checkpoint_state,
    latest_checkpoint,
)
from hookline.checkpoint.listener import CheckpointSaverListener
from hookline.checkpoint.restoring.reading import list_variables, load_variable, verify
from hookline.checkpoint.restoring.waiting import checkpoints_iterator, wait_for_new_checkpoint
from hookline.checkpoint.restoring.warm_start import (
    assign_from_checkpoint,
    assign_from_checkpoint_fn,
    init_from_checkpoint,
    warm_start,
)
from hookline.checkpoint.saver import Saver
from hookline.checkpoint.saving.failures import RetryPolicy
from hookline.checkpoint.saving.save_operation import PendingSave
