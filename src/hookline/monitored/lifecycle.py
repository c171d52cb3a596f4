"""MonitoredLifecycle: makes the runs of a monitored session, one thread at a time."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar

from hookline import arguments, interrupts, notebooks, preemption
from hookline.coordination import Coordinator, peers
from hookline.errors import END_OF_INPUT
from hookline.graph import Graph, get_default_graph
from hookline.monitored import finalized, in_step, step_context
from hookline.monitored.coordinated import CoordinatedSession
from hookline.monitored.creators import SessionCreator
from hookline.monitored.ending import CLOSED, is_success
from hookline.monitored.fast_path import NOT_RUN, FastPath, NotRun
from hookline.monitored.guard import Claim, SessionGuard
from hookline.monitored.hook_list import HookList
from hookline.monitored.in_step import InStep
from hookline.monitored.opening import Opening
from hookline.monitored.recoverable import RecoverableSession
from hookline.monitored.recovery import RecoveryPolicy
from hookline.monitored.scaffold import Scaffold
from hookline.monitored.step_context import check_step_fn
from hookline.monitored.stop_request import StopRequest
from hookline.session import RunMetadata, RunOptions, Session
from hookline.summary import FileWriter, FileWriterCache
from hookline.summary.writer_cache import SCOPE, WriterScope

T = TypeVar("T")


class MonitoredLifecycle(Opening):
    """The common part of both monitored sessions: hooks around a session, closed in order.

    With a recovery policy a lost session is created again; without one every error passes.

    Attributes:
        StepContext: The class of the argument of a step function; see `run_step_fn`.
    """

    StepContext = step_context.StepContext

    @classmethod
    def _graph_for(cls, *args: Any, **kwargs: Any) -> Graph:
        return get_default_graph()

    def __init__(
        self,
        session_creator: SessionCreator,
        hooks: Iterable[Any] | None,
        stop_grace_period_secs: float,
        recovery: RecoveryPolicy | None,
        summary_dir: str | None,
        strict_events: bool = False,
        on_preemption: str = preemption.EXIT,
        grace_secs: float = preemption.DEFAULT_GRACE_SECS,
        steps_per_run: int = 1,
    ) -> None:
        who = type(self).__name__
        self._steps_per_run = arguments.whole(who, "steps_per_run", steps_per_run, at_least=1)
        self._creator = arguments.having(who, "session_creator", session_creator, "a SessionCreator", "create_session")
        self._hooks = HookList(hooks, None if peers.current() is None else self._deferring)
        arguments.path(who, "summary_dir", summary_dir, optional=True)
        self._grace_secs = arguments.number(who, "stop_grace_period_secs", stop_grace_period_secs, at_least=0)
        arguments.instance(who, "recovery", recovery, RecoveryPolicy)
        # A session made in another's callback, such as an evaluation, is finished before the other one is closed.
        heeds = SCOPE.get() is None or not preemption.heeded()
        self._preemption = preemption.Watch(who, on_preemption, grace_secs, self._wake, self._doing, heeds=heeds)
        self._summary_dir = summary_dir
        self._stop = StopRequest()
        # Errors that hooks have been told of get this mark; keeping them would keep their tracebacks, and so fed
        # values.
        self._told = object()
        self._graph = get_default_graph()
        self._closed = False
        # In a notebook, until its `with` block is entered: an interrupt ends a cell, and the session continues.
        self._spans_cells = notebooks.shell() is not None and on_preemption == preemption.EXIT
        self._writers = WriterScope(strict_events)
        self._guard, self._fast_path = SessionGuard(self._writers), FastPath(self._writers)
        # During a step function, outside of its runs: the session that it runs with hooks.
        self._stepping: CoordinatedSession | None = None
        # The session's count of writes when its step function began, or last ran with hooks.
        self._written_in_step: int | None = None
        self._raw: Session | None = None
        self._last_fetches: Any = None
        self._in_step = InStep.joined(self._act)
        if self._in_step is not None:
            preemption.agree()
            recovery = None  # A process that is lost takes the others with it: all are started again.
            self._stop.agree = functools.partial(self._in_step.propose, in_step.STOP)
        self._hooks.claim(self)
        finalized.hold(self._graph, self)
        with Claim(self._guard) as claim, claim:
            claim.take()
            try:
                self._catch_signals()
                self._hooks.begin()
                self._session = RecoverableSession(self._create, recovery)
                if self._preemption.number is not None:
                    self._wake()
                if self._spans_cells:
                    self._preemption.close()
                    self._leave()
            except BaseException as exc:
                self._closed = True
                self._tell_of(exc)
                if self._raw is not None:
                    self._notify(exc)
                self._preemption.close()
                created = getattr(self, "_session", None)
                parts = () if created is None else (created.close,)
                for part in (self._leave_step, *parts, self._give_back, lambda: FileWriterCache.release(self._writers)):
                    try:
                        part()
                    except Exception as closing:
                        exc.add_note(f"Releasing the session's resources failed as well: {closing!r}")
                raise

    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        try:
            if is_success(exception) and self._makes_the_last_runs():
                self._exit = exception
                kind = exception = traceback = None  # In the end the exit is raised.
        except BaseException as failure:
            super().__exit__(type(failure), failure, failure.__traceback__)
            raise
        return super().__exit__(kind, exception, traceback)

    def _makes_the_last_runs(self) -> bool:
        """Makes the runs that other processes in step have begun when the script leaves; returns whether it could.

        They are as the last run. If there was none, or it had feeds, this process cannot know them.
        """
        if self._in_step is None or self._in_step.has_failed or self._closed or self._last_fetches is None:
            return False
        self._in_step.propose(in_step.STOP, ["sys.exit()", ""])
        with contextlib.suppress(*END_OF_INPUT):
            while not self._is_stopped():
                self.run(self._last_fetches)
        return self._session.failure is None

    @property
    def graph(self) -> Graph:
        """The graph that this session runs."""
        return self._graph

    @property
    def coordinator(self) -> Coordinator:
        """The coordinator of the threads; a new one after a recovery."""
        return self._session.current.coord

    @property
    def scaffold(self) -> Scaffold | None:
        """The scaffold that initialises and saves the model; None if the session's creator has none."""
        return getattr(self._creator, "scaffold", None)

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
        if self._closed:
            raise RuntimeError(CLOSED)
        return self._session.live().hooked.raw

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
            with self._uninterrupted():  # Not `self.run`, which a subclass may override.
                return MonitoredLifecycle.run(self, fetches, feed_dict, options, run_metadata)
        guard, key = self._guard, [threading.get_ident()]
        try:
            try:
                if not guard.enter(key):
                    if guard.is_mine and self._stepping is not None:
                        return self._run_in_step(self._stepping, fetches, feed_dict, options, run_metadata)
                    raise self._occupied("be run")
                result = NOT_RUN
                if options is None and run_metadata is None and self._preemption.signals.number is None:
                    result = self._fast_path.run(fetches, feed_dict)
                    if type(result) is not NotRun:
                        return result
                return self._run_with_hooks(fetches, feed_dict, options, run_metadata, result.error)
            finally:
                guard.leave(key)
        except BaseException:
            guard.leave(key)  # A Ctrl-C may have come before it was left.
            raise

    def _run_with_hooks(
        self, fetches: Any, feed_dict: Any, options: Any, run_metadata: Any, failed: BaseException | None
    ) -> Any:
        """Makes a run with hooks; or handles the failure of one on the fast path."""
        outer = SCOPE.get()
        try:
            SCOPE.set(self._writers)
            if self._closed:
                raise RuntimeError(CLOSED)
            if failed is not None:
                return self._session.retry(failed, fetches, feed_dict)
            if self._preemption.signals.number is not None:
                self._preemption.check()
            if self._in_step is not None:
                self._in_step.is_running = True
                self._last_fetches = None if feed_dict or options is not None else fetches
            return self._session.run(fetches, feed_dict, options, run_metadata)
        except BaseException as exc:
            other = self._failed_elsewhere(exc)
            if other is not None:  # The error of this process is a consequence.
                self._fail(other)
                raise other from exc
            if not self._closed:
                self._fail(exc)
            raise
        finally:
            if self._in_step is not None:
                self._in_step.is_running = False
            SCOPE.set(outer)

    def run_step_fn(self, step_fn: Callable[[StepContext], Any]) -> Any:
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
            with self._uninterrupted():
                return self.run_step_fn(step_fn)

        def step(session: CoordinatedSession) -> Any:
            self._stepping, raw = session, session.hooked.raw
            begun = self._written_in_step = raw.lowlevel.writes
            run_with_hooks = functools.partial(self._run_in_step, session)
            # A training must not be left in the middle of a step function.
            with preemption.finishing(lambda: raw.lowlevel.writes != begun):
                return step_fn(self.StepContext(raw, run_with_hooks, self.request_stop))

        with Claim(self._guard) as claim, claim:
            self._take_alone(claim, "call a step function")
            return self._call(step)

    def _call(self, step: Callable[[CoordinatedSession], Any]) -> Any:
        try:
            self._preemption.check()
            return self._session.call(step)
        except BaseException as exc:
            other = self._failed_elsewhere(exc)
            if other is not None:
                self._fail(other)
                raise other from exc
            self._fail(exc)
            raise
        finally:
            self._stepping = self._written_in_step = None

    def _run_in_step(self, session: CoordinatedSession, *args: Any, **kwargs: Any) -> Any:
        if not self._guard.is_mine or self._stepping is not session:
            raise RuntimeError(
                "A step context serves the thread that its step function was called in, while that function is at work "
                "and outside of its runs with hooks."
            )
        self._stepping = None
        try:
            return session.run(*args, **kwargs)
        finally:
            self._stepping = session
            self._written_in_step = session.hooked.raw.lowlevel.writes

    @contextlib.contextmanager
    def _uninterrupted(self) -> Iterator[None]:
        """Delays an interrupt to the end of a run, so that the session can continue in the next cell."""
        self._spans_cells = False
        try:
            with interrupts.held_back():
                yield
        finally:
            self._spans_cells = True
