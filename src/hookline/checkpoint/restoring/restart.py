"""The start of a training in a directory: the expected, the existing and the readable checkpoints.

The state file names the expected checkpoint, and the directory has the existing ones, some perhaps broken.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence

from hookline import log
from hookline.checkpoint.directory import layout
from hookline.checkpoint.directory.layout import base_path
from hookline.checkpoint.directory.state_file import STATE_FILE_NAME, CheckpointState, read_state, resolve_state
from hookline.errors import DataLossError, NotFoundError

_logger = log.get_logger(__name__)


@dataclasses.dataclass(frozen=True)
class Restart:
    """The checkpoints that a directory offers to a starting training.

    Attributes:
        candidates: The complete checkpoints, and the remains of others; the first is the one to continue from.
        anomaly: The difference from the state that the last training left, or the reason why another checkpoint may be
            the newest, as a clause; empty if there is neither.
    """

    candidates: tuple[str, ...]
    anomaly: str


def find(directory: str) -> Restart:
    """Examines a directory of checkpoints before one is chosen.

    Raises:
        FailedPreconditionError: The directory belongs to another program.
    """
    state_file = os.path.join(directory, STATE_FILE_NAME)
    expected = read_state(directory)
    found, ambiguity = resolve_state(directory)
    known = []
    if found is not None:
        newest = found.model_checkpoint_path
        known = [newest, *(path for path in reversed(found.all_model_checkpoint_paths) if path != newest)]
    others = [
        path for name in layout.checkpoint_names(directory) if (path := os.path.join(directory, name)) not in known
    ]
    if known:  # Other savers may save in the same directory under other names.
        others = [path for path in others if base_path(path) == base_path(known[0])]
    # A checkpoint without a readable manifest may be the newest, if its step is not below the newest's.
    reached = _step(known[0]) if known else -1
    others.sort(key=_step, reverse=True)
    first = [path for path in others if _step(path) >= reached and not _has_manifest(path)]
    rest = [path for path in others if path not in first]
    candidates, anomaly = [*first, *known, *rest], ""
    broken = _broken(directory, expected, known)
    for path in sorted(broken, key=_step):
        newer = expected is not None and path == expected.model_checkpoint_path
        older = (index for index, other in enumerate(candidates) if newer or _step(other) < _step(path))
        candidates.insert(next(older, len(candidates)), path)
    if expected is None and os.path.lexists(state_file) and not os.path.isdir(state_file):
        anomaly = f"its state file '{state_file}' cannot be read"
    elif expected is not None and expected.model_checkpoint_path not in candidates:
        anomaly = f"'{expected.model_checkpoint_path}', which its state file names, is gone"
    return Restart(tuple(candidates), "; ".join(filter(None, (anomaly, ambiguity))))


def _broken(directory: str, expected: CheckpointState | None, known: Sequence[str]) -> set[str]:
    """Returns the paths of broken checkpoints: recorded ones, and others that seem to be hookline's."""
    named: set[str] = set()
    if expected is not None:
        named = {expected.model_checkpoint_path, *expected.all_model_checkpoint_paths}
    bases = {base_path(path) for path in (*known, *named)}
    beside = (os.path.join(directory, name) for name in (os.listdir(directory) if bases else ()))
    numbered = {path for path in beside if base_path(path) in bases}
    return {
        path
        for path in named | numbered
        if layout.defect(path) and (path in named or layout.looks_like_checkpoint(path))
    }


def _has_manifest(path: str) -> bool:
    """Returns whether a checkpoint's manifest can be read; also True if the checkpoint has just been removed."""
    try:
        layout.read_manifest(path)
    except DataLossError:
        return False
    except NotFoundError:
        pass
    return True


def _step(path: str) -> int:
    found = re.search(r"-(\d+)$", path)
    return int(found.group(1)) if found else -1
