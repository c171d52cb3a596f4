"""MonitoredSession and SingularMonitoredSession: raw sessions with hooks around their runs, for a training loop."""

from __future__ import annotations

import contextlib
import operator
import threading
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from hookline import arguments
from hookline.coordination import Coordinator, process_group
from hookline.coordination.coordinator import caller
from hookline.errors import END_OF_INPUT, GRACEFUL_EXITS
from hookline.graph import Graph, get_default_graph
from hookline.graph.front_end import FrontEndObject
from hookline.monitored import spmd_sync as spmd_sync
from hookline.monitored import step_context
from hookline.monitored.hooked.callbacks import checked_hooks, describe
from hookline.monitored.hooked.fast_path import SLOW_PATH, FastPath
from hookline.monitored.hooked.hook_list import HookList
from hookline.monitored.hooked.hooked_session import HookedSession
from hookline.monitored.launcher_hooks import launcher_hooks
from hookline.monitored.recoverable import DEFAULT_RECOVERY, RecoverableSession, RecoveryPolicy
from hookline.monitored.session_guard import SessionAccess, SessionGuard
from hookline.monitored.session_teardown import CLEAN_EXITS, SessionTeardown, first_with_notes
from hookline.monitored.spmd_sync import SpmdSync
from hookline.monitored.starting.creators import ChiefSessionCreator, SessionCreator, WorkerSessionCreator
from hookline.monitored.starting.scaffold import Scaffold
from hookline.monitored.starting.session_setup import SessionSetup
from hookline.monitored.step_context import check_step_fn
from hookline.monitored.stop_request import StopRequest
from hookline.monitored.training_options import PreemptionOptions
from hookline.session import RunMetadata, RunOptions, Session, StoreTarget
from hookline.signals import interrupts, notebooks, preemption
from hookline.signals.preemption import EXIT, SessionSignals, is_active
from hookline.summary import FileWriter, FileWriterCache
from hookline.summary.writer_cache import WRITER_SCOPE, WriterScope

_CLOSED = "Session is already closed."
_INSIDE = (
    "A monitored session cannot {what} from inside one of its runs or callbacks. In a hook, run_context.session.run "
    "runs without hooks; in a step function, step_context.run_with_hooks runs with them."
)
_CLOSED_INSIDE = (
    "A monitored session cannot be closed from inside one of its runs or callbacks. To end the training, call "
    "run_context.request_stop() in a hook, or step_context.request_stop() in a step function."
)


class MonitoredSession(FrontEndObject):
    """Runs a graph with hooks: initialises or restores the model, recovers a lost session, stops threads at the end.

    The constructor calls every hook's `begin`, finalizes the scaffold, creates the session, initialises or restores the
    model, and calls every hook's `after_create_session`, in this order. `close` calls every hook's `end`. Use the
    session as a context manager: the end of the input (`OutOfRangeError`, `StopIteration`) leaves the `with` block
    without an error.

    Args:
        session_creator: Creates the raw session; by default a `ChiefSessionCreator`.
        hooks: Hooks, called in this order. A hook belongs to one open session at a time.
        stop_grace_period_secs: The longest time, in seconds, that closing waits for threads.
        recovery: The policy for a lost session; with None the error is raised.
        summary_dir: The directory of the shared writer `summary_writer`. A training that is not ended by a signal or
            an error writes `SessionLog(STOP)` there.
        raise_on_write_errors: Whether the training ends if summaries or other events cannot be written (a full disk).
            By default a warning is logged, and these events are lost.
        preemption: The reaction to SIGTERM and Ctrl-C; the defaults if None.
        steps_per_run: The maximum number of steps of a run, in one compiled loop; see `MonitoredTrainingSession`.

    Attributes:
        StepContext: The class of a step function's argument; see `run_step_fn`.

    Raises:
        TypeError: An item of `hooks` is not a hook.
        RuntimeError: A hook belongs to another open session.

    Example:
        >>> import hookline as hl
        >>> from hookline import train
        >>> with hl.Graph().as_default():
        ...     step = train.get_or_create_global_step()
        ...     train_op = step.assign_add(1)
        ...     with train.MonitoredSession(hooks=[train.StopAtStepHook(last_step=3)]) as sess:
        ...         while not sess.should_stop():
        ...             print(sess.run(train_op))
        1
        2
        3

    References:
        `tf.train.MonitoredSession`. Differences: `recovery`, `summary_dir`, `raise_on_write_errors`, `preemption`,
        `steps_per_run`, `request_stop`; every hook gets `end`, even if others raise; a failed construction leaves no
        thread and no session behind; closing also closes the writers that it and its hooks took from `FileWriterCache`;
        hooks declare `trigger`, `fetches` and `deferred`, and may define `on_exception`.
    """

    # It delegates its work: `SessionGuard` admits one thread at a time, `FastPath` makes most runs and
    # `RecoverableSession` the others, `SessionSetup` creates raw sessions with the hooks, `SessionTeardown` handles
    # failures and the end, and `StopRequest` decides whether to stop.

    StepContext = step_context.StepContext

    @classmethod
    def _graph_for(cls, *args: Any, **kwargs: Any) -> Graph:
        return get_default_graph()

    def __init__(
        self,
        session_creator: SessionCreator | None = None,
        hooks: Iterable[Any] | None = None,
        stop_grace_period_secs: float = 120,
        *,
        recovery: RecoveryPolicy | None = DEFAULT_RECOVERY,
        summary_dir: str | None = None,
        raise_on_write_errors: bool = False,
        preemption: PreemptionOptions | None = None,
        steps_per_run: int = 1,
    ) -> None:
        creator = ChiefSessionCreator() if session_creator is None else session_creator
        who = type(self).__name__
        wanted = arguments.check_optional(who, "preemption", preemption, PreemptionOptions) or PreemptionOptions()
        steps_per_run = arguments.check_int(who, "steps_per_run", steps_per_run, at_least=1)
        arguments.check_has(who, "session_creator", creator, "a SessionCreator", "create_session")
        others = process_group.current()
        self._stop = StopRequest()
        if added := launcher_hooks():
            hooks = [*added, *(hooks or ())]
        checked = HookList(hooks, None if others is None else spmd_sync.exit_as_stop_request(self._stop))
        arguments.check_path(who, "summary_dir", summary_dir, optional=True)
        self._grace_secs = arguments.check_number(who, "stop_grace_period_secs", stop_grace_period_secs, at_least=0)
        arguments.check_optional(who, "recovery", recovery, RecoveryPolicy)
        # A session opened inside another one, for example by the callback of an evaluation, continues to its end: the
        # outer session handles signals. `WRITER_SCOPE` is set during the calls of a session.
        handles_signals = wanted.on_signal == EXIT and (WRITER_SCOPE.get() is None or not is_active())
        # In a notebook, until the `with` block is entered, an interrupt ends only the cell; the session continues.
        self._is_in_cell_mode = notebooks.ipython_shell() is not None and wanted.on_signal == EXIT
        self._summary_dir, self._writers = summary_dir, WriterScope(raise_on_write_errors)
        self._guard, self._fast_path = SessionGuard(self._writers), FastPath(self._writers)
        inside = lambda: self._guard.is_held_by_this_thread  # noqa: E731
        self._preemption = SessionSignals(
            wanted.timeout_secs, self._on_shutdown_signal, self._describe_activity, inside, enabled=handles_signals
        )
        self._signals = self._preemption.signals
        # Set while a step function runs, except during its calls of `run_with_hooks`.
        self._step_fn_session: HookedSession | None = None
        # `write_count` when the step function began, or after its last run with hooks: after a failure, a larger count
        # means that the function has changed variables itself, so the state is not saved.
        self._step_fn_writes: int | None = None
        self._last_fetches: Any = None
        self._is_open = False
        self._spmd = None
        if others is not None:
            self._spmd = SpmdSync(others, self._stop, lambda why: self._teardown.log_stop_reason(why))
            recovery = None  # When an SPMD process is lost, all of them end, and are started again.
        self._setup = SessionSetup(
            creator,
            get_default_graph(),
            checked,
            self._stop,
            self._fast_path,
            steps_per_run,
            self._spmd,
            self._grace_secs,
        )
        self._recoverable = RecoverableSession(
            self._setup.create_session, recovery, self._stop, self._guard, self._grace_secs
        )
        self._teardown = SessionTeardown(
            self._recoverable, self._setup, self._stop, self._preemption, self._spmd, self._writers, summary_dir
        )
        self._setup.claim()
        try:
            with SessionAccess(self._guard) as claim:
                claim.acquire()
                self._install_signal_handlers()
                checked.begin()
                self._recoverable.open()
                self._is_open = True
                if self._is_in_cell_mode:
                    if (error := self._preemption.error()) is not None:
                        raise error
                    self._preemption.open(graceful=False)
        except BaseException as exc:  # The hooks, the graph, threads and files must be released.
            with SessionAccess(self._guard) as claim:
                claim.acquire()
                self._teardown.handle_setup_failure(exc)
            raise

    def _install_signal_handlers(self) -> None:
        """Catches signals, so that none interrupts a run; closes gracefully if a save or another process needs it."""
        # A worker saves nothing, but closes gracefully for the workers that continue. SPMD processes close together.
        setup = self._setup
        is_graceful = (
            setup.hooks.save_on_failure_callbacks
            or isinstance(setup.creator, WorkerSessionCreator)
            or self._spmd is not None
        )
        # In a notebook the session outlives the cell.
        self._preemption.open(graceful=bool(is_graceful) or notebooks.ipython_shell() is not None)

    def _end_cell_mode(self) -> None:
        """Lets an interrupt end the session from now on: in its `with` block, and while it closes."""
        if self._is_in_cell_mode:
            self._is_in_cell_mode = False
            self._install_signal_handlers()

    # Parts ------------------------------------------------------------------------------------------------------

    @property
    def graph(self) -> Graph:
        """The graph that this session runs."""
        return self._setup.graph

    @property
    def coordinator(self) -> Coordinator:
        """The coordinator of its threads; a new one after a recovery."""
        return self._recoverable.coord

    @property
    def scaffold(self) -> Scaffold | None:
        """The scaffold that initialises and saves the model; None if the session creator has none."""
        return getattr(self._setup.creator, "scaffold", None)

    @property
    def summary_writer(self) -> FileWriter | None:
        """The writer that the library's hooks share, for summaries of your own; None without a summary directory.

        It is closed with the session, unless other code took the same writer from `FileWriterCache`. After that the
        property returns a new one.
        """
        if self._summary_dir is None:
            return None
        outer = WRITER_SCOPE.set(self._writers)
        try:
            return FileWriterCache.get(self._summary_dir)
        finally:
            WRITER_SCOPE.reset(outer)

    def raw_session(self) -> Session:
        """Returns the raw session, whose runs call no hooks.

        Use it between runs for work without hooks: an evaluation, reading a variable, `load`. Its errors cause no
        recovery, except inside `run_step_fn`. A recovery closes it; then this returns a new one.

        Raises:
            RuntimeError: The session is closed.
            BaseException: A recovery failed with this error.
        """
        if self._stop.closed:
            raise RuntimeError(_CLOSED)
        return self._recoverable.require_live().raw

    def add_hook(self, hook: Any) -> None:
        """Adds a hook, which takes part from the next run on.

        Its `begin` and `after_create_session` are called at once. The hook comes last, unless a hook declares another
        order.

        Args:
            hook: A hook whose `begin` adds nothing to the graph.

        Raises:
            TypeError: It is not a hook.
            ValueError: Another hook of the session has the same class and `state_key` (or `name`), and one or both have
                a state.
            RuntimeError: The `begin` of the hook adds to the graph, which is finalized by now; a run is under way; the
                hook already belongs to a session; or the session is closed.
            BaseException: A callback of the hook raised. The hook then gets `on_exception`, and is not added.
        """
        (hook,) = checked_hooks([hook])
        if any(hook is known for known in self._setup.hooks.hooks):
            raise RuntimeError(f"The {describe(hook)} is already in this session.")
        with SessionAccess(self._guard) as claim:
            self._enter_exclusively(claim, "take another hook")
            self._setup.add_hook(hook, self._recoverable.hooked, self._recoverable.coord)
            if not self._is_in_cell_mode:
                self._install_signal_handlers()

    @property
    def stop_reason(self) -> str | None:
        """Why the session ends, in words; None before that.

        "the last step, 300, is reached", "the data have ended", "SIGTERM was received", "StopIfNoImprovement has
        requested it: ...", or an error, "ValueError: ...". Hooks find it in their `session`, in `end` and
        `on_exception`. If a hook or closing fails later, the reason stays.
        """
        return self._stop.reason

    # Runs -------------------------------------------------------------------------------------------------------

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> Any:
        """Runs the fetches, with the hooks around them.

        Args:
            fetches: Tensors, operations or their names, in any nesting of lists, tuples and dicts.
            feed_dict: Values for tensors of the graph.
            options: The options of this run, merged with the options of the hooks.
            run_metadata: Gets the metadata that the run records.

        Returns:
            The values, in the structure of `fetches`; None for an operation.

        Raises:
            OutOfRangeError: The input has ended; the `with` block swallows it.
            Preempted: The process received a signal to end; leave the `with` block, or close the session.
            RuntimeError: The session is closed, a hook has requested a stop, or a run is under way: in another thread,
                or the run whose hook callback makes this call.
        """
        if self._is_in_cell_mode:
            preemption.reinstall_handlers()
        signals = self._signals
        # A list, because the guard compares keys by identity.
        guard, key, failed = self._guard, [threading.get_ident()], None
        try:
            if not guard.enter(key):
                if guard.is_held_by_this_thread and self._step_fn_session is not None:
                    return self._run_in_step_fn(self._step_fn_session, fetches, feed_dict, options, run_metadata)
                raise self._busy_error("be run")
            if options is None and run_metadata is None and signals.shutdown_signal is None:
                try:
                    result = self._fast_path.run(fetches, feed_dict)
                    if result is not SLOW_PATH:
                        return result
                except BaseException as error:  # If the session is lost, `_run_with_hooks` recovers it.
                    failed = error
            # Outside of the `except` block: an error of a second attempt must not have this one as its context.
            return self._run_with_hooks(fetches, feed_dict, options, run_metadata, failed)
        finally:
            failed = None  # The traceback refers to this frame, and so to the fed values.
            guard.leave(key)
            if signals.interrupt_pending:  # A Ctrl-C came during the run.
                signals.raise_pending_interrupt()

    def _run_with_hooks(
        self, fetches: Any, feed_dict: Any, options: Any, run_metadata: Any, failed: BaseException | None = None
    ) -> Any:
        """Makes a run with hooks; given the error of a run on the fast path, handles it and may retry that run."""
        if self._stop.closed:
            raise RuntimeError(_CLOSED)
        outer = WRITER_SCOPE.set(self._writers)
        try:
            if self._spmd is not None:
                self._spmd.is_running = True
                self._last_fetches = None if feed_dict or options is not None else fetches
            return self._attempt(operator.methodcaller("run", fetches, feed_dict, options, run_metadata), failed)
        finally:
            if self._spmd is not None:
                self._spmd.is_running = False
            WRITER_SCOPE.reset(outer)

    def _attempt(self, function: Callable[[HookedSession], Any], failed: BaseException | None = None) -> Any:
        """Calls a function that runs the session, again after each recovery; after an error it notifies the hooks."""
        try:
            if failed is None and self._signals.shutdown_signal is not None:
                self._preemption.check()
            elif failed is None and self._signals.must_exit_now:
                preemption.reinstall_handlers()  # The script has caught the exception of a second Ctrl-C.
            return self._recoverable.call(function, failed)
        except BaseException as exc:  # The hooks must be notified, so that they release their resources.
            # The last state is not saved if a step function has changed variables outside of runs with hooks.
            saves = self._step_fn_writes in (None, self._recoverable.raw.backend.write_count)
            error = self._teardown.handle_run_failure(exc, save_state=saves)
            if error is exc:
                raise
            raise error from exc

    def run_step_fn(self, step_fn: Callable[[step_context.StepContext], Any]) -> Any:
        """Calls a step function, which makes runs with or without hooks.

        Args:
            step_fn: A function whose only parameter is named `step_context`. After a recovery it is called again.

        Returns:
            The function's result.

        Raises:
            ValueError: The function has other parameters.
            StopIteration: The function called `step_context.request_stop()`; the `with` block swallows this.
            Preempted: The process received a signal to end.
            RuntimeError: The session is closed.
        """
        check_step_fn(step_fn)
        if self._is_in_cell_mode:
            preemption.reinstall_handlers()

        @interrupts.calls_user_code
        def step(hooked: HookedSession) -> Any:
            self._step_fn_session, raw = hooked, hooked.raw
            begun = self._step_fn_writes = raw.backend.write_count

            def run_with_hooks(*args: Any, **kwargs: Any) -> Any:
                return self._run_in_step_fn(hooked, *args, **kwargs)

            try:
                # A signal must not end the training in the middle of a step function.
                with preemption.finishing(lambda: raw.backend.write_count != begun):
                    return step_fn(self.StepContext(raw, run_with_hooks, self.request_stop))
            finally:
                self._step_fn_session = None

        with SessionAccess(self._guard) as claim:
            self._enter_exclusively(claim, "call a step function")
            try:
                return self._attempt(step)
            finally:
                self._step_fn_writes = None

    def _run_in_step_fn(self, hooked: HookedSession, *args: Any, **kwargs: Any) -> Any:
        if not self._guard.is_held_by_this_thread or self._step_fn_session is not hooked:
            raise RuntimeError(
                "step_context.run_with_hooks may be called only in the thread of the step function, while that "
                "function runs, and not from a hook."
            )
        self._step_fn_session = None
        try:
            return hooked.run(*args, **kwargs)
        finally:
            self._step_fn_session = hooked
            self._step_fn_writes = hooked.raw.backend.write_count
            preemption.raise_pending_interrupt()

    def _enter_exclusively(self, claim: SessionAccess, what: str) -> None:
        """Excludes other threads; raises if the session is busy, closed or lost."""
        if not claim.acquire():
            raise self._busy_error(what)
        if self._stop.closed:
            raise RuntimeError(_CLOSED)
        self._recoverable.require_live()

    def _busy_error(self, what: str) -> RuntimeError:
        """Returns the error for a call while the session is busy."""
        if self._stop.closed:
            return RuntimeError(_CLOSED)
        if self._guard.is_held_by_this_thread:
            return RuntimeError(_INSIDE.format(what=what))
        if self._guard.has_waiters:
            return RuntimeError(f"A monitored session that is being closed cannot {what}; check should_stop() first.")
        return RuntimeError(
            f"A monitored session admits one thread at a time, and {self._guard.owner} runs it now: it cannot {what} "
            f"in {threading.current_thread().name}. Let one thread run it; others may run raw_session() instead."
        )

    # Stopping ---------------------------------------------------------------------------------------------------

    def should_stop(self) -> bool:
        """Returns whether to leave the training loop; never raises.

        If a thread has reported a preemption error (`AbortedError`, `UnavailableError`), this recovers the session, as
        often as the policy allows. After any other error it returns True, and `close` raises the error. While a run is
        under way it returns False: the run recovers the session itself.
        """
        stop = self._stop
        if not stop.was_ever_requested and self._signals.shutdown_signal is None and self._spmd is None:
            return False
        if stop.closed or self._preemption.shutdown_signal is not None:
            return True
        if self._spmd is None:
            return self._recoverable.should_stop()
        return self._reserve_next_run(self._spmd) or stop.requested or self._recoverable.failure is not None

    def _reserve_next_run(self, spmd: SpmdSync) -> bool:
        """Reserves the next run: counts it as started, after the decisions that are due before it.

        Once `should_stop()` has returned False, this process must make that run, because the others may make it. Only
        the thread that runs the session reserves a run; other threads only get the result.

        Returns:
            Whether the processes have agreed to end because of a signal.
        """
        with SessionAccess(self._guard) as claim:
            if spmd.thread == threading.get_ident() and claim.acquire() and self._recoverable.failure is None:
                try:
                    if (error := self._recoverable.reported_error()) is not None:
                        raise error
                    spmd.reserve_run()
                except Exception as error:
                    spmd.report_error(error)
                    self._recoverable.failure = error
        return self._preemption.shutdown_signal is not None

    def request_stop(self, *, final: str | None = None) -> None:
        """Makes `should_stop()` true and requests the threads to stop.

        SPMD processes all stop after the same run: the last one that any of them has started when they agree.

        Args:
            final: The reason for a final stop, as in `SessionRunContext.request_stop`.

        Raises:
            RuntimeError: The session is closed.
        """
        why: str = arguments.check_str("request_stop", "final", final, optional=True) or ""
        if self._stop.closed:
            raise RuntimeError(_CLOSED)
        if self._spmd is not None:
            self._spmd.propose(spmd_sync.STOP, [caller(), why])
            return
        self._stop.final_reason = self._stop.final_reason or why
        self._recoverable.request_stop()

    def _on_shutdown_signal(self) -> None:
        """Requests a stop of the threads after a signal, or proposes it to the other SPMD processes."""
        if self._spmd is not None:
            self._spmd.propose(spmd_sync.SIGNAL, preemption.received_signal())
        elif not self._stop.closed:
            self._recoverable.request_stop()

    def _describe_activity(self) -> str:
        """Describes the current activity of the session, for the log line about a signal."""
        if self._stop.closed:
            return "the end of the session"
        if not self._is_open:
            return "the start of the session"
        return "the step under way" if self._guard.is_held else "the next step"

    # The end ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._stop.closed:
            raise RuntimeError(_CLOSED)
        self._end_cell_mode()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        try:
            if spmd_sync.is_success_exit(exception) and self._make_remaining_runs():
                self._stop.exit_error, exception = exception, None  # The exit is raised after closing.
        except BaseException as failure:  # The session must be closed.
            self._leave_block(failure)
            raise
        return self._leave_block(exception)

    def _leave_block(self, exception: BaseException | None) -> bool:
        """Closes the session after its body; returns whether to swallow the body's exception."""
        ended = exception is None or isinstance(exception, CLEAN_EXITS)
        with SessionAccess(self._guard) as claim:
            try:
                self._enter_for_close(claim)
            except BaseException as waiting:  # Even after a Ctrl-C, the hooks must get the error of the body.
                if ended or exception is None:
                    raise
                self._teardown.notify_hooks(exception)
                exception.add_note(f"While leaving the session: {waiting}")
                return False
            failures = [] if self._stop.closed else self._teardown.finish(exception)
        if exception is not None and (not ended or isinstance(exception, GRACEFUL_EXITS)):
            first_with_notes([exception, *failures])
            return False
        if failures:
            raise first_with_notes(failures)
        self._raise_exit_error()
        return True

    def close(self) -> None:
        """Calls every hook's `end`, stops the threads and closes the session.

        If another thread runs the session, this requests a stop and waits for the end of that run, at most
        `stop_grace_period_secs`.

        Raises:
            Preempted: The process received a signal to end; everything is closed.
            RuntimeError: The session is already closed. Or this was called inside a hook's callback or a step function,
                or the run of another thread did not end in time; then nothing has been closed.
            BaseException: The first error of a deferred hook, an `end`, a thread, or closing; it has the others as
                notes.
        """
        if self._stop.closed:
            raise RuntimeError(_CLOSED)
        self._end_cell_mode()
        self._leave_block(None)

    def _enter_for_close(self, claim: SessionAccess) -> None:
        """Waits until no other thread runs the session, and excludes other threads from now on."""
        if self._guard.is_held_by_this_thread:
            raise RuntimeError(_CLOSED_INSIDE)
        if claim.acquire():
            return
        if not self._stop.closed:
            self._recoverable.request_stop()
        if not claim.acquire(self._grace_secs):
            raise RuntimeError(
                f"The session cannot be closed: a run in {self._guard.owner} did not end within {self._grace_secs:g} s."
            )

    def _raise_exit_error(self) -> None:
        """Raises the exception of a signal, or of `sys.exit(0)` in an SPMD process, if it ended the session."""
        error = self._preemption.error() or self._stop.exit_error
        if error is not None:
            raise error

    def _make_remaining_runs(self) -> bool:
        """After `sys.exit(0)` in an SPMD process, repeats its last run until all processes stop after the same run.

        Returns:
            False if that is impossible: there was no run, the last one had feeds or options, or a run failed.
        """
        if self._spmd is None or self._spmd.has_failed or self._stop.closed or self._last_fetches is None:
            return False
        self._spmd.propose(spmd_sync.STOP, ["sys.exit()", ""])
        with contextlib.suppress(*END_OF_INPUT):
            while not self.should_stop():
                self.run(self._last_fetches)
        return self._recoverable.failure is None


class SingularMonitoredSession(MonitoredSession):
    """A monitored session that is always a chief and never recovers.

    Args:
        hooks: Hooks, called in this order.
        scaffold: The scaffold that initialises, restores and summarises; missing parts get defaults.
        master: Where variables are: in this process (""), or on a `hookline.distributed.Cluster` or its `target`.
        config: The raw session's configuration.
        checkpoint_dir: A directory; its newest checkpoint is restored, if it has one.
        stop_grace_period_secs: The longest time, in seconds, that closing waits for threads.
        checkpoint_filename_with_path: A checkpoint to restore.
        preemption: As in `MonitoredSession`.

    Raises:
        ValueError: Both `checkpoint_dir` and `checkpoint_filename_with_path` are given.

    Example:
        >>> import hookline as hl
        >>> from hookline import train
        >>> with hl.Graph().as_default():
        ...     weight = hl.Variable(2.0, name="weight")
        ...     with train.SingularMonitoredSession() as sess:
        ...         print(sess.raw_session().run(weight))
        2.0

    References:
        `tf.train.SingularMonitoredSession`.
    """

    def __init__(
        self,
        hooks: Iterable[Any] | None = None,
        scaffold: Scaffold | None = None,
        master: str | StoreTarget = "",
        config: Any = None,
        checkpoint_dir: str | None = None,
        stop_grace_period_secs: float = 120,
        checkpoint_filename_with_path: str | None = None,
        *,
        preemption: PreemptionOptions | None = None,
    ) -> None:
        creator = ChiefSessionCreator(scaffold, master, config, checkpoint_dir, checkpoint_filename_with_path)
        super().__init__(creator, hooks, stop_grace_period_secs, recovery=None, preemption=preemption)

    def should_stop(self) -> bool:
        """Returns whether to leave the training loop; raises the error that a thread has reported, if any."""
        if self._stop.was_ever_requested and not self._stop.closed and self._spmd is None:
            error = self._recoverable.reported_error()
            if error is not None:
                raise error
        return super().should_stop()
