"""The state file of a directory, and the checkpoints that are really there."""

from __future__ import annotations

import dataclasses
import json
import os
import re

from hookline import arguments, log
from hookline.checkpoint.directory import layout, schema
from hookline.checkpoint.directory.layout import base_path
from hookline.checkpoint.restoring.lineage import Candidate, choose_newest
from hookline.checkpoint.saving import durable, failures
from hookline.errors import DataLossError, FailedPreconditionError, NotFoundError
from hookline.regular_file import read_text

STATE_FILE_NAME = "checkpoint"
_MOST_BYTES = 16 * 2**20

_logger = log.get_logger(__name__)


@dataclasses.dataclass(frozen=True)
class CheckpointState:
    """The complete checkpoints of a directory.

    Attributes:
        model_checkpoint_path: The newest checkpoint.
        all_model_checkpoint_paths: The checkpoints that a saver still manages, oldest first, including the newest.
        timestamps: The times at which they became complete, in seconds since the epoch.
        last_good: The newest of them from which a finite value was computed, if a hook checks this; see
            `NanTensorHook`.
        last_preserved_timestamp: The time up to which `keep_checkpoint_every_n_hours` has been applied, in seconds
            since the epoch.
        best: The one that was marked as the best; see `train.Evaluate`.
        max_to_keep: The number of newest checkpoints that the saver keeps; 0 for all, None if the state file lacks it.
        keep_checkpoint_every_n_hours: The period for which it keeps one checkpoint for good, in hours; None for none.
        lost_best: The one that was marked as the best, if it is gone and no other has been marked since.
        pending_removals: Other checkpoints that the saver was about to remove, and that still exist.

    Example:
        >>> import hookline as hl, tempfile
        >>> weight = hl.Variable(1.0, name="weight")
        >>> with hl.Session() as sess, tempfile.TemporaryDirectory() as logdir:
        ...     sess.run(weight.initializer)
        ...     path = hl.train.Saver().save(sess, logdir + "/model.ckpt")
        ...     print(hl.train.get_checkpoint_state(logdir).model_checkpoint_path == path)
        True

    References:
        `tf.train.CheckpointState`. Every path in it but `lost_best` exists and is complete.
    """

    model_checkpoint_path: str
    all_model_checkpoint_paths: tuple[str, ...] = ()
    timestamps: tuple[float, ...] = ()
    last_good: str | None = None
    last_preserved_timestamp: float | None = None
    best: str | None = None
    max_to_keep: int | None = None
    keep_checkpoint_every_n_hours: float | None = None
    lost_best: str | None = None
    pending_removals: tuple[str, ...] = ()


def write_state(directory: str, state: CheckpointState, file: str = STATE_FILE_NAME) -> None:
    """Writes the state file; its paths are relative to the directory, so that the whole directory can be moved."""

    def name(path: str | None) -> str | None:
        """Returns the name of a checkpoint in this directory, in UTF-8; None for others, which are not recorded."""
        found = path and os.fsencode(os.path.relpath(path, directory)).decode("utf-8", "surrogateescape")
        return found if found and _is_plain_name(found) else None

    times = zip(state.all_model_checkpoint_paths, state.timestamps, strict=True)
    kept = [(found, timestamp) for path, timestamp in times if (found := name(path))]
    fields = {
        "model_checkpoint_path": name(state.model_checkpoint_path),
        "all_model_checkpoint_paths": [found for found, _ in kept],
        "timestamps": [timestamp for _, timestamp in kept],
        "pending_removals": [found for path in state.pending_removals if (found := name(path))],
        "last_good": name(state.last_good),
        "last_preserved_timestamp": state.last_preserved_timestamp,
        "best": name(state.best),
        "lost_best": name(state.lost_best),
        "max_to_keep": state.max_to_keep,
        "keep_checkpoint_every_n_hours": state.keep_checkpoint_every_n_hours,
    }
    durable.write_text(os.path.join(directory, file), json.dumps(fields, indent=1) + "\n")


def read_state(directory: str, file: str = STATE_FILE_NAME) -> CheckpointState | None:
    """Returns the contents of a directory's state file, even if outdated; None if there is none.

    Raises:
        FailedPreconditionError: The file seems to belong to another program: hookline cannot read it, and there is no
            checkpoint of hookline beside it.
    """
    path = os.path.join(directory, file)
    try:
        state = schema.parse(read_text(path, _MOST_BYTES), _STATE)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise failures.read_error(error, path, "") from error
    except ValueError as error:
        if os.path.isdir(path):  # Another program's directory, or a run's: hookline would not overwrite it.
            return None
        if not layout.checkpoint_names(directory):
            raise FailedPreconditionError.from_message(_foreign_file_message(path, error)) from error
        if (path, str(error)) not in _warned:
            _warned.add((path, str(error)))
            text = "%s is not a state file of hookline: %s. hookline reads the checkpoints themselves instead."
            _logger.warning(text, path, error)
        return None
    newest = state.model_checkpoint_path
    if not _is_plain_name(newest):
        raise DataLossError.from_message(
            f"'{path}' is damaged: its model_checkpoint_path (the newest) is {newest!r}, which is outside of "
            f"'{directory}'. Move that file away: then hookline reads the checkpoints themselves.",
        )
    listed = zip(state.all_model_checkpoint_paths, state.timestamps, strict=False)
    kept = [(inside, timestamp) for name, timestamp in listed if (inside := _resolve_name(path, name))]
    return dataclasses.replace(
        state,
        model_checkpoint_path=os.path.join(directory, newest),
        all_model_checkpoint_paths=tuple(inside for inside, _ in kept),
        timestamps=tuple(timestamp for _, timestamp in kept),
        last_good=state.last_good and _resolve_name(path, state.last_good),
        best=state.best and _resolve_name(path, state.best),
        lost_best=state.lost_best and _resolve_name(path, state.lost_best),
        pending_removals=tuple(inside for name in state.pending_removals if (inside := _resolve_name(path, name))),
    )


_STATE = schema.record(
    CheckpointState,
    model_checkpoint_path=schema.path(),
    all_model_checkpoint_paths=schema.list_of(schema.path()),
    timestamps=schema.list_of(schema.number()),
    last_good=schema.not_required(schema.nullable(schema.path())),
    last_preserved_timestamp=schema.not_required(schema.nullable(schema.number())),
    best=schema.not_required(schema.nullable(schema.path())),
    max_to_keep=schema.not_required(schema.nullable(schema.integer(at_least=0))),
    keep_checkpoint_every_n_hours=schema.not_required(schema.nullable(schema.number(at_least=0))),
    lost_best=schema.not_required(schema.nullable(schema.path())),
    pending_removals=schema.not_required(schema.list_of(schema.path())),
)


def _is_plain_name(name: str) -> bool:
    """Returns whether a name is valid in a state file, whose checkpoints are directly in its directory."""
    return os.path.basename(name) == name and name not in ("", os.curdir, os.pardir)


def _resolve_name(state_file: str, name: str) -> str | None:
    """Returns the path of a checkpoint that a state file names; None, after one warning, if it is not beside it."""
    if _is_plain_name(name):
        return os.path.join(os.path.dirname(state_file), name)
    if (state_file, name) not in _warned:
        _warned.add((state_file, name))
        _logger.warning(
            "'%s' names %r, which is not in its directory: hookline ignores it, and never removes it.", state_file, name
        )
    return None


_warned: set[tuple[str, str]] = set()


def _foreign_file_message(path: str, error: Exception) -> str:
    """Returns the error message for a state file of another program."""
    try:
        named = re.match(r'model_checkpoint_path: "([^"]*)"', read_text(path, _MOST_BYTES))
    except (OSError, ValueError):
        named = None
    if named:
        return (
            f"'{path}' is TensorFlow's: its newest checkpoint is '{named[1]}', which hookline neither reads nor "
            "overwrites. Use another directory, or move TensorFlow's files out of this one."
        )
    return (
        f"'{path}' is not a state file of hookline ({error}), and no checkpoint of hookline is beside it: "
        "another program seems to keep its checkpoints there. Use another directory, or remove that file."
    )


def get_checkpoint_state(checkpoint_dir: str, latest_filename: str | None = None) -> CheckpointState | None:
    """Returns the complete checkpoints of a directory.

    The directory decides, not the state file. A checkpoint counts even if its process was killed before it wrote the
    state file. A deleted or half-written checkpoint does not count, even if the state file lists it. Without a state
    file, the newest checkpoint and its ancestors count; if it is not certain which is the newest, an ERROR in the log
    names the others.

    Args:
        checkpoint_dir: The directory.
        latest_filename: The name of the state file, if not "checkpoint".

    Returns:
        The state, or None if there is no complete checkpoint (or no directory).

    Raises:
        FailedPreconditionError: The directory has a state file of another program, and no checkpoint of hookline.

    Example:
        >>> get_checkpoint_state("/nowhere") is None
        True

    References:
        `tf.train.get_checkpoint_state`. There the state file alone decides.
    """
    checkpoint_dir = layout.in_file_system("Looking for checkpoints", "checkpoint_dir", checkpoint_dir)
    arguments.check_str("Looking for checkpoints", "latest_filename", latest_filename, optional=True)
    state, ambiguity = resolve_state(checkpoint_dir, latest_filename or STATE_FILE_NAME)
    if ambiguity and (checkpoint_dir, ambiguity) not in _warned:
        _warned.add((checkpoint_dir, ambiguity))
        _logger.error("In '%s' %s.", checkpoint_dir, ambiguity)
    return state


def resolve_state(directory: str, file: str = STATE_FILE_NAME) -> tuple[CheckpointState | None, str]:
    """Returns the state, as `get_checkpoint_state`, and the reason why another checkpoint may be the newest, or ""."""
    state = read_state(directory, file)
    before = state or CheckpointState("")
    everything = zip(before.all_model_checkpoint_paths, before.timestamps, strict=False)
    listed = [(path, timestamp) for path, timestamp in everything if layout.locate(path)]
    newest, ambiguity = before.model_checkpoint_path, ""
    if state is None or not layout.locate(newest):
        newest = listed[-1][0] if listed else ""
    since = max(before.timestamps) if listed else float("-inf")
    if later := _newer_candidates(directory, state, newest, since):
        choice = choose_newest(later)
        ambiguity = choice.ambiguity
        # Other savers may save in the same directory under other names.
        ancestry = [each for each in choice.ancestry if base_path(each.path) == base_path(choice.ancestry[-1].path)]
        newest = ancestry[-1].path
        if choice.others:  # Checkpoints that did not lead to it are ignored, even if the state file lists them.
            listed = [(path, timestamp) for path, timestamp in listed if any(each.path == path for each in ancestry)]
        known = dict(listed)
        listed += [(each.path, each.manifest.timestamp) for each in ancestry if each.path not in known]
    if not listed:
        return None, ""
    paths, timestamps = tuple(path for path, _ in listed), tuple(timestamp for _, timestamp in listed)
    good, best = (path if path in paths else None for path in (before.last_good, before.best))
    found = dataclasses.replace(
        before,
        model_checkpoint_path=newest,
        all_model_checkpoint_paths=paths,
        timestamps=timestamps,
        last_good=good,
        best=best,
        lost_best=before.best if before.best and not layout.locate(before.best) else before.lost_best,
        pending_removals=tuple(path for path in before.pending_removals if path not in paths and layout.locate(path)),
    )
    return found, ambiguity


def _newer_candidates(directory: str, state: CheckpointState | None, newest: str, since: float) -> list[Candidate]:
    """Returns the checkpoints that may be newer than the newest in the state file, and that one; [] if there are none.

    Without a state file, all may be.
    """
    known = () if state is None else state.all_model_checkpoint_paths
    every = [os.path.join(directory, name) for name in layout.checkpoint_names(directory)]
    found = [each for path in every if path not in known and (each := _read_candidate(path))]
    if state is None or not found:
        return found
    base, due = base_path(state.model_checkpoint_path), _read_candidate(newest) if newest else None
    found = [each for each in found if base_path(each.path) == base and _may_be_newer(each, due, since)]
    return [due, *found] if due and found else found


def _may_be_newer(each: Candidate, due: Candidate | None, since: float) -> bool:
    """Returns whether a checkpoint may be newer than the newest in the state file: by its lineage, or by the clock."""
    if due is not None:
        own, other = each.manifest.lineage, due.manifest.lineage
        if own.follows(other) or other.follows(own):
            return not other.follows(own)
    return each.manifest.timestamp > since


def _read_candidate(path: str) -> Candidate | None:
    """Returns a checkpoint with its manifest; None if the manifest is broken, or the checkpoint was just removed."""
    try:
        return Candidate(path, layout.read_manifest(path)[1])
    except DataLossError as error:
        _logger.warning("This checkpoint is ignored: %s", error)
    except NotFoundError:
        pass
    return None


def latest_checkpoint(checkpoint_dir: str, latest_filename: str | None = None) -> str | None:
    """Returns the path of the newest complete checkpoint in a directory, or None if there is none.

    Args:
        checkpoint_dir: The directory.
        latest_filename: The name of the state file, if not "checkpoint".

    Raises:
        FailedPreconditionError: As in `get_checkpoint_state`.

    Example:
        >>> latest_checkpoint("/nowhere") is None
        True

    References:
        `tf.train.latest_checkpoint`. This one is also right if the state file is missing, stale or broken.
    """
    state = get_checkpoint_state(checkpoint_dir, latest_filename)
    return None if state is None else state.model_checkpoint_path


def checkpoint_exists(checkpoint_prefix: str) -> bool:
    """Returns whether there is a complete checkpoint at this path.

    Args:
        checkpoint_prefix: The path, such as "runs/a/model.ckpt-100".

    Example:
        >>> checkpoint_exists("/nowhere/model.ckpt-1")
        False

    References:
        `tf.train.checkpoint_exists`.
    """
    return layout.locate(arguments.check_path("checkpoint_exists", "checkpoint_prefix", checkpoint_prefix)) is not None
