"""CheckpointSaverHook: saves checkpoints every N steps or seconds."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from hookline import arguments, log, summary
from hookline.checkpoint import CheckpointSaverListener, PendingSave, RetryPolicy, Saver, checkpoint_exists, listener
from hookline.checkpoint.directory import collective, layout, lease
from hookline.checkpoint.saving import durable
from hookline.coordination import Coordinator, process_group
from hookline.errors import PREEMPTION_ERRORS, FailedPreconditionError, OpError
from hookline.graph import Graph, GraphKeys, get_global_step
from hookline.hooks.base import Firing, SessionRunContext, SessionRunHook
from hookline.hooks.lookup import not_started_error, require_global_step, session_savers
from hookline.hooks.timers import trigger_from_arguments
from hookline.hooks.trigger import Trigger
from hookline.redirection import output_dir, output_path
from hookline.session import Session
from hookline.signals import preemption
from hookline.summary import FileWriter, FileWriterCache
from hookline.summary.writer_cache import WRITER_SCOPE

_logger = log.get_logger(__name__)


class _HasSaver(Protocol):
    @property
    def saver(self) -> Saver | None: ...


class CheckpointSaverHook(SessionRunHook):
    """Saves a checkpoint when the session is created, then every N steps or seconds, and at the end.

    `save_steps` counts global steps. The checkpoint holds the state after the run that reaches the step, and is saved
    before the next run. It is written while the training continues. If a listener defines `after_save`, which must find
    a complete checkpoint, the training waits instead. If a save fails, the hook tries once more; even if this succeeds,
    the training then ends with the error of the first save. If the checkpoint of the step is on disk when the session
    is created, it is not written again, but the listeners are called.

    Callbacks: `begin`, `after_create_session`, `on_trigger`, `end`, which returns when its save is complete, and
    `on_exception`, which waits for a pending save.

    To save at other times, give a `trigger`. To do more around a save, or something else instead, override `save`. To
    choose the saver, override `get_saver`.

    Args:
        checkpoint_dir: The directory of the checkpoints.
        save_secs: Seconds from one save to the next.
        save_steps: Global steps from one save to the next. If `save_secs` is given too, each of the two counts
            from its own last save.
        saver: The saver; by default the scaffold's, or the one in collection `SAVERS`.
        checkpoint_basename: Checkpoints are called `<checkpoint_basename>-<global step>`.
        scaffold: The scaffold that has the saver.
        listeners: Called around every save, in order. They need not be `CheckpointSaverListener`s: an object with at
            least one of the callbacks is enough.
        save_graph_def: Whether to write the graph's description, to `graph.txt` and for TensorBoard.
        trigger: Decides when to save, instead of `save_secs` and `save_steps`.
        lock_timeout_secs: How long `begin` waits if another process saves in the directory.

    Attributes:
        trigger: Decides when to save.
        checkpoint_dir, scaffold: As given.
        given_saver: The argument `saver`.
        used_saver: The result of `get_saver` for this session; None before `after_create_session`.
        save_path: The path of the checkpoints without `-<global step>`.
        listeners: The listeners, in order.
        summary_writer: The writer of the checkpoint directory; None before `begin`.
        saved_step: The global step of the last save; None before the first one.

    Raises:
        ValueError: None of `save_steps`, `save_secs` and `trigger` is given, or `trigger` and another of them; or both
            `saver` and `scaffold` are given.
        TypeError: A listener has none of the callbacks of a listener.
        InvalidArgumentError: The directory is the address of an object store.
        RuntimeError: From `after_create_session`: no saver was given, and the graph has none or several.
        FailedPreconditionError: From `begin`: another process saves in the directory.

    Example:
        >>> hook = CheckpointSaverHook("/tmp/job", save_secs=600, save_steps=5000)
        >>> CheckpointSaverHook("/tmp/job")
        Traceback (most recent call last):
        ...
        ValueError: CheckpointSaverHook requires save_steps, save_secs, both or trigger, got none.

    References:
        `tf.train.CheckpointSaverHook`. Differences: a save with `save_steps` needs no second run; `save_steps` and
        `save_secs` may be given together; checkpoints are written in the background; the graph is listed as text in
        `graph.txt`, not in `graph.pbtxt`; `trigger`; the methods to override are public.
    """

    trigger: Trigger

    # Identifies the monitored session of the hook; None if your own code calls the hook.
    _scope: object = None
    _given_paths: tuple[str, str] | None = None

    def __init__(
        self,
        checkpoint_dir: str,
        save_secs: float | None = None,
        save_steps: int | None = None,
        saver: Saver | None = None,
        checkpoint_basename: str = "model.ckpt",
        scaffold: _HasSaver | None = None,
        listeners: Iterable[CheckpointSaverListener] | None = None,
        save_graph_def: bool = True,
        *,
        trigger: Trigger | None = None,
        lock_timeout_secs: float = lease.DEFAULT_WAIT_SECS,
    ) -> None:
        self._lease_wait_secs = arguments.check_number(
            "CheckpointSaverHook", "lock_timeout_secs", lock_timeout_secs, at_least=0
        )
        self._release_lease: Callable[[], None] | None = None
        if saver is not None and scaffold is not None:
            raise ValueError("CheckpointSaverHook takes a saver or a scaffold, got both.")
        self.trigger = trigger_from_arguments(
            "CheckpointSaverHook", trigger, ("save_steps", save_steps), ("save_secs", save_secs), both=True
        )
        self.checkpoint_dir = layout.in_file_system("CheckpointSaverHook", "checkpoint_dir", checkpoint_dir)
        name = arguments.check_path("CheckpointSaverHook", "checkpoint_basename", checkpoint_basename)
        self.state_key = name  # Not the directory, which may be moved.
        self.save_path = os.path.join(self.checkpoint_dir, name)
        self.output_description = f"checkpoints '{self.save_path}-<step>'"
        arguments.check_has("CheckpointSaverHook", "scaffold", scaffold, "a Scaffold", "saver", optional=True)
        self.given_saver = arguments.check_has("CheckpointSaverHook", "saver", saver, "a Saver", "save", optional=True)
        self.scaffold = scaffold
        self.listeners = listener.check_listeners("CheckpointSaverHook", listeners)
        self._save_graph_def = save_graph_def
        self.used_saver: Saver | None = None
        self.summary_writer: FileWriter | None = None
        self._pending: PendingSave | None = None
        # Returns the coordinator, which gets the error of a failed background save. In a session this is a weak
        # reference: the thread of the save must not keep the session in memory.
        self._coordinator: Callable[[], Coordinator | None] = lambda: None
        self.saved_step: int | None = None
        self._graph_written = False
        self._save_failed = False
        self._step_on_disk: int | None = None  # The first step of the session, if on disk.

    def get_saver(self, graph: Graph) -> Saver:
        """Returns the saver to use. Called once for each created session. Override it to choose another.

        Raises:
            RuntimeError: No saver was given, and the graph has none or several.

        Example:
            >>> class WeightsOnly(CheckpointSaverHook):
            ...     def get_saver(self, graph):
            ...         return Saver(graph.get_collection(GraphKeys.TRAINABLE_VARIABLES))
        """
        saver = self.scaffold.saver if self.scaffold is not None else self.given_saver
        if saver is not None:
            return saver
        savers = graph.get_collection(GraphKeys.SAVERS)
        if len(savers) != 1:
            raise RuntimeError(
                f"CheckpointSaverHook requires exactly one saver in collection {GraphKeys.SAVERS!r}, "
                f"found {len(savers)}. Pass saver= or scaffold=."
            )
        return savers[0]

    def save(self, session: Session, global_step: int) -> bool:
        """Saves, and calls the listeners before and after. Override it to do more, or something else.

        Called when the session is created, when the trigger fires, and at the end if the last save was at another step.
        It may return before the checkpoint is complete. If the checkpoint of the session's first step is on disk, it is
        not written again, but the listeners are called.

        Returns:
            True to stop the training: a listener's `after_save` returned True. Other values have no effect.

        Raises:
            OpError: This checkpoint or the previous one could not be written.

        Example:
            >>> class Announcing(CheckpointSaverHook):
            ...     def save(self, session, global_step):
            ...         print("saving step", global_step)
            ...         return super().save(session, global_step)
        """
        if self.used_saver is None:
            raise not_started_error(self)
        with session.activity.during("save"):
            self.finish_save()
        listener.call_listeners(self.listeners, "before_save", session, global_step)
        if global_step == self._step_on_disk:
            return listener.call_listeners(self.listeners, "after_save", session, global_step)
        # Other workers may advance shared variables meanwhile: the checkpoint is named after the step that it contains.
        step: Any = get_global_step(session.graph) if session.backend.shared else global_step
        with self._noting_save_failure():
            if not listener.any_after_save(self.listeners):
                self._pending = pending = self.used_saver.save_async(session, self.save_path, global_step=step)
                pending.when_done(functools.partial(self._on_save_done, pending.path))
                return False
            self._note_commit(self.used_saver.save(session, self.save_path, global_step=step))
        return listener.call_listeners(self.listeners, "after_save", session, global_step)

    def save_now(self, session: Session, *, again: bool = False) -> bool:
        """Saves now, unless the last save was at this step.

        Args:
            session: The raw session.
            again: Whether to save even if the last save was at this step.

        Returns:
            Whether a listener requests a stop of the training.

        Raises:
            OpError: This checkpoint or the previous one could not be written.
        """
        global_step = session.global_step
        if global_step == self.saved_step and not again:
            return False
        self._check_lease_owner()
        stop = self.save(session, global_step)
        self.saved_step = global_step  # Also if a subclass overrides `save`.
        return stop is True

    def finish_save(self) -> None:
        """Waits for a pending save.

        Raises:
            OpError: The checkpoint could not be written.
        """
        if self._pending is None:
            return
        save, self._pending, self.saved_step = self._pending, None, None
        with self._noting_save_failure():
            save.wait()
        self.saved_step = _step_of(save.path)

    def begin(self) -> None:
        """Opens the writer, and calls the listeners' `begin`."""
        require_global_step(self)
        self.used_saver = None
        self._pending = None
        self.saved_step = None
        self._graph_written = False
        self.after_close()
        if (folder := output_dir(self.checkpoint_dir)) != self.checkpoint_dir:  # A replay.
            self._given_paths = self.checkpoint_dir, self.save_path
            self.checkpoint_dir, self.save_path = folder, output_path(self.save_path)
        # The lease is taken before the session chooses a checkpoint to restore, because until then another process may
        # save a newer one.
        collective.current().run_on_chief(self._take_lease)
        self.summary_writer = FileWriterCache.get(self.checkpoint_dir)
        listener.call_listeners(self.listeners, "begin")

    def _take_lease(self) -> None:
        self._release_lease = handle = lease.acquire_lease(self.checkpoint_dir, self._lease_wait_secs)
        lease.release_when_collected(self, handle)
        handle.lease.session = self._scope = WRITER_SCOPE.get()

    def _check_lease_owner(self) -> None:
        """Raises an error if a session that was opened later in this process owns the directory."""
        held = lease.get_lease(self.checkpoint_dir)
        if held is not None and self._scope is not None and held.session is not self._scope:
            raise FailedPreconditionError.from_message(
                f"CheckpointSaverHook cannot save in '{self.checkpoint_dir}' any more: a session that was opened later "
                f"in this process saves there, and older checkpoints would replace its checkpoints. Close a session "
                f"before you open the next one on its directory.",
            )

    def after_close(self) -> None:
        """Releases the lease, so that other processes can save in the directory."""
        release, self._release_lease = self._release_lease, None
        if release is not None:
            release()
        if self._given_paths is not None:
            (self.checkpoint_dir, self.save_path), self._given_paths = self._given_paths, None

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Writes the graph's description, and saves; if the step is on disk, only the listeners are called."""
        self._wait_for_lost_save(session)
        saver = self.get_saver(session.graph)
        if saver is None:
            raise TypeError(f"{type(self).__name__}.get_saver must return a Saver, got None.")
        self.used_saver = saver
        session_savers(session)[saver] = self.save_now
        if coord is not None:  # It may be None if your own code calls the hook.
            self._coordinator = weakref.ref(coord)
        # Before a checkpoint is committed, the summaries up to its step must be on disk.
        saver.add_pre_commit(FileWriterCache.sync)
        if self._save_graph_def and not self._graph_written:
            self._write_graph(session.graph)
            self._graph_written = True
        global_step = session.global_step
        is_there = collective.current().run_on_chief(
            functools.partial(checkpoint_exists, f"{self.save_path}-{global_step}")
        )
        self._step_on_disk = global_step if is_there else None
        self.save_now(session, again=True)
        self._step_on_disk = None
        # A subclass that decides itself when to save may have no trigger.
        if self.trigger is not None and self.trigger.last_triggered_step() is None:
            self.trigger.update_last_triggered_step(global_step)

    def on_trigger(self, firing: Firing) -> None:
        """Saves the state after the run; see `save_after_run`.

        Raises:
            Exception: This save, or the pending one, failed with this error.
        """
        self.save_after_run(firing.context)

    def save_after_run(self, context: SessionRunContext) -> None:
        """Saves the state after a run, and stops the training if a listener requests it.

        For `on_trigger`, and for the `after_run` of a subclass that decides itself when to save. Pending results are
        delivered to the hooks first, so that they find a NaN before it is saved. If the save fails, one more attempt is
        made to save the state.

        Args:
            context: The context of the run.

        Raises:
            Exception: This save, or the pending one, failed with this error.
        """
        session = context.session
        context.deliver_pending()
        if context.stop_requested and session.is_invalid:
            return  # `end` says so.
        self._save_failed = False
        try:
            if self.save_now(session, again=True):
                context.request_stop()
        except Exception as failure:
            # Variables on parameter servers outlive this process, so no last save is needed.
            if self._save_failed and not session.backend.shared and not preemption.must_exit_now():
                self._try_save_on_failure(context, failure)
            raise

    def steps_written(self, trigger: Trigger, first: int, last: int | None) -> Iterable[int] | None:
        """Returns the steps at which it will save, or None if they cannot be known.

        These are the steps at which the trigger fires, and `last`; and `first`, if that has no checkpoint yet.
        """
        if trigger.last_triggered_step() is None:
            trigger.update_last_triggered_step(first)
        begins = [] if checkpoint_exists(f"{self.save_path}-{first}") else [first]
        fired = trigger.firing_steps(first, last)
        return None if fired is None else itertools.chain(begins, fired, () if last is None else [last])

    def end(self, session: Session) -> None:
        """Saves if the last save was at another step, waits for the save, and calls the listeners' `end`.

        A state that is marked as invalid, such as after a NaN, is not saved.
        """
        try:
            self.finish_save()
        finally:
            # Even if the previous save failed: this one may succeed.
            if session.is_invalid and session.global_step != self.saved_step:
                kept = getattr(self.used_saver, "last_checkpoints", ())
                _logger.warning(
                    "CheckpointSaverHook does not save the invalid state of step %d. %s.",
                    session.global_step,
                    f"The newest checkpoint is {kept[-1]}" if kept else "There is no checkpoint",
                )
            else:
                self.save_now(session)
                self.finish_save()
            listener.call_listeners(self.listeners, "end", session, session.global_step)
            if self.summary_writer is not None:
                self.summary_writer.flush()

    def save_on_failure(self, session: Session, exception: BaseException) -> None:
        """Saves the state of the last completed run, when a run or the body of the session has failed.

        If that step is already saved, this does nothing. Otherwise the checkpoint becomes the newest one. It does not
        count towards `max_to_keep`; of such checkpoints only the latest is kept. Listeners are not called. If a save
        has just failed after its retries, this one is tried only once.

        Raises:
            OpError: The checkpoint could not be written.
        """
        if self.used_saver is None:
            return
        try:
            self.finish_save()
        except Exception as failure:
            _logger.error("%s", failure)
        global_step = session.global_step
        if global_step != self.saved_step:
            self._check_lease_owner()
            # After a failed save, whose retries have waited for the disk already, this one is tried only once.
            retry = RetryPolicy(max_attempts=1) if self._save_failed else None
            pending = self.used_saver.save_async(session, self.save_path, global_step, extra=True, retry=retry)
            pending.wait()
            self._note_commit(pending.path)
            _logger.warning(
                "Saved checkpoint %s, because %s ends the training.", pending.path, type(exception).__name__
            )

    def _try_save_on_failure(self, run_context: SessionRunContext, failure: Exception) -> None:
        """Tries once more to save the state after the run, because a failed save ends the training or the session."""
        try:
            run_context.deliver_pending()
            self.save_on_failure(run_context.session, failure)
        except Exception as again:
            _logger.error("The last attempt to save a checkpoint failed: %s: %s", type(again).__name__, again)

    def on_exception(self, session: Session, exception: BaseException) -> None:
        """Waits for a pending save, because a restart needs that checkpoint."""
        self.finish_save()

    @contextlib.contextmanager
    def _noting_save_failure(self) -> Iterator[None]:
        """Records an error that comes from a save, not from a listener or another hook."""
        try:
            yield
        except Exception:
            self._save_failed = True
            raise

    def _on_save_done(self, path: str, error: BaseException | None) -> None:
        """Logs a background save that is complete; after a failed one, requests a stop with its error."""
        if error is None:
            try:
                self._log_commit(path)
            except Exception as failure:
                error = failure
        if error is not None and (coordinator := self._coordinator()) is not None:
            # After `join`, `request_stop` raises the error. It is not lost: `finish_save` raises it too.
            with contextlib.suppress(type(error)):
                coordinator.request_stop(error)

    def _wait_for_lost_save(self, session: Session) -> None:
        """Waits for the pending save of a session that was lost; logs a warning if it failed because of that."""
        try:
            self.finish_save()
        except Exception as exc:
            if not isinstance(session.backend.map_error(exc), PREEMPTION_ERRORS):
                raise
            _logger.warning("The checkpoint that was being written when the session was lost is lost too: %s", exc)

    def _note_commit(self, path: str) -> None:
        self.saved_step = _step_of(path)
        self._log_commit(path)

    def _log_commit(self, path: str) -> None:
        _logger.info("Saved checkpoint %s.", path)
        if self.summary_writer is not None:
            named = os.fsencode(path).decode("utf-8", "replace")  # A protobuf string must be UTF-8.
            self.summary_writer.add_session_log(
                summary.SessionLog(status=summary.SessionLog.CHECKPOINT, checkpoint_path=named), _step_of(path)
            )

    def _write_graph(self, graph: Graph) -> None:
        if not process_group.is_primary():
            return
        path = os.path.join(self.checkpoint_dir, "graph.txt")
        held = lease.get_lease(self.checkpoint_dir)  # None if a subclass's `begin` takes no lease.
        try:
            with contextlib.nullcontext() if held is None else held.ensure_held():
                durable.write_text(path, graph.as_text())
        except (OSError, OpError) as error:  # Training does not need this file.
            _logger.warning("CheckpointSaverHook could not write '%s', and continues without it: %s", path, error)
        if self.summary_writer is not None:
            self.summary_writer.add_graph(graph)


def _step_of(path: str) -> int:
    return int(path.rpartition("-")[2])
