"""MonitoredLifecycle: hooks around a session, from the first `begin` to the last `end`."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from hookline import arguments, preemption
from hookline.coordination import Coordinator
from hookline.errors import END_OF_INPUT, Preempted
from hookline.graph import Graph, get_default_graph
from hookline.graph.registry import FINALIZED
from hookline.hooks.when import bare
from hookline.monitored import finalized
from hookline.monitored.coordinated import CoordinatedSession
from hookline.monitored.creators import ChiefSessionCreator, SessionCreator, WorkerSessionCreator
from hookline.monitored.hook_list import HookList, checked_hooks, create_for, describe, override, release
from hookline.monitored.hooked import HookedSession, StopRequest
from hookline.monitored.recoverable import RecoverableSession
from hookline.monitored.recovery import RecoveryPolicy
from hookline.monitored.scaffold import Scaffold
from hookline.monitored.step_context import StepContext, check_step_fn
from hookline.monitored.turn import Turn
from hookline.session import RunMetadata, RunOptions, Session
from hookline.summary import FileWriter, FileWriterCache
from hookline.summary.writer_cache import SCOPE, WriterScope

logger = logging.getLogger(__name__)

T = TypeVar("T")

_CLOSED = "Session is already closed."
_INSIDE = (
    "A monitored session cannot {what} from inside one of its runs or callbacks. In a hook, run_context.session.run "
    "runs without hooks; in a step function, step_context.run_with_hooks runs with them."
)
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
        strict_events: bool = False,
        on_preemption: str = preemption.EXIT,
        grace_secs: float = preemption.DEFAULT_GRACE_SECS,
    ) -> None:
        self._creator = session_creator
        self._hooks = HookList(hooks)
        who = type(self).__name__
        self._grace_secs = arguments.number(who, "stop_grace_period_secs", stop_grace_period_secs, at_least=0)
        arguments.instance(who, "recovery", recovery, RecoveryPolicy)
        # One that was made in a callback of another, as an evaluation is, is finished before the other is left.
        heeds = SCOPE.get() is None or not preemption.heeded()
        self._preemption = preemption.Watch(who, on_preemption, grace_secs, self._wake, self._doing, heeds=heeds)
        self._summary_dir = summary_dir
        self._stop = StopRequest()
        # What hooks have been told of bears this mark; to keep it here would keep its traceback, and so what was fed.
        self._told = object()
        self._graph = get_default_graph()
        self._closed = False
        self._writers = WriterScope(strict_events)
        self._turn = Turn(self._writers)
        # While a step function is called, and no run of its own: the session that it runs with hooks.
        self._stepping: CoordinatedSession | None = None
        # The writes of the session when its step function began, or last ran with hooks.
        self._written_in_step: int | None = None
        self._raw: Session | None = None
        self._hooks.claim(self)
        finalized.hold(self._graph, self)
        self._turn.take()
        try:
            self._heed_signals()
            self._hooks.begin()
            self._session = RecoverableSession(self._create, recovery)
            if self._preemption.number is not None:
                self._wake()
        except BaseException as exc:
            self._closed = True
            if self._raw is not None:
                self._notify(exc)
            self._preemption.close()
            self._give_back()
            try:
                FileWriterCache.release(self._writers)
            except Exception as closing:
                exc.add_note(f"Closing a summary writer failed as well: {closing!r}")
            raise
        finally:
            self._turn.give_back()

    @property
    def graph(self) -> Graph:
        """The graph that this session runs."""
        return self._graph

    @property
    def coordinator(self) -> Coordinator:
        """Keeps track of the threads; after a recovery it is another one."""
        return self._session.current.coord

    @property
    def scaffold(self) -> Scaffold | None:
        """What the session was initialised and is saved with; None where its creator has none."""
        return getattr(self._creator, "scaffold", None)

    @property
    def summary_writer(self) -> FileWriter | None:
        """The writer that the library's hooks share, for summaries of your own; None without a summary directory.

        It is closed with the session, if nobody else has got it from `FileWriterCache`; later on this is a new one.
        """
        if self._summary_dir is None:
            return None
        outer = SCOPE.set(self._writers)
        try:
            return FileWriterCache.get(self._summary_dir)
        finally:
            SCOPE.reset(outer)

    def raw_session(self) -> Session:
        """Returns the session inside, whose runs trigger no hooks; after a recovery it is another one.

        For what hooks should not see, between runs: an evaluation, a look at a variable, `load`. What it raises does
        not lead to a recovery, and a recovery closes it; inside `run_step_fn` a loss is recovered from.

        Raises:
            RuntimeError: The session is closed.
            BaseException: The failure of a recovery that was in vain.
        """
        if self._closed:
            raise RuntimeError(_CLOSED)
        return self._session.live().hooked.raw

    def add_hook(self, hook: Any) -> None:
        """Lets one more hook ride along, from the next run on.

        Its `begin` and `after_create_session` are called at once. It comes last, unless a hook demands another order.

        Args:
            hook: A hook whose `begin` adds nothing to the graph.

        Raises:
            TypeError: It is no hook.
            RuntimeError: Its `begin` adds to the graph, which is final by now; a run is under way; it serves another
                session or this one; the session is closed.
            BaseException: What its callbacks raised. It gets its `on_exception` then, and has not joined.
        """
        (hook,) = checked_hooks([hook])
        if any(hook is known for known in self._hooks.hooks):
            raise RuntimeError(f"The {describe(hook)} rides along on this session already.")
        with self._alone("take another hook"):
            hooks = HookList([*self._hooks.hooks, hook])
            hooks.claim(self)
            raw = self._session.live().hooked.raw
            try:
                with self._graph.as_default():
                    self._begin_late(hook)
                    hooks.set_states(raw.restored_hook_states, [hook])
                    create_for(hook, raw, self.coordinator)
            except BaseException as exc:
                mapped = raw.map_error(exc)
                HookList([hook]).on_exception(raw, mapped)
                release(hook)
                if mapped is exc:
                    raise
                raise mapped from mapped.__cause__
            self._hooks = hooks
            self._session.current.hooked.use(hooks)
            self._heed_signals()

    def _begin_late(self, hook: Any) -> None:
        begin = override(hook, "begin")
        try:
            if begin is not None:
                begin()
        except RuntimeError as exc:
            if not str(exc).startswith(FINALIZED):
                raise
            raise RuntimeError(
                f"The {describe(hook)} cannot join an open session: its begin adds to the graph, which is final. "
                f"Pass it in hooks= where the session is made. {exc}"
            ) from exc

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
            Preempted: A signal has asked the process to end; leave the `with` block, or close the session.
            RuntimeError: The session is closed, a hook has requested the stop, or a run is under way: in another
                thread, or around the callback of a hook that called this.
        """
        if not self._turn.take():
            if self._turn.is_mine and self._stepping is not None:
                return self._run_in_step(self._stepping, fetches, feed_dict, options, run_metadata)
            if self._left_over():
                return self.run(fetches, feed_dict, options, run_metadata)
            raise self._occupied("be run")
        try:
            if self._closed:
                raise RuntimeError(_CLOSED)
            self._preemption.check()
            return self._session.run(fetches, feed_dict, options, run_metadata)
        except BaseException as exc:
            if not self._closed:
                self._fail(exc)
            raise
        finally:
            self._turn.give_back()

    def run_step_fn(self, step_fn: Callable[[StepContext], Any]) -> Any:
        """Calls a function that decides by itself what to run, and what of it with hooks.

        Args:
            step_fn: A function whose only parameter is called `step_context`. After a recovery it is called again.

        Returns:
            What it returns.

        Raises:
            ValueError: It has other parameters.
            StopIteration: It called `step_context.request_stop()`; the `with` block swallows it.
            Preempted: A signal has asked the process to end.
            RuntimeError: The session is closed.
        """
        check_step_fn(step_fn)

        def step(session: CoordinatedSession) -> Any:
            self._stepping, raw = session, session.hooked.raw
            begun = self._written_in_step = raw.writes
            run_with_hooks = functools.partial(self._run_in_step, session)
            # Half of a step function is no state to leave a training in.
            with preemption.finishing(lambda: raw.writes != begun):
                return step_fn(StepContext(raw, run_with_hooks, self.request_stop))

        with self._alone("call a step function"):
            try:
                self._preemption.check()
                return self._session.call(step)
            except BaseException as exc:
                self._fail(exc)
                raise
            finally:
                self._stepping = self._written_in_step = None

    def _run_in_step(self, session: CoordinatedSession, *args: Any, **kwargs: Any) -> Any:
        if not self._turn.is_mine or self._stepping is not session:
            raise RuntimeError(
                "A step context serves the thread that its step function was called in, while that function is at work "
                "and outside of its runs with hooks."
            )
        self._stepping = None
        try:
            return session.run(*args, **kwargs)
        finally:
            self._stepping = session
            self._written_in_step = session.hooked.raw.writes

    def _should_stop(self) -> bool:
        if self._preemption.number is not None:
            return True
        if self._turn.take():
            try:
                return self._session.should_stop()
            finally:
                self._turn.give_back()
        return self._session.looks_stopped()

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

        While another thread runs the session, this asks it to stop and waits for the end of that run, as long as for
        the threads.

        Raises:
            Preempted: A signal has asked the process to end; everything is closed.
            RuntimeError: The session is closed already; or this was called inside a callback of a hook or a step
                function, or the run of another thread did not end in time, and nothing has been closed.
            BaseException: The first error of a hook's `settle` or `end`, of a thread, or of closing; others are noted
                on it.
        """
        if self._closed:
            raise RuntimeError(_CLOSED)
        self._wait_for_turn()
        try:
            # Somebody else may have closed it meanwhile, which is what was wanted.
            failures = [] if self._closed else self._finish(None)
        finally:
            self._turn.give_back()
        if failures:
            raise _first(failures)
        self._leave()

    def _leave(self) -> None:
        """Raises `Preempted` once everything is closed, if that is why."""
        preempted = self._preemption.error()
        if preempted is not None:
            raise preempted

    def _heed_signals(self) -> None:
        """Has signals caught where leaving in order is worth it."""
        # A worker saves nothing; it leaves in order for those who go on.
        if self._hooks.savers or isinstance(self._creator, WorkerSessionCreator):
            self._preemption.open()

    def _wake(self) -> None:
        """Tells threads, and what waits for the coordinator, that a signal has asked the process to end."""
        session = getattr(self, "_session", None)
        if session is not None and not self._closed:
            session.request_stop()

    def _doing(self) -> str:
        """Says what a signal has come into."""
        if self._closed:
            return "the end of the session"
        if not hasattr(self, "_session"):
            return "the start of the session"
        return "the run under way" if self._turn.is_taken else "the next run"

    def _wait_for_turn(self) -> None:
        if self._turn.is_mine and not self._left_over():
            raise RuntimeError(_CLOSED_INSIDE)
        if self._turn.take():
            return
        if not self._closed:
            self._session.request_stop()
        if not self._turn.wait(self._grace_secs):
            raise RuntimeError(
                f"The session cannot be closed: a run in {self._turn.owner} did not end within {self._grace_secs:g} s."
            )

    def _left_over(self) -> bool:
        """Returns whether a Ctrl-C in a bad moment has left the turn taken by this thread; then it is given back."""
        if not self._turn.is_mine:
            return False
        frame, inside = sys._getframe(1), 0
        while frame is not None:
            inside += frame.f_code in _AT_WORK and frame.f_locals.get("self") is self
            frame = frame.f_back
        if inside > 1:  # The first of them is the call that asks.
            return False
        self._turn.give_back()
        self._stepping = None
        return True

    @contextlib.contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        """Keeps everybody else out of this session."""
        if not self._turn.take():
            raise self._occupied(what)
        try:
            if self._closed:
                raise RuntimeError(_CLOSED)
            self._session.live()
            yield
        finally:
            self._turn.give_back()

    def _occupied(self, what: str) -> RuntimeError:
        """Returns the error of a call that comes while the session is at work."""
        if self._closed:
            return RuntimeError(_CLOSED)
        if self._turn.is_mine:
            return RuntimeError(_INSIDE.format(what=what))
        if self._turn.is_awaited:
            return RuntimeError(f"A monitored session that is being closed cannot {what}; ask should_stop() before.")
        return RuntimeError(
            f"A monitored session does one thing at a time, and {self._turn.owner} is inside: it cannot {what} for "
            f"{threading.current_thread().name} now. Let one thread run it; others may run raw_session() instead."
        )

    def __enter__(self) -> Self:
        if self._closed:
            raise RuntimeError(_CLOSED)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        ended = exception is None or isinstance(exception, _IN_ORDER)
        try:
            self._wait_for_turn()
        except BaseException as waiting:
            if ended or exception is None:
                raise
            self._notify(exception)
            exception.add_note(f"While leaving the session: {waiting}")
            return False
        try:
            failures = [] if self._closed else self._finish(exception)
        finally:
            self._turn.give_back()
        if exception is not None and (not ended or isinstance(exception, Preempted)):
            _first([exception, *failures])
            return False
        if failures:
            raise _first(failures)
        self._leave()
        return True

    def _finish(self, leaving: BaseException | None) -> list[BaseException]:
        """Ends or abandons the training and closes everything; returns what went wrong on the way, in order."""
        self._closed = True
        failures: list[BaseException] = []
        # Whatever comes in between, a second Ctrl-C too: threads, session, files and graph are not left behind.
        for part in (
            lambda: failures.extend(self._wind_up(leaving)),
            self._session.close,
            lambda: FileWriterCache.release(self._writers),
            self._preemption.close,
            self._give_back,
        ):
            try:
                part()
            except BaseException as exc:
                failures.append(exc)
        return failures

    def _wind_up(self, leaving: BaseException | None) -> list[BaseException]:
        lost = self._session.failure
        if leaving is not None and not isinstance(leaving, _IN_ORDER):
            self._fail(leaving)
        elif lost is None:
            return self._end()
        elif not self._knows(lost):
            # should_stop() had to keep this to itself.
            self._notify(lost)
            return [lost]
        return []

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

    def _fail(self, exception: BaseException) -> None:
        """Saves and tells what is to be saved and told when a run or the body has failed with this."""
        if not isinstance(exception, _IN_ORDER):
            self._save_last(exception)
            self._notify(exception)

    def _save_last(self, exception: BaseException) -> None:
        """Lets the savers among the hooks keep what the last completed run left, when a run or the body has failed."""
        if self._knows(exception) or self._session.failure is not None or preemption.urgent():
            return
        savers = self._hooks.savers
        hooked = self._session.current.hooked
        if not savers or hooked.raw.closed or hooked.raw.shared or not hooked.at_rest:
            return
        if self._written_in_step is not None and hooked.raw.writes != self._written_in_step:
            return  # The step function had changed variables by itself.
        try:
            self._hooks.settle(hooked.raw)  # A NaN that was not reported yet is: such a state is not worth keeping.
            if any(getattr(bare(hook), "has_found_nan", False) for hook in self._hooks.hooks):
                return
            for saver in savers:
                saver.save_last(hooked.raw, exception)
        except BaseException as failure:  # A Ctrl-C too: the first error is the one to be told.
            logger.error(
                "After %s no last checkpoint was saved: %s: %s",
                type(exception).__name__,
                type(failure).__name__,
                failure,
            )

    def _notify(self, exception: BaseException) -> None:
        """Tells the hooks of a failure, once: what a run raised usually leaves the `with` block as well."""
        if not self._knows(exception) and not isinstance(exception, END_OF_INPUT):
            vars(exception)[_TOLD] = self._told
            raw = self._raw
            assert raw is not None, "Nobody but a session has failures to tell of."
            self._hooks.on_exception(raw, exception)

    def _knows(self, exception: BaseException) -> bool:
        return vars(exception).get(_TOLD) is self._told

    def _give_back(self) -> None:
        if self._raw is not None:
            self._raw.hook_states = dict
        self._hooks.release()
        finalized.release(self._graph, self)

    def _create(self) -> CoordinatedSession:
        self._stepping = None
        with self._graph.as_default():
            self._raw = raw = self._creator.create_session()
            self._preemption.renew()
            # An OutOfRangeError of a thread is an error of the session: its consumer is who ends the training quietly.
            coord = Coordinator(clean_stop_exception_types=())
            session = CoordinatedSession(HookedSession(raw, self._hooks, self._stop), coord, self._grace_secs)
            try:
                raw.serve(coord)
                raw.hook_states = lambda: self._hooks.states()
                self._hooks.set_states(raw.restored_hook_states)
                self._hooks.after_create_session(raw, coord)
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


# Whose frames say that a session is at work in this thread.
_AT_WORK = frozenset(
    getattr(MonitoredLifecycle, name).__code__
    for name in ("__init__", "run", "run_step_fn", "add_hook", "close", "__exit__", "_should_stop")
)
_TOLD = "_hookline_told"
# With what a session is left in order: `end` is called then.
_IN_ORDER = (*END_OF_INPUT, Preempted)


def _first(failures: list[BaseException]) -> BaseException:
    """Returns the first error, with the others noted on it."""
    first, *others = failures
    for other in others:
        if other is not first:
            logger.error("While closing the session: %s: %s", type(other).__name__, other)
            first.add_note(f"While closing the session, after that: {type(other).__name__}: {other}")
    return first
