"""MonitoredLifecycle: hooks around a session, from the first `begin` to the last `end`."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from hookline import arguments
from hookline.coordination import Coordinator
from hookline.errors import END_OF_INPUT
from hookline.graph import Graph, get_default_graph
from hookline.monitored.coordinated import CoordinatedSession
from hookline.monitored.creators import ChiefSessionCreator, SessionCreator
from hookline.monitored.hook_list import HookList
from hookline.monitored.hooked import HookedSession, StopRequest
from hookline.monitored.recoverable import RecoverableSession
from hookline.monitored.recovery import RecoveryPolicy
from hookline.monitored.step_context import StepContext, check_step_fn
from hookline.session import RunMetadata, RunOptions
from hookline.summary import FileWriter, FileWriterCache

logger = logging.getLogger(__name__)

T = TypeVar("T")

_CLOSED = "Session is already closed."
_CLOSED_INSIDE = (
    "A monitored session cannot be closed from inside one of its runs or callbacks. To end the training, call "
    "run_context.request_stop() in a hook, or step_context.request_stop() in a step function."
)


class MonitoredLifecycle:
    """What both monitored sessions are: hooks around a session, closed in an orderly way.

    A lost session is created again where there is a policy for it; without one every error passes.
    """

    def __init__(
        self,
        session_creator: SessionCreator,
        hooks: Iterable[Any] | None,
        stop_grace_period_secs: float,
        recovery: RecoveryPolicy | None,
        summary_dir: str | None,
    ) -> None:
        self._creator = session_creator
        self._hooks = HookList(hooks)
        who = type(self).__name__
        self._grace_secs = arguments.number(who, "stop_grace_period_secs", stop_grace_period_secs, at_least=0)
        arguments.instance(who, "recovery", recovery, RecoveryPolicy)
        self._summary_dir = summary_dir
        self._stop = StopRequest()
        self._notified: BaseException | None = None
        self._graph = get_default_graph()
        self._closed = False
        self._inside_thread: int | None = None
        self._hooks.claim(self)
        _hold_finalized(self._graph, self)
        try:
            self._hooks.begin()
            self._session = RecoverableSession(self._create, recovery)
        except BaseException:
            self._closed = True
            self._give_back()
            raise

    @property
    def graph(self) -> Graph:
        """The graph that this session runs."""
        return self._graph

    @property
    def summary_writer(self) -> FileWriter | None:
        """The writer that the library's hooks share, for summaries of your own; None without a summary directory."""
        return None if self._summary_dir is None else FileWriterCache.get(self._summary_dir)

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
            options: Of this run; merged with what the hooks ask for.
            run_metadata: Filled with what the run recorded about itself.

        Returns:
            The values, in the structure of `fetches`; an operation yields None.

        Raises:
            OutOfRangeError: The input has ended; the `with` block swallows it.
            RuntimeError: The session is closed, or a hook has requested the stop.
        """
        if self._closed:
            raise RuntimeError(_CLOSED)
        try:
            return self._inside(self._session.run, fetches, feed_dict, options, run_metadata)
        except BaseException as exc:
            self._notify(exc)
            raise

    def run_step_fn(self, step_fn: Callable[[StepContext], Any]) -> Any:
        """Calls a function that decides by itself what to run, and what of it with hooks.

        Args:
            step_fn: A function whose only parameter is called `step_context`. After a recovery it is called again.

        Returns:
            What it returns.

        Raises:
            ValueError: It has other parameters.
            StopIteration: It called `step_context.request_stop()`; the `with` block swallows it.
            RuntimeError: The session is closed.
        """
        check_step_fn(step_fn)
        if self._closed:
            raise RuntimeError(_CLOSED)

        def step(session: CoordinatedSession) -> Any:
            return step_fn(StepContext(session.hooked.raw, session.run, self.request_stop))

        try:
            return self._inside(self._session.call, step)
        except BaseException as exc:
            self._notify(exc)
            raise

    def request_stop(self) -> None:
        """Makes `should_stop()` true and tells the threads to stop.

        Raises:
            RuntimeError: The session is closed.
        """
        if self._closed:
            raise RuntimeError(_CLOSED)
        self._session.request_stop()

    def close(self) -> None:
        """Calls every hook's `end`, stops the threads and closes the session.

        Raises:
            RuntimeError: The session is closed already; or this was called inside a callback of a hook or a step
                function, and nothing has been closed.
            BaseException: The first error of a hook's `settle` or `end`, of a thread, or of closing; others are noted
                on it.
        """
        if self._inside_thread == threading.get_ident():
            raise RuntimeError(_CLOSED_INSIDE)
        if self._closed:
            raise RuntimeError(_CLOSED)
        failures = self._finish(None)
        if failures:
            raise _first(failures)

    def __enter__(self) -> Self:
        if self._closed:
            raise RuntimeError(_CLOSED)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        ended = exception is None or isinstance(exception, END_OF_INPUT)
        failures = [] if self._closed else self._finish(exception)
        if not ended and exception is not None:
            _first([exception, *failures])
            return False
        if failures:
            raise _first(failures)
        return True

    def _finish(self, leaving: BaseException | None) -> list[BaseException]:
        """Ends or abandons the training and closes everything; returns what went wrong on the way, in order."""
        self._closed = True
        failures: list[BaseException] = []
        try:
            lost = self._session.failure
            if leaving is not None and not isinstance(leaving, END_OF_INPUT):
                self._notify(leaving)
            elif lost is None:
                failures += self._inside(self._end)
            elif lost is not self._notified:
                # should_stop() had to keep this to itself.
                self._notify(lost)
                failures.append(lost)
            try:
                self._session.close()
            except BaseException as exc:
                failures.append(exc)
        finally:
            self._notified = None
            self._give_back()
        return failures

    def _end(self) -> list[BaseException]:
        raw = self._session.raw
        try:
            if isinstance(self._creator, ChiefSessionCreator):
                # What the hooks save and evaluate in `end` is then the last word: no worker's update comes after it.
                raw.seal()
            self._hooks.settle(raw)
        except BaseException as exc:
            failure = raw.map_error(exc)
            # What settling comes upon counts as if the run had raised it; the end of the input is no failure.
            if not isinstance(failure, END_OF_INPUT):
                self._notify(failure)
                return [failure]
        return self._hooks.end(raw)

    def _notify(self, exception: BaseException) -> None:
        """Tells the hooks of a failure, once: what a run raised usually leaves the `with` block as well."""
        if exception is not self._notified and not isinstance(exception, END_OF_INPUT):
            self._notified = exception
            self._inside(self._hooks.on_exception, self._session.raw, exception)

    def _give_back(self) -> None:
        self._hooks.release()
        _release_finalized(self._graph, self)

    def _inside(self, function: Callable[..., T], *args: Any) -> T:
        """Calls a function in which callbacks run, from which this thread must not close the session."""
        outer, self._inside_thread = self._inside_thread, threading.get_ident()
        try:
            return function(*args)
        finally:
            self._inside_thread = outer

    def _create(self) -> CoordinatedSession:
        with self._graph.as_default():
            raw = self._creator.create_session()
            # An OutOfRangeError of a thread is an error of the session: its consumer is who ends the training quietly.
            coord = Coordinator(clean_stop_exception_types=())
            session = CoordinatedSession(HookedSession(raw, self._hooks, self._stop), coord, self._grace_secs)
            try:
                self._inside(self._hooks.after_create_session, raw, coord)
            except BaseException as exc:
                mapped = raw.map_error(exc)
                try:
                    session.close()
                except Exception as closing:
                    if closing is not mapped:
                        mapped.add_note(f"Closing the session failed as well: {closing!r}")
                if mapped is exc:
                    raise
                raise mapped from mapped.__cause__
            return session


# The sessions that run a graph which the first of them found open: the last one opens it again.
_held_finalized: weakref.WeakKeyDictionary[Graph, weakref.WeakSet[MonitoredLifecycle]] = weakref.WeakKeyDictionary()
_held_lock = threading.Lock()


def _hold_finalized(graph: Graph, session: MonitoredLifecycle) -> None:
    with _held_lock:
        if not graph.finalized:
            _held_finalized.setdefault(graph, weakref.WeakSet())
        if graph in _held_finalized:
            _held_finalized[graph].add(session)


def _release_finalized(graph: Graph, session: MonitoredLifecycle) -> None:
    with _held_lock:
        sessions = _held_finalized.get(graph)
        if sessions is None:
            return
        sessions.discard(session)
        if not sessions:
            del _held_finalized[graph]
            graph.reopen()


def _first(failures: list[BaseException]) -> BaseException:
    """Returns the first error, with the others noted on it."""
    first, *others = failures
    for other in others:
        if other is not first:
            logger.error("While closing the session: %s: %s", type(other).__name__, other)
            first.add_note(f"While closing the session, after that: {type(other).__name__}: {other}")
    return first
