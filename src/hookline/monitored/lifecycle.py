"""MonitoredLifecycle: hooks around a session, from the first `begin` to the last `end`."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from hookline import arguments, interrupts, notebooks, preemption
from hookline.coordination import Coordinator
from hookline.coordination.agreement import FAILURE, Decision
from hookline.graph import Graph, GraphKeys, get_default_graph, placement
from hookline.graph.registry import FINALIZED
from hookline.monitored import finalized, in_step
from hookline.monitored.callbacks import checked_hooks, create_for, describe, override
from hookline.monitored.coordinated import CoordinatedSession
from hookline.monitored.cost_report import CostReport
from hookline.monitored.costs import Costs
from hookline.monitored.creators import SessionCreator
from hookline.monitored.ending import CLOSED, Ending
from hookline.monitored.hook_list import HookList
from hookline.monitored.hooked import HookedSession
from hookline.monitored.in_step import InStep
from hookline.monitored.quiet import NOT_RUN, NotRun, Quiet
from hookline.monitored.recoverable import RecoverableSession
from hookline.monitored.recovery import RecoveryPolicy
from hookline.monitored.rehearsal import rehearse
from hookline.monitored.run_plan import RunPlan
from hookline.monitored.scaffold import Scaffold
from hookline.monitored.step_context import StepContext, check_step_fn
from hookline.monitored.stop_request import StopRequest
from hookline.monitored.turn import Claim, Turn
from hookline.session import RunMetadata, RunOptions, Session
from hookline.summary import FileWriter, FileWriterCache
from hookline.summary.writer_cache import SCOPE, WriterScope

logger = logging.getLogger(__name__)

T = TypeVar("T")

_INSIDE = (
    "A monitored session cannot {what} from inside one of its runs or callbacks. In a hook, run_context.session.run "
    "runs without hooks; in a step function, step_context.run_with_hooks runs with them."
)


class MonitoredLifecycle(Ending):
    """The common part of both monitored sessions: hooks around a session, closed in order.

    With a recovery policy a lost session is created again; without one every error passes.
    """

    @classmethod
    def _made_for(cls, *args: Any, **kwargs: Any) -> Graph:
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
        report: bool = False,
    ) -> None:
        who = type(self).__name__
        arguments.instance(who, "report", report, bool)
        self._costs = Costs() if report else None
        self._steps_per_run = arguments.whole(who, "steps_per_run", steps_per_run, at_least=1)
        self._creator = arguments.having(who, "session_creator", session_creator, "a SessionCreator", "create_session")
        self._hooks = HookList(hooks, None if self._costs is None else self._costs.timed)
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
        # In a notebook, until its `with` block is entered: an interrupt ends a cell, and the session goes on in others.
        self._is_of_cells = notebooks.shell() is not None and on_preemption == preemption.EXIT
        self._writers = WriterScope(strict_events)
        self._turn, self._quiet = Turn(self._writers), Quiet(self._writers)
        # During a step function, outside of its runs: the session that it runs with hooks.
        self._stepping: CoordinatedSession | None = None
        # The session's count of writes when its step function began, or last ran with hooks.
        self._written_in_step: int | None = None
        self._raw: Session | None = None
        self._in_step = InStep.joined(self._act)
        if self._in_step is not None:
            preemption.agree()
            recovery = None  # A process that is lost takes the others with it: all are started again.
            self._stop.agree = functools.partial(self._in_step.propose, in_step.STOP)
        self._hooks.claim(self)
        finalized.hold(self._graph, self)
        with Claim(self._turn) as claim, claim:
            claim.take()
            try:
                self._heed_signals()
                self._hooks.begin()
                self._session = RecoverableSession(self._create, recovery)
                if self._preemption.number is not None:
                    self._wake()
                if self._is_of_cells:
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
                        exc.add_note(f"Giving up what the session held failed as well: {closing!r}")
                raise
        if self._costs is not None:
            self.run, self._run_in_step = self._costs.of_runs(self.run, self._run_in_step)

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

    def plan(self, steps: int = 1000, fetches: Any = None, feed_dict: Mapping[Any, Any] | None = None) -> RunPlan:
        """Says which hooks the next runs would call, what those would ask for, and which programs that makes.

        The session's own schedule says it, in a rehearsal: nothing is run, written or drawn, no hook is called, and no
        trigger moves. The clock, latches, triggers of your own that decide themselves, and what hooks ask for in
        `before_run` are not foreseen, and the plan says so. It ends where a hook stops the training at a step.

        Args:
            steps: How many global steps; of fetches that leave the step alone, how many runs.
            fetches: What each run fetches; by default the train op of `Optimizer.minimize` or of a `Loop`.
            feed_dict: Has the tensors that each run or hook feeds as keys; the values do not count.

        Returns:
            The plan; `print` shows it as a table.

        Raises:
            TypeError: `steps` is not a whole number.
            ValueError: It is below 1; or there is not exactly one train op, and no `fetches`.
            RuntimeError: The session is closed, or a run is under way.
            Exception: What a run of these fetches would raise before it starts.

        Example:
            >>> import hookline as hl
            >>> from hookline import train
            >>> with hl.Graph().as_default():
            ...     train_op = train.get_or_create_global_step().assign_add(1)
            ...     with train.MonitoredSession(hooks=[train.StopAtStepHook(last_step=300)]) as session:
            ...         session.plan(100, train_op).hooks[0].fires_at, session.plan(1000, train_op).hooks[0].fires_at
            ((), (300,))
        """
        arguments.whole("plan", "steps", steps, at_least=1)
        arguments.mapping("plan", "feed_dict", feed_dict, optional=True)
        if fetches is None:
            fetches = self._train_op()
        with Claim(self._turn) as claim, claim, placement.off_the_record():
            self._take_alone(claim, "be planned")
            return rehearse(self._session.live().hooked, steps, fetches, feed_dict)

    def _train_op(self) -> Any:
        found = self._graph.get_collection(GraphKeys.TRAIN_OP)
        if len(found) != 1:
            raise ValueError(
                f"plan requires fetches, that which your loop runs: the graph has {len(found)} train ops "
                "(GraphKeys.TRAIN_OP)."
            )
        return found[0]

    def report(self) -> CostReport:
        """Returns what the session has cost so far: where its time went, by part and by hook, and its compilations.

        It may be asked for at any moment, also in a hook and after the session was closed. At the end it is logged, at
        INFO, however the training ended.

        Raises:
            RuntimeError: The session was made without `report=True`.
        """
        if self._costs is None:
            raise RuntimeError(
                f"This {type(self).__name__} has measured nothing. Make it with report=True to have a report."
            )
        return self._costs.report(self._hooks.hooks)

    def add_hook(self, hook: Any) -> None:
        """Adds a hook, from the next run on.

        Its `begin` and `after_create_session` are called at once. It comes last, unless a hook declares another order.

        Args:
            hook: A hook whose `begin` adds nothing to the graph.

        Raises:
            TypeError: It is not a hook.
            RuntimeError: Its `begin` adds to the graph, which is finalized by now; a run is under way; it already
                serves a session; or the session is closed.
            BaseException: A callback of the hook raised. The hook then gets `on_exception`, and is not added.
        """
        (hook,) = checked_hooks([hook])
        if any(hook is known for known in self._hooks.hooks):
            raise RuntimeError(f"The {describe(hook)} rides along on this session already.")
        with Claim(self._turn) as claim, claim:
            self._take_alone(claim, "take another hook")
            hooks = HookList([*self._hooks.hooks, hook], self._hooks.timed)
            hooks.claim(self)
            raw = self._session.live().hooked.raw
            try:
                with self._graph.as_default():
                    self._begin_late(hook)
                    hooks.set_states(raw.lowlevel.restored_hook_states, [hook])
                    create_for(hook, raw, self.coordinator, hooks.callback)
                self._session.current.hooked.use(hooks)
            except BaseException as exc:
                mapped = raw.lowlevel.map_error(exc)
                hooks.release()
                added = HookList([hook])
                added.on_exception(raw, mapped)
                for failure in added.after_close():
                    mapped.add_note(f"Giving up what the hook held failed as well: {failure!r}")
                if mapped is exc:
                    raise
                raise mapped from mapped.__cause__
            self._hooks.release()
            self._hooks = hooks
            if not self._is_of_cells:
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
            options: The options of this run, merged with those of the hooks.
            run_metadata: Filled with the facts that the run recorded.

        Returns:
            The values, in the structure of `fetches`; an operation yields None.

        Raises:
            OutOfRangeError: The input has ended; the `with` block swallows it.
            Preempted: A signal asked the process to end; leave the `with` block, or close the session.
            RuntimeError: The session is closed, a hook has requested a stop, or a run is under way, in another thread
                or around the hook callback that makes this call.
        """
        if self._is_of_cells:
            with self._uninterrupted():  # Not `self.run`, which may be measured.
                return MonitoredLifecycle.run(self, fetches, feed_dict, options, run_metadata)
        turn, key = self._turn, [threading.get_ident()]
        try:
            try:
                if not turn.enter(key):
                    if turn.is_mine and self._stepping is not None:
                        return self._run_in_step(self._stepping, fetches, feed_dict, options, run_metadata)
                    raise self._occupied("be run")
                result = NOT_RUN
                if options is None and run_metadata is None and self._preemption.signals.number is None:
                    result = self._quiet.run(fetches, feed_dict)
                    if type(result) is not NotRun:
                        return result
                return self._run_with_hooks(fetches, feed_dict, options, run_metadata, result.error)
            finally:
                turn.leave(key)
        except BaseException:
            turn.leave(key)  # A Ctrl-C may have come before it was left.
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
                return self._session.survive(failed, fetches, feed_dict)
            if self._preemption.signals.number is not None:
                self._preemption.check()
            if self._in_step is not None:
                self._in_step.is_running = True
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
        if self._is_of_cells:
            with self._uninterrupted():
                return self.run_step_fn(step_fn)

        def step(session: CoordinatedSession) -> Any:
            self._stepping, raw = session, session.hooked.raw
            begun = self._written_in_step = raw.lowlevel.writes
            run_with_hooks = functools.partial(self._run_in_step, session)
            # A training must not be left in the middle of a step function.
            with preemption.finishing(lambda: raw.lowlevel.writes != begun):
                return step_fn(StepContext(raw, run_with_hooks, self.request_stop))

        with Claim(self._turn) as claim, claim:
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
            self._written_in_step = session.hooked.raw.lowlevel.writes

    def _should_stop(self) -> bool:
        """Returns whether a requested stop is in effect: a recovery may have made it unnecessary."""
        if self._closed or self._preemption.number is not None:
            return True
        if self._in_step is not None:
            return self._in_step_should_stop(self._in_step)
        if self._session.goes_on():
            return False
        with Claim(self._turn) as claim, claim:
            return self._session.should_stop() if claim.take() else self._session.looks_stopped()

    def _in_step_should_stop(self, others: InStep) -> bool:
        """Reserves the next run, unless the processes have agreed to stop before it; other threads only check."""
        with Claim(self._turn) as claim, claim:
            if others.thread == threading.get_ident() and claim.take() and self._session.failure is None:
                try:
                    if (error := self._session.current.reported_error()) is not None:
                        raise error
                    others.reserve()
                except Exception as error:
                    self._tell_of(error)
                    self._session.failure = error
        return self._stop.requested or self._session.failure is not None or self._preemption.number is not None

    def request_stop(self) -> None:
        """Makes `should_stop()` true and tells the threads to stop.

        In processes that run in step this takes effect before the next run that none of them has begun.

        Raises:
            RuntimeError: The session is closed.
        """
        if self._closed:
            raise RuntimeError(CLOSED)
        if self._in_step is not None:
            self._in_step.propose(in_step.STOP)
            return
        self._session.request_stop()

    @contextlib.contextmanager
    def _uninterrupted(self) -> Iterator[None]:
        """Has an interrupt wait for the end of a run, so that the session can go on in the next cell."""
        self._is_of_cells = False
        try:
            with interrupts.held_back():
                yield
        finally:
            self._is_of_cells = True

    def _wake(self) -> None:
        """Asks threads, and waits on the coordinator, to stop because of a signal."""
        if self._in_step is not None:
            self._in_step.propose(in_step.SIGNAL, preemption.heard())
            return
        session = getattr(self, "_session", None)
        if session is not None and not self._closed:
            session.request_stop()

    def _act(self, decision: Decision) -> None:
        """Carries out a decision of the processes that run in step, before the same run in all of them."""
        assert self._in_step is not None, "It calls this."
        for process, kind, value in decision.proposals:
            if kind == FAILURE:
                raise self._in_step.end_with(process, value)
        for _, kind, value in decision.proposals:
            if kind == in_step.DUE:
                self._in_step.become_due(value)
            elif kind == in_step.SIGNAL:
                preemption.agree(value)
            elif kind == in_step.STOP:
                self._stop.hold()

    def _doing(self) -> str:
        """Returns the session's activity when a signal comes, for the log."""
        if self._closed:
            return "the end of the session"
        if not hasattr(self, "_session"):
            return "the start of the session"
        return "the run under way" if self._turn.is_taken else "the next run"

    def _take_alone(self, claim: Claim, what: str) -> None:
        """Keeps other threads out of this session."""
        if not claim.take():
            raise self._occupied(what)
        if self._closed:
            raise RuntimeError(CLOSED)
        self._session.live()

    def _occupied(self, what: str) -> RuntimeError:
        """Returns the error for a call that comes while the session is busy."""
        if self._closed:
            return RuntimeError(CLOSED)
        if self._turn.is_mine:
            return RuntimeError(_INSIDE.format(what=what))
        if self._turn.is_awaited:
            return RuntimeError(f"A monitored session that is being closed cannot {what}; ask should_stop() before.")
        return RuntimeError(
            f"A monitored session does one thing at a time, and {self._turn.owner} is inside: it cannot {what} for "
            f"{threading.current_thread().name} now. Let one thread run it; others may run raw_session() instead."
        )

    def _create(self) -> CoordinatedSession:
        self._stepping = None
        with self._graph.as_default():
            self._raw = raw = self._creator.create_session()
            if self._costs is not None:
                self._costs.watch(raw)
            self._preemption.renew()
            # A thread's OutOfRangeError is an error of the session: only its consumer ends the training quietly.
            coord = Coordinator(clean_stop_exception_types=())
            coord.on_stop(self._stop.ask)
            hooked = HookedSession(raw, self._hooks, self._stop, self._quiet, self._steps_per_run, self._in_step)
            session = CoordinatedSession(hooked, coord, self._grace_secs)
            try:
                raw.lowlevel.serve(coord)
                raw.lowlevel.hook_states = lambda: self._hooks.states()
                self._hooks.set_states(raw.lowlevel.restored_hook_states)
                self._hooks.after_create_session(raw, coord)
                hooked.use(self._hooks)
            except BaseException as exc:
                mapped = raw.lowlevel.map_error(exc)
                try:
                    session.close()
                except Exception as closing:
                    if closing is not mapped:
                        mapped.add_note(f"Closing the session failed as well: {closing!r}")
                if mapped is exc:
                    raise
                raise mapped from mapped.__cause__
            return session
