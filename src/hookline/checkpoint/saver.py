"""Saving and restoring the variables of a session."""

from __future__ import annotations

import copy
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, cast

from hookline import arguments, clock, log
from hookline.checkpoint.directory import collective, layout
from hookline.checkpoint.directory.lease import DEFAULT_WAIT_SECS
from hookline.checkpoint.directory.state_file import STATE_FILE_NAME
from hookline.checkpoint.saving import contents
from hookline.checkpoint.saving.failures import RetryPolicy
from hookline.checkpoint.saving.manager import CheckpointManager
from hookline.checkpoint.saving.retention import Retention
from hookline.checkpoint.saving.save_operation import PendingSave, SaveOperation
from hookline.errors import InvalidArgumentError, NotFoundError
from hookline.graph import GraphKeys, Variable, get_global_step
from hookline.graph.conditions import is_run_counter
from hookline.redirection import output_path
from hookline.session import Session
from hookline.session.activity import Activity

_logger = log.get_logger(__name__)
# Each saver has a number, by which SPMD processes match their messages about its saves.
_numbers = itertools.count()

# Arguments of `tf.train.Saver` that have no effect here.
_UNUSED_BY_SAVER = frozenset({
    "sharded", "restore_sequentially", "saver_def", "builder", "defer_build", "write_version", "save_relative_paths",
    "filename",
})  # fmt: skip
_UNUSED_BY_SAVE = frozenset({
    "meta_graph_suffix", "write_meta_graph", "write_state", "strip_default_attrs", "save_debug_info",
})  # fmt: skip
_logged_unused: set[str] = set()


class HasRawSession(Protocol):
    """A wrapper of a session, such as a monitored session."""

    def raw_session(self) -> Session:
        """Returns the underlying session, without hooks and recovery."""
        ...


class Saver:
    """Saves a session's variables as checkpoints, keeps the newest checkpoints, and restores them.

    A checkpoint is a directory. Orbax can read its arrays without hookline (`ocp.load(path)` returns a dict from leaf
    names to arrays). It is complete or invisible: a process killed at any moment leaves the previous checkpoint, and no
    partial one. A checkpoint at the same path is replaced when the new one is complete.

    Args:
        var_list: The variables to save and restore, or a dict from the names in the checkpoint to variables. None
            means all of `GraphKeys.GLOBAL_VARIABLES` in the session's graph, found when saving or restoring.
        max_to_keep: The number of newest checkpoints to keep; None or 0 keeps all.
        keep_checkpoint_every_n_hours: In each period of this many hours, one checkpoint that would be removed is kept
            permanently, even across restarts. None disables this, and so does the default in practice.
        name: A name for messages.
        reshape: Whether to restore a variable from a value of another shape that has as many elements.
        allow_empty: Whether to write a checkpoint without variables if there is nothing to save, instead of raising.
        pad_step_number: Writes the step into the path with eight digits, `model.ckpt-00000100`.
        verify: Whether `restore` compares the values with the checksums that were taken when they were saved.
        retry: The policy for a save that fails for a temporary reason; None means the defaults of `RetryPolicy`.
        lock_timeout_secs: The longest wait of a save while another process saves its checkpoints in the directory.
        **without_effect: Other arguments of `tf.train.Saver` (`sharded`, `restore_sequentially`, `saver_def`,
            `builder`, `defer_build`, `write_version`, `save_relative_paths`, `filename`) are accepted without effect,
            and logged once.

    Attributes:
        rollbacks: The number of rollbacks made by `roll_back`.
        last_save_secs: The seconds of the last save, from its start until it was complete; 0 before the first.
        is_clone: Whether it was made by `clone`.

    Raises:
        TypeError: An item of `var_list` is not a variable, or an argument is unknown.
        ValueError: `var_list` is empty or names a variable twice; a number is out of range.

    Example:
        >>> import hookline as hl, tempfile
        >>> w = hl.Variable(1.0, name="w")
        >>> change = w.assign(0.0)
        >>> with hl.Session() as sess, tempfile.TemporaryDirectory() as logdir:
        ...     sess.run(hl.global_variables_initializer())
        ...     saver = Saver(max_to_keep=3)
        ...     path = saver.save(sess, logdir + "/model.ckpt", global_step=100)
        ...     print(os.path.basename(path))
        ...     _ = sess.run(change)
        ...     saver.restore(sess, path)
        ...     print(sess.run(w))
        model.ckpt-100
        1.0

    References:
        `tf.train.Saver`. Variables may be pytrees. Saving may be asynchronous. Old checkpoints are removed only when
        the new one is complete. Mismatches are reported all at once, and change nothing.
    """

    def __init__(
        self,
        var_list: Iterable[Variable] | Mapping[str, Variable] | None = None,
        *,
        max_to_keep: int | None = 5,
        keep_checkpoint_every_n_hours: float | None = 10000.0,
        name: str | None = None,
        reshape: bool = False,
        allow_empty: bool = False,
        pad_step_number: bool = False,
        verify: bool = True,
        retry: RetryPolicy | None = None,
        lock_timeout_secs: float = DEFAULT_WAIT_SECS,
        **without_effect: Any,
    ) -> None:
        self.name = name or "Saver"
        _log_unused("Saver", without_effect, _UNUSED_BY_SAVER)
        self._allow_empty, self._reshape, self._digits = allow_empty, reshape, 8 if pad_step_number else 1
        self._verify = verify
        arguments.check_optional("Saver", "retry", retry, RetryPolicy)
        self._retry = retry or RetryPolicy()
        self._before_commit: list[Callable[[], None]] = []
        wait_secs = arguments.check_number("Saver", "lock_timeout_secs", lock_timeout_secs, at_least=0)
        self._variables = None if var_list is None else _by_name(var_list, allow_empty)
        retention = Retention(max_to_keep, keep_checkpoint_every_n_hours)
        self._manager = CheckpointManager(self.name, retention, wait_secs)
        self.rollbacks, self.is_clone, self.last_save_secs = 0, False, 0.0
        self._number = next(_numbers)
        self._pending: PendingSave | None = None

    def clone(self) -> Saver:
        """Returns a saver with the same settings, for another training run.

        It starts without checkpoints, and never removes those of this saver.

        Example:
            >>> saver = Saver(max_to_keep=3)
            >>> saver.clone().last_checkpoints
            []
        """
        other = copy.copy(self)
        other._before_commit = list(self._before_commit)
        other._manager = self._manager.clone()
        other.rollbacks, other._number, other._pending, other.last_save_secs = 0, next(_numbers), None, 0.0
        other.is_clone = True
        return other

    @property
    def last_checkpoints(self) -> list[str]:
        """The checkpoints that this saver wrote or recovered and may still remove, oldest first."""
        return self._manager.paths

    def add_pre_commit(self, function: Callable[[], None]) -> None:
        """Registers a function to call, in the background, before each checkpoint becomes visible.

        The function can sync data that belong to the checkpoint and are stored elsewhere. Adding it again has no
        effect.
        """
        if function not in self._before_commit:
            self._before_commit.append(function)

    def recover_last_checkpoints(
        self,
        checkpoint_paths: Iterable[str],
        *,
        last_good: str | None = None,
        last_preserved_timestamp: float | None = None,
        best: str | None = None,
    ) -> None:
        """Takes over the checkpoints of an earlier training run, so that they count towards `max_to_keep`.

        Args:
            checkpoint_paths: Their paths, oldest first. Missing ones are ignored. Broken ones are ignored with a
                warning and stay where they are.
            last_good: The newest of them that is known to be good (`CheckpointState.last_good`).
            last_preserved_timestamp: The time up to which `keep_checkpoint_every_n_hours` has been applied, in seconds
                since the epoch.
            best: The best of them.
        """
        self.wait()
        who = "Saver.recover_last_checkpoints"
        given = arguments.check_list(who, "checkpoint_paths", checkpoint_paths)
        paths = [arguments.check_path(who, "checkpoint_paths", path) for path in given]
        self._manager.recover(paths, last_good, last_preserved_timestamp, best)

    def save(
        self,
        sess: Session | HasRawSession,
        save_path: str,
        global_step: Any = None,
        latest_filename: str | None = None,
        **without_effect: Any,
    ) -> str:
        """Writes a checkpoint and returns when it is complete.

        Args:
            sess: The session that holds the variables. For a monitored session, its raw session is used, so hooks do
                not see this.
            save_path: A directory and the beginning of a name, such as "runs/a/model.ckpt".
            global_step: The number of completed steps, which is appended to the name: a number, or a tensor to read.
            latest_filename: The name of the state file in that directory, if not "checkpoint".
            **without_effect: Other arguments of `tf.train.Saver.save` (`meta_graph_suffix`, `write_meta_graph`,
                `write_state`, `strip_default_attrs`, `save_debug_info`) are accepted without effect, and logged once.

        Returns:
            The path of the checkpoint: "runs/a/model.ckpt-100".

        Raises:
            FailedPreconditionError: A variable has no value, a file is where a directory should be, or another program
                or process saves in that directory.
            PermissionDeniedError: The directory may not be written to.
            ResourceExhaustedError: The disk is full.
            AlreadyExistsError: A file or directory at that path is not a checkpoint, or its directory is a file.
            InvalidArgumentError: A path or a value cannot be used; or an input check (`hookline.extend.Check`) failed
                in an earlier run: saving waits for the earlier runs and raises such an error.
        """
        if without_effect:
            _log_unused("Saver.save", without_effect, _UNUSED_BY_SAVE)
        sess = _to_raw_session(sess, "Saver.save")
        sess.wait_for_device()
        with sess.activity.during("save"):
            pending = self.save_async(sess, save_path, global_step, latest_filename)
            pending.wait()
        self._pending = None
        return pending.path

    def save_async(
        self,
        sess: Session | HasRawSession,
        save_path: str,
        global_step: Any = None,
        latest_filename: str | None = None,
        *,
        extra: bool = False,
        retry: RetryPolicy | None = None,
    ) -> PendingSave:
        """Starts to write a checkpoint and returns as soon as the values have been copied.

        Later changes in the session do not affect the checkpoint. If a save is under way, this waits for it first.

        Args:
            sess: As in `save`, like the other arguments.
            save_path: As in `save`.
            global_step: As in `save`.
            latest_filename: As in `save`.
            extra: Whether it is kept in addition to those that `max_to_keep` counts, replacing the previous extra one.
            retry: The policy for this save; None means the saver's policy.

        Returns:
            The save under way. When it is complete, the state file is written and old checkpoints are removed.

        Raises:
            OpError: As in `save`, if the error is known at once; also the failure of the previous save, if `wait` has
                not raised it yet.
        """
        sess = _to_raw_session(sess, "Saver.save")
        sess.wait_for_device()
        with sess.activity.during("save"):
            self.wait()
            begin_secs, save_path = clock.monotonic(), _check_save_path(save_path)
            arguments.check_str("Saver.save", "latest_filename", latest_filename, optional=True)
            arguments.check_optional("Saver.save_async", "retry", retry, RetryPolicy)
            state_file, retry = latest_filename or STATE_FILE_NAME, retry or self._retry
            sess.activity.listener("save begun")
            save = SaveOperation(self._manager, self._before_commit, save_path, state_file, self._digits, retry, extra)
            save.prepare(sess, self._variables_of, global_step, self._number)
            self._pending = save.begin()
        sess.activity.listener("save copied", path=self._pending.path)
        self._pending.when_done(functools.partial(self._note_end, sess.activity, self._pending.path, begin_secs))
        return self._pending

    def _note_end(self, activity: Activity, path: str, begin_secs: float, failure: BaseException | None) -> None:
        secs = clock.monotonic() - begin_secs
        if failure is None:
            self.last_save_secs = secs
        activity.listener("saved" if failure is None else "save failed", path=path, took=secs)

    def wait(self) -> None:
        """Blocks until the save under way, if any, is complete.

        Raises:
            OpError: It failed, and no call has raised this yet.
        """
        if (pending := self._pending) is not None:
            pending.wait_unless_raised()
            self._pending = None

    def restore(self, sess: Session | HasRawSession, save_path: str) -> None:
        """Sets a session's variables to the values in a checkpoint. They need not have been initialised.

        Args:
            sess: The session, raw or monitored. If this changes the global step, every hook sees it at the next run.
            save_path: The checkpoint, as `save` or `latest_checkpoint` returned it.

        Raises:
            NotFoundError: There is no such checkpoint, or it lacks a value.
            InvalidArgumentError: It does not fit the graph, or is not a checkpoint of hookline.
            DataLossError: Its files are broken, or differ from the saved values.
        """
        self.wait()
        sess, path = (
            _to_raw_session(sess, "Saver.restore"),
            layout.in_file_system("Saver.restore", "save_path", save_path),
        )
        contents.load(sess, path, self._variables_of(sess), reshapes=self._reshape, verifies=self._verify)

    def mark_good(self, step: int) -> None:
        """Records that a value computed from the weights of this global step was good, such as a finite loss.

        So the newest checkpoint up to that step is good. It is kept beyond `max_to_keep` until a newer one is good.
        """
        self._manager.mark_good(step)

    def mark_best(self, step: int | None) -> None:
        """Keeps the checkpoint of this global step beyond `max_to_keep`, until another step is marked.

        The checkpoint may still be under way, or be the next one. `CheckpointState.best` names it, and
        `train.load(..., step="best")` reads it. None keeps the best checkpoint so far permanently: use it if its metric
        is unknown, so that no later checkpoint can be compared with it.
        """
        self._manager.mark_best(step)

    def recover_best(self, sess: Session, step: int) -> bool:
        """Keeps the checkpoint of an earlier session's best step, as `mark_best` does, if it still exists.

        In SPMD training this is a collective operation: every process must call it.

        Returns:
            Whether it exists; if not, a warning is logged.
        """
        self.wait()
        # The path continues that of the newest checkpoint, or of the one that the session restored. The lineage shows
        # whether the checkpoint there led to the session's values: another training run may have written it.
        newest = next(reversed(self._manager.paths), sess.backend.restored[0])
        path = f"{layout.base_path(newest)}-{step:0{self._digits}d}"
        found = collective.current().run_on_chief(
            lambda: self._manager.recover_best(step, path, contents.last_lineage(sess))
        )
        if found:
            self._manager.mark_best(step)
        return found

    @property
    def last_good(self) -> str | None:
        """The newest checkpoint that is known to be good; reading this waits for a save under way.

        In SPMD training this is a collective operation: every process must read it.
        """
        self.wait()
        good = self._manager.last_good
        return collective.current().run_on_chief(lambda: good)

    def roll_back(self, sess: Session | HasRawSession) -> str:
        """Sets variables to their values in the last good checkpoint, or in the newest if none is known to be good.

        Counters keep their values: the global step, the counters of random keys, the positions of iterators. So the
        steps since that checkpoint are not repeated: no batch is used again, and no step has two checkpoints.
        Checkpoints after it that have not been marked good before this call can no longer become good.

        Returns:
            The checkpoint.

        Raises:
            NotFoundError: There is no checkpoint; this and other errors also as in `restore`.
        """
        path = self.last_good or collective.current().run_on_chief(lambda: next(reversed(self._manager.paths), None))
        if path is None:
            raise NotFoundError.from_message(f"{self.name} cannot roll back: it has saved no checkpoint yet.")
        sess = _to_raw_session(sess)
        variables = {name: v for name, v in self._variables_of(sess).items() if not is_run_counter(v)}
        sess.deliver_pending()
        # `forget` frees the old values before the new ones are read: two copies of a large model may not fit in memory.
        with sess.backend.replacing(variables.values()) as forget:
            contents.load(
                sess,
                path,
                variables,
                reshapes=self._reshape,
                verifies=self._verify,
                only_variables=True,
                before_reading=forget,
            )
        self._manager.mark_suspect(path, None if get_global_step(sess.graph) is None else sess.global_step)
        self.rollbacks += 1
        return path

    def _variables_of(self, sess: Session) -> dict[str, Variable]:
        if self._variables is not None:
            return self._variables
        variables = sess.graph.get_collection(GraphKeys.GLOBAL_VARIABLES)
        if not variables and not self._allow_empty:
            raise ValueError(f"{self.name} has nothing to save or restore: the graph has no global variables.")
        return _by_name(variables, self._allow_empty)


def _to_raw_session(sess: Session | HasRawSession, who: str = "Saver") -> Session:
    raw_session = getattr(sess, "raw_session", None)
    return arguments.check_has(who, "sess", sess, "a session", "graph") if raw_session is None else raw_session()


def _by_name(var_list: Iterable[Variable] | Mapping[str, Variable], allow_empty: bool = False) -> dict[str, Variable]:
    named = cast("Mapping[str, Variable]", var_list) if isinstance(var_list, Mapping) else None
    variables = arguments.check_list("Saver", "var_list", var_list) if named is None else list(named.values())
    for variable in variables:
        if not isinstance(variable, Variable):
            raise TypeError(f"Saver requires variables in var_list, got {type(variable).__name__}: {variable!r}.")
    if not variables and not allow_empty:
        raise ValueError("Saver requires a variable or more in var_list (None means all global variables), got none.")
    if len(set(variables)) < len(variables):
        raise ValueError(f"Saver requires each variable once in var_list, got {[v.op.name for v in variables]}.")
    return {v.op.name: v for v in variables} if named is None else dict(named)


def _check_save_path(save_path: str) -> str:
    path = layout.in_file_system("Saver.save", "save_path", save_path)
    if not os.path.basename(path):
        raise InvalidArgumentError.from_message(
            f"Saver.save requires a directory and a name, such as 'runs/a/model.ckpt', got '{path}'."
        )
    return output_path(path)


def _log_unused(who: str, given: Mapping[str, Any], known: frozenset[str]) -> None:
    """Logs, once for each documented argument, that it has no effect; refuses other arguments."""
    if unknown := sorted(given.keys() - known):
        raise TypeError(f"{who} has no argument {unknown[0]!r}.")
    if new := sorted(given.keys() - _logged_unused):
        _logged_unused.update(new)
        _logger.info("%s accepts these arguments without effect: %s.", who, ", ".join(new))
