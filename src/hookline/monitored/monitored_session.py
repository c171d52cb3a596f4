"""MonitoredSession and SingularMonitoredSession: the sessions that a training loop runs, one thread at a time."""

from __future__ import annotations

import contextlib
import operator
import threading
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from hookline import arguments
from hookline.coordination import Coordinator, peers
from hookline.coordination.coordinator import caller
from hookline.errors import END_OF_INPUT, LEFT_IN_ORDER
from hookline.graph import Graph, get_default_graph
from hookline.graph.front_end import OfFrontEnd
from hookline.monitored import session_in_step as in_step
from hookline.monitored import step_context
from hookline.monitored.ending import IN_ORDER, Ending, first
from hookline.monitored.hooked.callbacks import checked_hooks, describe
from hookline.monitored.hooked.fast_path import NOT_RUN, FastPath
from hookline.monitored.hooked.hook_list import HookList
from hookline.monitored.hooked.hooked_session import HookedSession
from hookline.monitored.recoverable import DEFAULT_RECOVERY, RecoverableSession, RecoveryPolicy
from hookline.monitored.session_guard import Claim, SessionGuard
from hookline.monitored.session_in_step import InStep
from hookline.monitored.starting.creators import ChiefSessionCreator, SessionCreator, WorkerSessionCreator
from hookline.monitored.starting.opening import Opening
from hookline.monitored.starting.scaffold import Scaffold
from hookline.monitored.step_context import check_step_fn
from hookline.monitored.stop_request import StopRequest
from hookline.monitored.training_options import PreemptionOptions
from hookline.session import RunMetadata, RunOptions, Session, StoreTarget
from hookline.signals import interrupts, notebooks, preemption
from hookline.signals.preemption import EXIT, Watch, heeded
from hookline.summary import FileWriter, FileWriterCache
from hookline.summary.writer_cache import SCOPE, WriterScope

_CLOSED = "Session is already closed."
_INSIDE = (
    "A monitored session cannot {what} from inside one of its runs or callbacks. In a hook, run_context.session.run "
    "runs without hooks; in a step function, step_context.run_with_hooks runs with them."
)
_CLOSED_INSIDE = (
    "A monitored session cannot be closed from inside one of its runs or callbacks. To end the training, call "
    "run_context.request_stop() in a hook, or step_context.request_stop() in a step function."
)


class MonitoredSession(OfFrontEnd):
    """A session with hooks that initialises or restores itself, recovers, and stops its threads at the end.

    The constructor calls every hook's `begin`, finalizes the scaffold, creates the session, initialises or restores it,
    and calls every hook's `after_create_session`, in this order. Closing calls every hook's `end`. Use it as a context
    manager: the end of the input (`OutOfRangeError`, `StopIteration`) leaves the `with` block without an error.

    Args:
        session_creator: Creates the session; by default a `ChiefSessionCreator`.
        hooks: Hooks, called in this order. A hook serves one session at a time.
        stop_grace_period_secs: The longest wait of closing for the threads.
        recovery: The policy for a lost session; None lets the error pass.
        summary_dir: The directory of the shared writer `summary_writer`.
        strict_events: Whether the training ends if summaries or other events cannot be written (a full disk). By
            default they are lost, with a warning.
        preemption: The options of the reaction to SIGTERM and Ctrl-C; the default ones if None.
        steps_per_run: The largest number of steps of a run, in one compiled loop; see `MonitoredTrainingSession`.

    Attributes:
        StepContext: The class of the argument of a step function; see `run_step_fn`.

    Raises:
        TypeError: An item of `hooks` is not a hook.
        RuntimeError: A hook serves another live session.

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
        `tf.train.MonitoredSession`. Differences: `recovery`, `summary_dir`, `strict_events`, `preemption`,
        `steps_per_run`, `request_stop`; every hook gets `end`, even if others raise; a
        failed construction leaves no thread and no session behind; closing also closes the writers that it and its
        hooks took from `FileWriterCache`; hooks declare `trigger`, `fetches` and `late`, and may define `on_exception`.
    """

    # The work is done by objects that it holds: the guard admits a thread, the fast path makes most runs,
    # `RecoverableSession` all others, `Opening` creates raw sessions with the hooks, `Ending` does what follows a
    # failure or the end, and `StopRequest` knows whether to stop.

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
        strict_events: bool = False,
        preemption: PreemptionOptions | None = None,
        steps_per_run: int = 1,
    ) -> None:
        creator = ChiefSessionCreator() if session_creator is None else session_creator
        who = type(self).__name__
        wanted = arguments.instance(who, "preemption", preemption, PreemptionOptions) or PreemptionOptions()
        steps_per_run = arguments.whole(who, "steps_per_run", steps_per_run, at_least=1)
        arguments.having(who, "session_creator", creator, "a SessionCreator", "create_session")
        others = peers.current()
        self._stop = StopRequest()
        checked = HookList(hooks, None if others is None else in_step.deferring(self._stop))
        arguments.path(who, "summary_dir", summary_dir, optional=True)
        self._grace_secs = arguments.number(who, "stop_grace_period_secs", stop_grace_period_secs, at_least=0)
        arguments.instance(who, "recovery", recovery, RecoveryPolicy)
        # A session made in another's callback, such as an evaluation, is finished before the other one is closed.
        heeds = wanted.on_signal == EXIT and (SCOPE.get() is None or not heeded())
        # In a notebook, until its `with` block is entered: an interrupt ends a cell, and the session continues.
        self._spans_cells = notebooks.shell() is not None and wanted.on_signal == EXIT
        self._summary_dir, self._writers = summary_dir, WriterScope(strict_events)
        self._guard, self._fast_path = SessionGuard(self._writers), FastPath(self._writers)
        inside = lambda: self._guard.is_mine  # noqa: E731
        self._preemption = Watch(wanted.timeout_secs, self._wake, self._doing, inside, heeds=heeds)
        self._signals = self._preemption.signals
        # During a step function, outside of its runs: the session that it runs with hooks, and the session's count of
        # writes when the function began, or last ran with hooks.
        self._stepping: HookedSession | None = None
        self._written_in_step: int | None = None
        self._last_fetches: Any = None
        self._is_open = False
        self._in_step = None
        if others is not None:
            self._in_step = InStep(others, self._stop, lambda why: self._ending.say_why(why))
            recovery = None  # A process that is lost takes the others with it: all are started again.
        self._opening = Opening(
            creator,
            get_default_graph(),
            checked,
            self._stop,
            self._fast_path,
            steps_per_run,
            self._in_step,
            self._grace_secs,
        )
        self._session = RecoverableSession(self._opening.create, recovery, self._stop, self._guard, self._grace_secs)
        self._ending = Ending(self._session, self._opening, self._stop, self._preemption, self._in_step, self._writers)
        self._opening.claim()
        try:
            with Claim(self._guard) as claim:
                claim.take()
                self._catch_signals()
                checked.begin()
                self._session.open()
                self._is_open = True
                if self._spans_cells:
                    if (error := self._preemption.error()) is not None:
                        raise error
                    self._preemption.open(in_order=False)
        except BaseException as exc:  # The hooks, the graph, threads and files must be given back.
            with Claim(self._guard) as claim:
                claim.take()
                self._ending.fail_opening(exc)
            raise

    def _catch_signals(self) -> None:
        """Catches signals: to leave in order if that is worthwhile, else to interrupt no run in its middle."""
        # A worker saves nothing; it leaves in order for those that continue. In step all leave together.
        opening = self._opening
        is_worth_it = (
            opening.hooks.savers or isinstance(opening.creator, WorkerSessionCreator) or self._in_step is not None
        )
        # In a notebook the objects outlive the cell.
        self._preemption.open(in_order=bool(is_worth_it) or notebooks.shell() is not None)

    def _leave_cells(self) -> None:
        """Has an interrupt end the session from now on: it is in a `with` block, or being closed."""
        if self._spans_cells:
            self._spans_cells = False
            self._catch_signals()

    # What it has ------------------------------------------------------------------------------------------------

    @property
    def graph(self) -> Graph:
        """The graph that this session runs."""
        return self._opening.graph

    @property
    def coordinator(self) -> Coordinator:
        """The coordinator of the threads; a new one after a recovery."""
        return self._session.coord

    @property
    def scaffold(self) -> Scaffold | None:
        """The scaffold that initialises and saves the model; None if the session's creator has none."""
        return getattr(self._opening.creator, "scaffold", None)

    @property
    def summary_writer(self) -> FileWriter | None:
        """The writer that the library's hooks share, for summaries of your own; None without a summary directory.

        It is closed with the session, unless other code has taken it from `FileWriterCache`; after that, this is a new
        one.
        """
        if self._summary_dir is None:
            return None
        outer = SCOPE.set(self._writers)
        try:
            return FileWriterCache.get(self._summary_dir)
        finally:
            SCOPE.reset(outer)

    def raw_session(self) -> Session:
        """Returns the raw session, whose runs call no hooks; a new one after a recovery.

        Use it between runs for work without hooks: an evaluation, reading a variable, `load`. Its errors do not lead to
        a recovery, except inside `run_step_fn`. A recovery closes it.

        Raises:
            RuntimeError: The session is closed.
            BaseException: A recovery failed with this error.
        """
        if self._stop.closed:
            raise RuntimeError(_CLOSED)
        return self._session.live().raw

    def add_hook(self, hook: Any) -> None:
        """Adds a hook, from the next run on.

        Its `begin` and `after_create_session` are called at once. It comes last, unless a hook declares another order.

        Args:
            hook: A hook whose `begin` adds nothing to the graph.

        Raises:
            TypeError: It is not a hook.
            ValueError: It or a hook of the session keeps a state, and both have the same identity.
            RuntimeError: Its `begin` adds to the graph, which is finalized by now; a run is under way; it already
                serves a session; or the session is closed.
            BaseException: A callback of the hook raised. The hook then gets `on_exception`, and is not added.
        """
        (hook,) = checked_hooks([hook])
        if any(hook is known for known in self._opening.hooks.hooks):
            raise RuntimeError(f"The {describe(hook)} serves this session already.")
        with Claim(self._guard) as claim:
            self._take_alone(claim, "take another hook")
            self._opening.add(hook, self._session.hooked, self._session.coord)
            if not self._spans_cells:
                self._catch_signals()

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
            fetches: Any nesting of lists, tuples and dicts around tensors, operations and names of them.
            feed_dict: Values for tensors of the graph.
            options: The options of this run; the options of the hooks are merged into them.
            run_metadata: Filled with the facts that the run recorded.

        Returns:
            The values, in the structure of `fetches`; an operation yields None.

        Raises:
            OutOfRangeError: The input has ended; the `with` block swallows it.
            Preempted: A signal asked the process to end; leave the `with` block, or close the session.
            RuntimeError: The session is closed, a hook has requested a stop, or a run is under way, in another thread
                or around the hook callback that makes this call.
        """
        if self._spans_cells:
            preemption.renew()
        signals = self._signals
        guard, key, failed = self._guard, [threading.get_ident()], None
        try:
            if not guard.enter(key):
                if guard.is_mine and self._stepping is not None:
                    return self._run_in_step(self._stepping, fetches, feed_dict, options, run_metadata)
                raise self._occupied("be run")
            if options is None and run_metadata is None and signals.number is None:
                try:
                    result = self._fast_path.run(fetches, feed_dict)
                    if result is not NOT_RUN:
                        return result
                except BaseException as error:  # The session may be lost, and is then given back.
                    failed = error
            # Not while the error is handled: what a second attempt raises has nothing to do with it.
            return self._run_with_hooks(fetches, feed_dict, options, run_metadata, failed)
        finally:
            failed = None  # Its traceback holds this frame, and the fed values.
            guard.leave(key)
            if signals.noted:  # A Ctrl-C came during the run.
                signals.raise_noted()

    def _run_with_hooks(
        self, fetches: Any, feed_dict: Any, options: Any, run_metadata: Any, failed: BaseException | None = None
    ) -> Any:
        """Makes a run with hooks; or handles the failure of one on the fast path, and may then repeat it."""
        if self._stop.closed:
            raise RuntimeError(_CLOSED)
        outer = SCOPE.set(self._writers)
        try:
            if self._in_step is not None:
                self._in_step.is_running = True
                self._last_fetches = None if feed_dict or options is not None else fetches
            return self._attempt(operator.methodcaller("run", fetches, feed_dict, options, run_metadata), failed)
        finally:
            if self._in_step is not None:
                self._in_step.is_running = False
            SCOPE.reset(outer)

    def _attempt(self, function: Callable[[HookedSession], Any], failed: BaseException | None = None) -> Any:
        """Calls a function that runs the session, again after each recovery; tells the hooks if it fails."""
        try:
            if failed is None and self._signals.number is not None:
                self._preemption.check()
            elif failed is None and self._signals.urgent:
                preemption.renew()  # The script has caught a second Ctrl-C, and goes on.
            return self._session.call(function, failed)
        except BaseException as exc:  # The hooks must know: they give back what they hold.
            # The last state is not saved if a step function has changed variables itself.
            saves = self._written_in_step in (None, self._session.raw.lowlevel.writes)
            error = self._ending.fail_run(exc, saves=saves)
            if error is exc:
                raise
            raise error from exc

    def run_step_fn(self, step_fn: Callable[[step_context.StepContext], Any]) -> Any:
        """Calls a function that makes runs, with or without hooks.

        Args:
            step_fn: A function whose only parameter is called `step_context`. After a recovery it is called again.

        Returns:
            The function's result.

        Raises:
            ValueError: It has other parameters.
            StopIteration: It called `step_context.request_stop()`; the `with` block swallows it.
            Preempted: A signal asked the process to end.
            RuntimeError: The session is closed.
        """
        check_step_fn(step_fn)
        if self._spans_cells:
            preemption.renew()

        @interrupts.door
        def step(hooked: HookedSession) -> Any:
            self._stepping, raw = hooked, hooked.raw
            begun = self._written_in_step = raw.lowlevel.writes

            def run_with_hooks(*args: Any, **kwargs: Any) -> Any:
                return self._run_in_step(hooked, *args, **kwargs)

            try:
                # A training must not be left in the middle of a step function.
                with preemption.finishing(lambda: raw.lowlevel.writes != begun):
                    return step_fn(self.StepContext(raw, run_with_hooks, self.request_stop))
            finally:
                self._stepping = None

        with Claim(self._guard) as claim:
            self._take_alone(claim, "call a step function")
            try:
                return self._attempt(step)
            finally:
                self._written_in_step = None

    def _run_in_step(self, hooked: HookedSession, *args: Any, **kwargs: Any) -> Any:
        if not self._guard.is_mine or self._stepping is not hooked:
            raise RuntimeError(
                "A step context serves the thread that its step function was called in, while that function is at work "
                "and outside of its runs with hooks."
            )
        self._stepping = None
        try:
            return hooked.run(*args, **kwargs)
        finally:
            self._stepping = hooked
            self._written_in_step = hooked.raw.lowlevel.writes
            preemption.raise_noted()

    def _take_alone(self, claim: Claim, what: str) -> None:
        """Keeps other threads out of this session."""
        if not claim.take():
            raise self._occupied(what)
        if self._stop.closed:
            raise RuntimeError(_CLOSED)
        self._session.live()

    def _occupied(self, what: str) -> RuntimeError:
        """Returns the error for a call that comes while the session is busy."""
        if self._stop.closed:
            return RuntimeError(_CLOSED)
        if self._guard.is_mine:
            return RuntimeError(_INSIDE.format(what=what))
        if self._guard.is_awaited:
            return RuntimeError(f"A monitored session that is being closed cannot {what}; ask should_stop() before.")
        return RuntimeError(
            f"A monitored session does one thing at a time, and {self._guard.owner} is inside: it cannot {what} for "
            f"{threading.current_thread().name} now. Let one thread run it; others may run raw_session() instead."
        )

    # Stopping ---------------------------------------------------------------------------------------------------

    def should_stop(self) -> bool:
        """Returns whether to leave the training loop; never raises.

        If a thread reported a preemption error, this recovers, as often as the policy allows. After any other error it
        returns True, and `close` raises the error. During a run, which recovers itself, it returns False.
        """
        stop = self._stop
        if not stop.asked and self._signals.number is None and self._in_step is None:
            return False
        if stop.closed or self._preemption.number is not None:
            return True
        if self._in_step is None:
            return self._session.should_stop()
        return self._reserve(self._in_step) or stop.requested or self._session.failure is not None

    def _reserve(self, others: InStep) -> bool:
        """Reserves the next run, unless the processes have agreed to stop before it; other threads only check.

        Returns:
            Whether a signal asks all of them to end.
        """
        with Claim(self._guard) as claim:
            if others.thread == threading.get_ident() and claim.take() and self._session.failure is None:
                try:
                    if (error := self._session.reported_error()) is not None:
                        raise error
                    others.reserve()
                except Exception as error:
                    others.tell_of(error)
                    self._session.failure = error
        return self._preemption.number is not None

    def request_stop(self, *, final: str | None = None) -> None:
        """Makes `should_stop()` true and tells the threads to stop.

        In processes that run in step this takes effect before the next run that none of them has begun.

        Args:
            final: The reason why the training is complete, as in `SessionRunContext.request_stop`.

        Raises:
            RuntimeError: The session is closed.
        """
        why: str = arguments.text("request_stop", "final", final, optional=True) or ""
        if self._stop.closed:
            raise RuntimeError(_CLOSED)
        if self._in_step is not None:
            self._in_step.propose(in_step.STOP, [caller(), why])
            return
        self._stop.final = self._stop.final or why
        self._session.request_stop()

    def _wake(self) -> None:
        """Asks threads, and waits on the coordinator, to stop because of a signal."""
        if self._in_step is not None:
            self._in_step.propose(in_step.SIGNAL, preemption.heard())
        elif not self._stop.closed:
            self._session.request_stop()

    def _doing(self) -> str:
        """Returns the session's activity when a signal comes, for the log."""
        if self._stop.closed:
            return "the end of the session"
        if not self._is_open:
            return "the start of the session"
        return "the run under way" if self._guard.is_entered else "the next run"

    # The end ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._stop.closed:
            raise RuntimeError(_CLOSED)
        self._leave_cells()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        try:
            if in_step.is_success(exception) and self._makes_the_last_runs():
                self._stop.exit, exception = exception, None  # In the end the exit is raised.
        except BaseException as failure:  # The session must be closed.
            self._leave_block(failure)
            raise
        return self._leave_block(exception)

    def _leave_block(self, exception: BaseException | None) -> bool:
        """Closes the session after its body; returns whether the exception that leaves the body ends here."""
        ended = exception is None or isinstance(exception, IN_ORDER)
        with Claim(self._guard) as claim:
            try:
                self._take_last(claim)
            except BaseException as waiting:  # A Ctrl-C too: the hooks must be told of the body's error.
                if ended or exception is None:
                    raise
                self._ending.notify(exception)
                exception.add_note(f"While leaving the session: {waiting}")
                return False
            failures = [] if self._stop.closed else self._ending.finish(exception)
        if exception is not None and (not ended or isinstance(exception, LEFT_IN_ORDER)):
            first([exception, *failures])
            return False
        if failures:
            raise first(failures)
        self._leave()
        return True

    def close(self) -> None:
        """Calls every hook's `end`, stops the threads and closes the session.

        If another thread is running the session, this requests a stop and waits for the end of that run, at most as
        long as for the threads.

        Raises:
            Preempted: A signal asked the process to end; everything is closed.
            RuntimeError: The session is already closed. Or this was called inside a hook's callback or a step function,
                or the run of another thread did not end in time; then nothing has been closed.
            BaseException: The first error of a late hook or an `end`, of a thread, or of closing; others are noted
                on it.
        """
        if self._stop.closed:
            raise RuntimeError(_CLOSED)
        self._leave_cells()
        self._leave_block(None)

    def _take_last(self, claim: Claim) -> None:
        """Keeps other threads out for good; waits for the run of a thread that is inside."""
        if self._guard.is_mine:
            raise RuntimeError(_CLOSED_INSIDE)
        if claim.take():
            return
        if not self._stop.closed:
            self._session.request_stop()
        if not claim.take(self._grace_secs):
            raise RuntimeError(
                f"The session cannot be closed: a run in {self._guard.owner} did not end within {self._grace_secs:g} s."
            )

    def _leave(self) -> None:
        """Raises the reason for which the session was left, if it is a signal, or `sys.exit()` in step."""
        error = self._preemption.error() or self._stop.exit
        if error is not None:
            raise error

    def _makes_the_last_runs(self) -> bool:
        """Makes the runs that other processes in step have begun when the script leaves; returns whether it could.

        They are as the last run. If there was none, or it had feeds, this process cannot know them.
        """
        if self._in_step is None or self._in_step.has_failed or self._stop.closed or self._last_fetches is None:
            return False
        self._in_step.propose(in_step.STOP, ["sys.exit()", ""])
        with contextlib.suppress(*END_OF_INPUT):
            while not self.should_stop():
                self.run(self._last_fetches)
        return self._session.failure is None


class SingularMonitoredSession(MonitoredSession):
    """A monitored session of a single process: always a chief, never recovers, and gives access to the raw session.

    Args:
        hooks: Hooks, called in this order.
        scaffold: The scaffold that initialises, restores and summarises; defaults fill missing parts.
        master: Where variables live: this process (""), or a `hookline.distributed.Cluster` or its `target`.
        config: The raw session's configuration.
        checkpoint_dir: A directory, whose newest checkpoint is restored, if there is one.
        stop_grace_period_secs: The longest wait of closing for the threads.
        checkpoint_filename_with_path: A checkpoint to restore.
        preemption: As in `MonitoredSession`.

    Raises:
        ValueError: Both a directory and a checkpoint are given.

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
        """Returns whether to leave the training loop; raises the error that a thread has reported."""
        if self._stop.asked and not self._stop.closed and self._in_step is None:
            error = self._session.reported_error()
            if error is not None:
                raise error
        return super().should_stop()
