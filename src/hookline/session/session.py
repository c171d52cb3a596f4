"""The session: runs what is asked for of a graph, compiled."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import jax

from hookline import arguments, clock, errors
from hookline.graph.dialect import Dialect, InDialect
from hookline.graph.fault import Fault
from hookline.graph.global_step import counted_global_step
from hookline.graph.graph import Graph, Operation, Tensor, get_default_graph
from hookline.graph.keys import GraphKeys
from hookline.graph.latch import Latch
from hookline.graph.nodes import Source
from hookline.graph.variable import Variable
from hookline.session.config import SessionConfig
from hookline.session.device_stage import explained
from hookline.session.execution import Execution
from hookline.session.feeds import check_alive, fed_parts, flat_feeds
from hookline.session.fetches import called
from hookline.session.getters import Run
from hookline.session.latches import Latches, Latching
from hookline.session.local_store import local_store
from hookline.session.options import RunMetadata, RunOptions
from hookline.session.plan_cache import PlanCache, Prepared, plan_key
from hookline.session.repeat import CHANGED, Repeat
from hookline.session.retry import RETRY
from hookline.session.run_ahead import RunAhead
from hookline.session.sources import OpenSource, Position, Sources
from hookline.session.store import StoreTarget, VariableStore, resolve_target
from hookline.session.watched import Watched

_NO_LATEST = object(), (), None
_NO_RESULTS = Run()
_NO_RESULTS.outputs = ()
_MOST_LATEST = 16


class Session(InDialect):
    """Runs a graph and keeps the values of its variables.

    `run` compiles what the fetches need into one program, remembers it, and returns without waiting for the device:
    results are `jax.Array`s, which wait when they are read. It may be called from several threads; a host operation is
    entered by one of them at a time.

    Args:
        target: Where variables live: empty for this process, or a `hookline.distributed.Cluster`, or its `target`.
        graph: What to run; by default the default graph.
        config: Its bounds; by default those of `SessionConfig()`.

    Attributes:
        origin: Where the values of its variables come from, in words, where a `SessionManager` made it.
        usable: Whether it is neither closed nor lost.
        checks_runs: Whether the dialect of its graph looks at runs.
        fault: Why the state is not worth a last checkpoint: the latest error of a `hookline.graph.fault.Fault` since
            the model was loaded, or what `condemn` was given; else None.
        ahead: How far the host is ahead of the device.
        hook_data: What hooks share on this session, each kind under a key of its own.
        expects_steps: Whether the global step ought to move, so that the monitored session says where it does not; for
            hooks whose trigger does not show it.

    Example:
        >>> import hookline as hl
        >>> a, b = hl.constant(2.0), hl.constant(3.0)
        >>> with hl.Session() as sess:
        ...     sess.run({"sum": a + b, "product": a * b})
        {'sum': Array(5., dtype=float32, weak_type=True), 'product': Array(6., dtype=float32, weak_type=True)}

    References:
        `tf.Session`. Results of device operations are `jax.Array`s instead of NumPy arrays.
    """

    def __init__(
        self, target: str | StoreTarget = "", graph: Graph | None = None, config: SessionConfig | None = None
    ) -> None:
        arguments.instance("Session", "config", config, SessionConfig)
        config = config or SessionConfig()
        if graph is not None and not isinstance(graph, Graph):
            raise TypeError(f"Session requires a hookline.Graph, got {graph!r}.")
        self._graph = graph or get_default_graph()
        self._store: VariableStore | None = None
        self._lock = threading.RLock()
        self._target = resolve_target(target)
        self._max_plans = config.max_plans
        self._latches = Latches()
        self._plans = PlanCache(self._graph, self._max_plans, self._latches)
        self.usable = True
        self._closed = False
        self._lost: BaseException | None = None
        self._contexts: list[Any] = []
        # Of the host operation that runs under the lock, if one does.
        self._host_thread: int | None = None
        self._host_locks: dict[Operation, Any] = {}
        self._sources = Sources(self._graph, lambda: self.shared)
        self.ahead = RunAhead(config.max_runs_ahead)
        dialect = type(self._graph.dialect)
        self.checks_runs = dialect.check_run is not Dialect.check_run
        self._converts = dialect.returned is not Dialect.returned
        # By hooks the latest fetches, the tensors that were fed, and what was prepared for them.
        self._latest: dict[Watched | None, tuple[Any, tuple[Any, ...], Prepared | None]] = {}
        self.origin = ""
        self.writes = 0
        # How many latches are known to have latched so far.
        self.alarms = 0
        self.fault: BaseException | None = None
        # What hooks keep: asked for when the whole model is saved, and what a checkpoint held when it was restored.
        self.hook_states: Callable[[], Mapping[str, Any]] = dict
        self.restored_hook_states: dict[str, Any] = {}
        self.step_limit: int | None = None
        self._step_limits: dict[int, int] = {}
        self.hook_data: dict[Any, Any] = {}
        self.expects_steps = False
        self._at_close: list[Callable[[], None]] = []
        weakref.finalize(self, _call_all, self._at_close).atexit = False

    @classmethod
    def _made_for(cls, target: Any = "", graph: Any = None, *args: Any, **kwargs: Any) -> Graph:
        return graph if isinstance(graph, Graph) else get_default_graph()

    # Life -------------------------------------------------------------------------------------------------------

    @property
    def graph(self) -> Graph:
        """The graph that it runs."""
        return self._graph

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Frees the variables. A run afterwards is a `RuntimeError`; closing again does nothing.

        Raises:
            InvalidArgumentError: As of `settle`. It is closed then.
        """
        try:
            fault = self._last_fault()
        finally:  # A Ctrl-C may end the wait for the device.
            with self._lock:
                self._closed, self.usable = True, False
                self._sources.close()
                if self._store is not None:
                    self._store.close()
                self._store, self._latest = None, {}
                self._plans = PlanCache(self._graph, self._max_plans, self._latches)
                self._latches.reset()
                self.ahead.forget()
                self.hook_data.clear()
            _call_all(self._at_close)
        if fault is not None:
            raise fault

    def when_closed(self, function: Callable[[], None]) -> None:
        """Has a function called when the session is closed, or collected: to give back what was held for its sake."""
        self._at_close.append(function)

    def __enter__(self) -> Session:
        if self._contexts:
            raise RuntimeError("The session was entered already; its `with` block ends it, so it has only one.")
        self._check_usable()
        context = self._graph.as_default()
        context.__enter__()
        self._contexts.append(context)
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._contexts.pop().__exit__(*exc_info)
        try:
            self.close()
        except errors.InvalidArgumentError as fault:
            _, leaving, _ = exc_info
            # The end of the input is not what went wrong.
            if leaving is None or isinstance(leaving, errors.END_OF_INPUT):
                raise
            leaving.add_note(f"While leaving the session: {fault}")

    @property
    def store(self) -> VariableStore:
        """Where the variables live."""
        if self._store is None:
            with self._lock:
                self._check_usable()
                if self._store is None:
                    graph, target = self._graph, self._target
                    self._store = target.open_store(graph) if target else local_store(graph, self._lock)
        return self._store

    def _check_usable(self) -> None:
        if self._closed:
            raise RuntimeError("Attempted to use a closed Session.")
        if self._lost is not None:
            raise self._aborted() from self._lost

    def _aborted(self) -> errors.AbortedError:
        # The engine's message may hold a whole traceback, which stays readable on the cause.
        lines = str(self._lost).splitlines() or [repr(self._lost)]
        reason = lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}"
        return errors.AbortedError(
            None,
            None,
            f"The session is lost: a program that was to write its variables failed, and their values are gone "
            f"({reason}). Make a new session and restore a checkpoint; a MonitoredSession does so.",
        )

    # Running ----------------------------------------------------------------------------------------------------

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> Any:
        """Runs the part of the graph that the fetches need and returns their values.

        Args:
            fetches: Tensors, operations, variables or names, nested in lists, tuples, dicts, dataclasses and attrs
                classes. A name `"loss"` is the operation, whose value is `None`; `"loss:0"` is its tensor. Fields that
                are marked `static` stay as they are.
            feed_dict: Values to use for tensors instead of computing them. Any tensor may be fed. A key may be a tuple
                of tensors, nested as you like, or another hashable structure; its value then has the same structure.
            options: How to run.
            run_metadata: Filled in with what is known of the run.

        Returns:
            The values in the structure of `fetches`: `jax.Array`s, for host operations what they returned, for integer
            scalar variables such as the global step NumPy integers, for operations `None`.

        Raises:
            TypeError, ValueError: Something that cannot be fetched or fed.
            InvalidArgumentError: A fed value of a wrong shape or kind, or a placeholder that is not fed.
            FailedPreconditionError: A variable without a value.
            OutOfRangeError: The input has ended.
            AbortedError: The session is lost.
            RuntimeError: The session is closed.
        """
        if run_metadata is not None:
            arguments.instance("Session.run", "run_metadata", run_metadata, RunMetadata)
        if options is None and not feed_dict:
            return self.run_prepared(self._prepared(fetches, None, feed_dict), (), None, run_metadata)[0]
        return self._run(fetches, None, feed_dict, options, run_metadata)[0]

    def run_watched(
        self,
        fetches: Any,
        watched: tuple[Any, ...] | Watched,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> tuple[Any, tuple[Any, ...]]:
        """`run`, with the fetches of hooks beside those of the caller.

        What is only watched is computed behind an optimization barrier: the rest gives the same bits as without it.

        Args:
            fetches: The caller's fetches.
            watched: For each hook a fetch structure, or `None`; a `Watched`, where that is asked for often.
            feed_dict: As in `run`.
            options: As in `run`.
            run_metadata: As in `run`.

        Returns:
            The caller's results, and a tuple of the hooks'.
        """
        if not isinstance(watched, Watched):
            watched = Watched(tuple(watched), once=True)
        return self._run(fetches, watched, feed_dict, options, run_metadata)

    def expect(self, watched: Iterable[Any]) -> list[int]:
        """Says what hooks may ever fetch, so that the runs that they watch share one program from the start.

        Args:
            watched: For each hook a fetch structure.

        Returns:
            The places of those that are not in the graph; they are passed over.
        """
        with self._lock:
            return self._plans.expect(watched)

    def make_callable(
        self, fetches: Any, feed_list: Sequence[Any] | None = None, accept_options: bool = False
    ) -> Callable[..., Any]:
        """Returns a function that runs these fetches, planned once: it takes the values to feed and nothing else.

        Args:
            fetches: As in `run`.
            feed_list: Keys of a `feed_dict`, in the order in which the function takes their values.
            accept_options: Whether the function takes `options` and `run_metadata` by name, too.

        Returns:
            The function. It returns what `run` returns, and raises what `run` raises.

        Raises:
            TypeError: `feed_list` is no list, or something cannot be fetched or fed.
            ValueError: Something is of another graph, or is fed twice.
            RuntimeError: The session is closed.

        Example:
            >>> import hookline as hl
            >>> x = hl.placeholder("float32", [], name="x")
            >>> with hl.Session() as sess:
            ...     double = sess.make_callable(x * 2, feed_list=[x])
            ...     print(double(1.0), double(2.5))
            2.0 5.0

        References:
            `tf.Session.make_callable`. Too few or too many values are a `TypeError`.
        """
        if feed_list is not None and not isinstance(feed_list, list | tuple):
            raise TypeError(f"Session.make_callable requires a list (or None) as feed_list, got {feed_list!r}.")
        keys = list(feed_list or ())
        tensors = [tensor for key in keys for tensor, _ in fed_parts(key, key)]
        if len(set(tensors)) < len(tensors):
            raise ValueError(f"Session.make_callable: a tensor stands twice in feed_list: {feed_list!r}.")
        prepared = self._prepared(fetches, None, dict.fromkeys(tensors))

        def call(*values: Any, options: RunOptions | None = None, run_metadata: RunMetadata | None = None) -> Any:
            if len(values) != len(keys):
                raise TypeError(f"The callable takes {len(keys)} values, one for each of feed_list, got {len(values)}.")
            if keys != tensors:
                pairs = zip(keys, values, strict=True)
                values = tuple(part for key, value in pairs for _, part in fed_parts(key, value))
            if options is not None and options.debug_tensor_watches:
                return self.run(fetches, dict(zip(tensors, values, strict=True)), options, run_metadata)
            self._check_usable()
            return self.run_prepared(prepared, values, options, run_metadata)[0]

        return call if accept_options else lambda *values: call(*values)

    def _run(
        self,
        fetches: Any,
        watched: Watched | None,
        feed_dict: Any,
        options: RunOptions | None,
        metadata: RunMetadata | None,
    ) -> tuple[Any, Any]:
        if options is not None:
            arguments.instance("Session.run", "options", options, RunOptions)
        if options is not None and options.debug_tensor_watches and metadata is not None:
            return self._run_recorded(fetches, watched, feed_dict, options, metadata)
        prepared = self._prepared(fetches, watched, feed_dict)
        if not feed_dict:
            return self.run_prepared(prepared, (), options, metadata, watched)
        feeds = (flat_feeds(feed_dict) or {}) if prepared.has_structures else feed_dict
        return self.run_prepared(prepared, feeds.values(), options, metadata, watched)

    def run_prepared(
        self,
        prepared: Prepared,
        values: Iterable[Any],
        options: RunOptions | None,
        metadata: RunMetadata | None,
        watched: Watched | None = None,
    ) -> tuple[Any, Any]:
        """Runs what `prepared` has returned.

        Args:
            prepared: What is run.
            values: What is fed, in the order of the plan.
            options: As of `run`.
            metadata: As of `run`.
            watched: What hooks ask for.

        Returns:
            The results of the caller, and those of the hooks.
        """
        if self.ahead.left <= 0:
            self.look_back()
        again = prepared.execution.repeat
        if again is not None and options is None and metadata is None:
            results = again.make(self, values)
            if results is not CHANGED:
                return results
        execution = prepared.execution
        run = Run()
        run.feeds = [check(value) for check, value in zip(execution.feeders, values, strict=True)] if values else ()
        run.applied, run.outputs = False, ()
        try:
            if execution.launch is not None and options is None and metadata is None:
                # What `_execute` does for all others, in line: this is what a training loop does, and calls take time.
                with self._lock:
                    if not self.usable:
                        self._check_usable()
                    try:
                        execution.launch(run)
                    except Exception as error:
                        self.explain(error, execution, run.feeds)
                        raise
                    if execution.writes:
                        self.writes += 1
                self.ahead.left -= 1
                if self.ahead.left <= 0:
                    self.look(execution, run)
            else:
                self._execute(execution, run, options, metadata)
        except jax.errors.JaxRuntimeError as error:
            raise self.map_error(error) from error
        if self.checks_runs:
            self._graph.dialect.check_run(self._graph)
        if prepared.nothing is not None:
            if run.applied and not execution.has_run:
                execution.has_run, execution.repeat = True, Repeat.of(self._lock, execution, prepared.nothing)
            return prepared.nothing
        if prepared.late_alone is not None:
            return None, watched and prepared.late_alone(run, self)
        results = [*map(called, execution.getters, repeat(run))]
        if self._converts:
            results = self._graph.dialect.returned(results)
            if execution.program is not None and execution.program.faults:
                with self._lock:
                    self._latches.peek(Fault)  # If the results have come from the device, it is there.
                    self._raise_fault()
        return prepared.assemble(results), watched and prepared.assemble_watched(results, run, self)

    def prepared(self, fetches: Any, watched: Watched | None) -> Prepared | None:
        """Returns the plan of these fetches for `run_prepared`; None where a run is more than a program."""
        prepared = self._prepared(fetches, watched, None)
        return prepared if prepared.execution.launch is not None else None

    def _run_recorded(
        self,
        fetches: Any,
        watched: Watched | None,
        feed_dict: Any,
        options: RunOptions,
        metadata: RunMetadata,
    ) -> tuple[Any, Any]:
        """Runs with the tensors of `debug_tensor_watches` watched as well."""
        names = options.debug_tensor_watches
        options = dataclasses.replace(options, debug_tensor_watches=())
        asked, late = (watched.fetches, watched.late) if watched else ((), frozenset())
        result, results = self._run(fetches, Watched((*asked, *names), late), feed_dict, options, metadata)
        metadata.watched.update(zip(names, results[-len(names) :], strict=True))
        return result, watched and results[: -len(names)]

    def _prepared(self, fetches: Any, watched: Watched | None, feed_dict: Any) -> Prepared:
        # None: only the plan key tells these feeds from others.
        fed = () if not feed_dict else tuple(feed_dict) if isinstance(feed_dict, dict) else None
        if self._lost is None:
            # A training loop asks for the same each time.
            latest_fetches, latest_fed, latest = self._latest.get(watched, _NO_LATEST)
            if fetches is latest_fetches and fed == latest_fed and latest is not None:
                return latest
        key = plan_key(fetches, watched, feed_dict)
        found = self._plans.get(key)
        if found is None or not self.usable:
            with self._lock:
                self._check_usable()
                found = self._plans.find(key) or self._plans.make(key, self.store, fetches, watched, feed_dict)
        # A structure may be changed in place.
        lasts = watched is None or not watched.once
        if lasts and fed is not None and isinstance(fetches, Tensor | Operation | str):
            if len(self._latest) >= min(_MOST_LATEST, self._max_plans):
                self._latest.clear()
            self._latest[watched] = fetches, fed, found
        return found

    def step_gain(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> int | None:
        """Returns by how much a run of these fetches advances the global step; `None` if only the device knows."""
        return self._prepared(fetches, None, flat_feeds(feed_dict)).execution.step_gain

    def _execute(
        self, execution: Execution, run: Run, options: RunOptions | None, metadata: RunMetadata | None
    ) -> None:
        run.begin()
        plan = execution.plan
        traced = metadata is not None and options is not None and options.trace_level > 0
        start = clock.monotonic() if traced else 0.0
        hosts = execution.hosts
        if hosts.early and not hosts.early_is_inside:
            hosts.compute(hosts.early, run, self)
        if execution.exchanges:
            # Not under the lock: whoever reads or closes must not wait for slower workers.
            nested = self._host_thread == threading.get_ident()
            self._wait_for_sources(execution)
            with self.store.turn(plan.remote, nested=nested):
                begun = self._exchange(execution, run, options, metadata)
            if execution.program is not None and execution.program.latches:
                self._ran(execution, run)
        else:
            begun = self._exchange(execution, run, options, metadata)
            self._ran(execution, run)
        done = clock.monotonic() if traced else 0.0
        if hosts.after:
            hosts.compute(hosts.after, run, self)
        if traced and metadata is not None:
            times = {"before": begun - start, "device": done - begun, "after": clock.monotonic() - done}
            metadata.stage_secs.update(times)

    def _ran(self, execution: Execution, run: Run) -> None:
        """Counts a run."""
        self.ahead.left -= 1
        if self.ahead.left <= 0:
            self.look(execution, run)

    def look(self, execution: Execution, run: Run) -> bool:
        """Looks how far the device has come: waits where it is too far behind, and reads the latches.

        Args:
            execution: The latest run's.
            run: What that returned.

        Returns:
            Whether a latch has latched that was not known to have.

        Raises:
            InvalidArgumentError: As of `settle`, as far as that is known.
        """
        if execution.device is None:
            return False
        with self._lock:
            token = execution.device.token(run, self.ahead.is_there)
            if token is None:
                self.ahead.mark(None)
                return self._read_latches()
        self.ahead.mark(token)  # Not under the lock: whoever reads or closes must not wait for the device.
        with self._lock:
            return self._read_latches()

    def _read_latches(self) -> bool:
        known = self.alarms
        self._latches.look()
        self._raise_fault()
        self.alarms = self._latches.news
        return self.alarms > known

    def settle(self) -> None:
        """Waits for the runs so far, and raises what an operation was given in them that it must not be.

        It is called before a checkpoint is written, before the `end` of hooks and when the session is closed; where no
        operation has a `hookline.graph.fault.Fault` it costs nothing. Each fault is raised once.

        Raises:
            InvalidArgumentError: There was such a thing. The error names the operation.
        """
        self._await_latch(Fault)
        with self._lock:
            self._raise_fault()

    def _await_latch(self, latch: Latching) -> None:
        with self._lock:
            unread = self._latches.unread(latch)
            self.alarms = self._latches.news
        if unread is not None:
            unread.value.block_until_ready()
            with self._lock:
                self._latches.read([unread])
                self.alarms = self._latches.news

    def _raise_fault(self) -> None:
        found = self._latches.take_fault()
        if found is None:
            return
        step, (index, *details) = found
        operation = self._graph.get_operations()[index]
        assert operation.fault is not None, "It has found one."
        has_step = counted_global_step(self._graph) is not None
        when = f", in the run that led to global step {step}" if has_step else ""
        text = f"{operation.node_def}: {operation.fault.told(*details)}{when}."
        self.fault = errors.InvalidArgumentError(operation.node_def, operation, text)
        raise self.fault

    def _last_fault(self) -> errors.InvalidArgumentError | None:
        """Returns what `settle` raises, for a session that ends; None where it is lost."""
        try:
            if self.usable:
                self.settle()
        except errors.InvalidArgumentError as fault:
            return fault
        except jax.errors.JaxRuntimeError:
            pass
        return None

    def look_back(self) -> bool:
        """Does what `look` does for the latest run of a `Repeat`: a device that keeps up is done with it now.

        Nothing is done where somebody else has written the variables since: that run has looked, or will.
        """
        execution, store = self.ahead.latest, self._store
        if execution is None or store is None or execution.device.exchange is not getattr(store, "latest", None):
            return False
        try:
            return self.look(execution, _NO_RESULTS)
        except jax.errors.JaxRuntimeError as error:
            raise self.map_error(error) from error

    def _exchange(
        self, execution: Execution, run: Run, options: RunOptions | None, metadata: RunMetadata | None
    ) -> float:
        """Carries out what needs the variables, and returns when the device stage began."""
        if not execution.hosts.early_is_inside and not execution.plan.sources:
            with self._lock:
                return self._exchange_now(execution, run, options, metadata)
        while True:
            with self._lock:
                self._check_usable()
                awaited = self._sources.awaited(execution.plan.sources)
                if awaited is None and not execution.hosts.early_is_inside:
                    return self._exchange_batches(execution, run, options, metadata)
                if awaited is None:
                    with contextlib.ExitStack() as entered:
                        busy = self._enter(execution.plan.early, entered)
                        if busy is None:
                            return self._exchange_batches(execution, run, options, metadata)
                        awaited = _Free(self.host_lock(busy))
            # Not under the session's lock: whoever is inside may need that to come out, and a batch may take its time.
            awaited.wait()

    def _wait_for_sources(self, execution: Execution) -> None:
        if execution.plan.sources:
            with self._lock:
                self._check_usable()
                awaited = [self._sources.of(node) for node in execution.plan.sources]
            for source in awaited:
                source.wait()

    def _exchange_batches(
        self, execution: Execution, run: Run, options: RunOptions | None, metadata: RunMetadata | None
    ) -> float:
        """Exchanges with a batch of each source, which is used up if the run is applied, and otherwise is not."""
        if not execution.plan.sources:
            return self._exchange_now(execution, run, options, metadata)
        taken = self._sources.take(execution.plan.sources)
        try:
            run.hosts.update(zip(execution.plan.sources, [item.value for _, item in taken], strict=True))
            return self._exchange_now(execution, run, options, metadata)
        finally:
            used = run.applied and not self._counted_before(execution)
            for source, item in taken:
                source.use(item) if used else source.give_back(item)

    def _counted_before(self, execution: Execution) -> bool:
        """Whether the run was tried before, and was applied then, with a batch that was used up for it."""
        retry = RETRY.get() if execution.plan.remote else None
        sent = retry.latest if retry is not None else None
        if sent is None:
            return False
        counted, sent.counted = sent.counted, True
        return counted

    def _enter(self, operations: Iterable[Operation], entered: contextlib.ExitStack) -> Operation | None:
        """Takes the locks of host operations without waiting; returns one that another thread is in, if there is."""
        for operation in operations:
            lock = self.host_lock(operation)
            if not lock.acquire(blocking=False):
                return operation
            entered.callback(lock.release)
        return None

    def _exchange_now(
        self, execution: Execution, run: Run, options: RunOptions | None, metadata: RunMetadata | None
    ) -> float:
        self._check_usable()
        store = self.store
        if execution.exchanges:
            store.begin_run(execution.plan.remote)
        try:
            for variable in execution.counters:
                run.counters[variable] = store.counter(variable)
        except errors.FailedPreconditionError as error:
            raise explained(execution.plan, error) from None
        if execution.hosts.early_is_inside:
            outer, self._host_thread = self._host_thread, threading.get_ident()
            try:
                execution.hosts.compute(execution.hosts.early, run, self)
            finally:
                self._host_thread = outer
        begun = clock.monotonic() if options is not None and options.trace_level > 0 else 0.0
        self._dispatch(execution, run, options, metadata)
        if metadata is not None:
            metadata.global_step = self._step_or_none(store)
        return begun

    def _dispatch(
        self, execution: Execution, run: Run, options: RunOptions | None, metadata: RunMetadata | None
    ) -> None:
        """Starts the program; the caller holds the lock."""
        if not self.usable:
            self._check_usable()
        device = execution.device
        try:
            if device is None:
                run.applied = True
            elif options is None and not execution.plan.remote:
                device.launch(run)
            else:
                device.launch_with(run, options, metadata)
        except Exception as error:
            self.explain(error, execution, run.feeds)
            raise
        if execution.writes:
            self.writes += 1

    def host_lock(self, operation: Operation) -> Any:
        """Returns the lock that keeps other threads out of a host operation: an iterator cannot serve two at once."""
        return self._host_locks.get(operation) or self._host_locks.setdefault(operation, threading.RLock())

    def explain(self, error: Exception, execution: Execution, feeds: Sequence[Any]) -> None:
        """Raises what the error of a run means, where it does not say so itself.

        Args:
            error: The error.
            execution: What was run.
            feeds: What was fed.

        Raises:
            AbortedError: The run took the variables with it, or found them gone: the session is lost.
            InvalidArgumentError: Something that was fed is gone.
        """
        store = self.store
        if store.destroyed():
            self._lost = error
        elif errors.from_exception(error) is not error:
            self._lost = store.broken()
        if self._lost is not None:
            self.usable = False
            raise self._aborted() from error
        if not isinstance(error, errors.OpError):
            check_alive(zip(execution.fed, feeds, strict=True))

    def _step_or_none(self, store: VariableStore) -> int | None:
        try:
            return store.step() if counted_global_step(self._graph) is not None else None
        except errors.FailedPreconditionError:
            return None

    # What hooks and savers need ---------------------------------------------------------------------------------

    @property
    def global_step(self) -> int:
        """The global step now; it costs nothing and waits for nothing where the host can count it.

        Raises:
            RuntimeError: The graph has none.
        """
        store = self._store
        step = None if store is None else store.known_step()
        return self.store.step() if step is None else step

    def latched(self, operation: Operation, *, wait: bool = False) -> int | None:
        """Returns the global step to which the first run led in which the condition of a `hookline.latch` held.

        Args:
            operation: The latch.
            wait: Whether to wait for all runs so far. Otherwise it says what is known: the session looks at its latches
                before it is `SessionConfig.max_runs_ahead` runs ahead of what it has read.

        Returns:
            The global step; None where the condition has not held in any run that is looked at. In a graph without a
            global step, the number of the run, from 1 on.

        Raises:
            TypeError: It is no latch.
        """
        if not isinstance(operation, Latch):
            raise TypeError(f"Session.latched requires an operation of hookline.latch, got {operation!r}.")
        if wait:
            self._await_latch(operation)
        return self._latches.found(operation)

    @property
    def shared(self) -> bool:
        """Whether others may change its variables: they live on parameter servers."""
        return self.store.shared

    def seal(self) -> None:
        """Ends the training for all workers that share the variables; returns when their last update is applied."""
        self.store.seal()

    @property
    def known_global_step(self) -> int | None:
        """The global step where looking at it waits for nothing; `None` where the device alone knows it."""
        return (self._store or self.store).known_step()

    @property
    def step_changes(self) -> int:
        """How often the global step has been written so far, by whatever way."""
        return (self._store or self.store).step_changes

    def condemn(self, error: BaseException) -> None:
        """Notes that the state is not worth a last checkpoint, until the model is loaded anew; for hooks.

        Args:
            error: Why: a NaN that has got into the variables, say. Nobody raises it here.
        """
        self.fault = error

    def limit_step(self, last_step: int | None, owner: object = None) -> None:
        """Does for every run under hooks what `RunOptions(last_step=...)` does for one; the smallest limit holds.

        For a hook's `after_create_session`: a session that a recovery makes has no limit yet.

        Args:
            last_step: An update that would begin when the global step is this or more is not applied. None takes the
                limit of `owner` back.
            owner: Whose limit this is, in place of an earlier one; a limit of nobody holds for good.

        Raises:
            TypeError: `last_step` is not a whole number.
        """
        limits, key = self._step_limits, id(owner)
        if last_step is None:
            limits.pop(key, None)
        else:
            arguments.whole("Session.limit_step", "last_step", last_step)
            limits[key] = last_step if owner is not None else min(last_step, limits.get(key, last_step))
        self.step_limit = min(limits.values(), default=None)

    def publish(self) -> None:
        """Lets the workers in that share the variables: the model is ready, or an ended training goes on."""
        self.store.publish()

    def wait_until_ready(self, timeout_secs: float = 0.0) -> bool:
        """Blocks until the chief has published the model or the time is over, and returns whether it has.

        Where nobody shares the variables there is nothing to wait for.
        """
        return self.store.wait_until_ready(timeout_secs)

    def wait_for_step(self, step: int, timeout_secs: float | None = None) -> int:
        """Blocks until the global step is at least `step`, or the time is over, and returns the global step."""
        return self.store.wait_for_step(step, timeout_secs)

    def snapshot(self, variables: Iterable[Variable] | None = None) -> dict[str, Any]:
        """Returns a copy of the values of variables, all of the same moment, by name.

        Args:
            variables: By default all global variables of the graph.
        """
        if variables is None:
            variables = self._graph.get_collection(GraphKeys.GLOBAL_VARIABLES)
        with self._lock:
            self._check_usable()
            return self.store.snapshot(variables)

    def snapshot_with_positions(
        self, variables: Iterable[Variable], iterators: Iterable[str]
    ) -> tuple[dict[str, Any], dict[str, Position]]:
        """Returns what `snapshot` does, and how far the session had come in iterators at that moment, by name."""
        with self._lock:
            return self.snapshot(variables), self._sources.positions(iterators)

    def iterators(self) -> list[str]:
        """Returns the names of the graph's iterators (`hookline.data.iterator`) whose positions checkpoints hold."""
        return self._sources.names()

    def source(self, iterator: Source) -> OpenSource:
        """Returns what the session reads from for an iterator's operation."""
        with self._lock:
            self._check_usable()
            return self._sources.of(iterator)

    def serve(self, coord: Any) -> None:
        """Lets the threads that read the data of iterators ahead stop with a `Coordinator`."""
        with self._lock:
            self._sources.serve(coord)

    def load(
        self, values: Mapping[str, Any], *, owned: bool = False, positions: Mapping[str, Any] | None = None
    ) -> None:
        """Sets variables to concrete values, all or none.

        Args:
            values: New values by variable name (`"weights"`), of the structure, shapes and kinds of dtype that the
                variables have.
            owned: The caller gives the arrays away: they are not copied, and must not be used again.
            positions: Where iterators go on, by name: values of `snapshot_with_positions`.

        Raises:
            KeyError: A name that no variable has.
            ValueError: A value that does not fit its variable.
            InvalidArgumentError: As of `settle`, where all trained variables are set.
        """
        arguments.mapping("Session.load", "values", values)
        known = {v.op.name: v for key in (GraphKeys.GLOBAL_VARIABLES, GraphKeys.LOCAL_VARIABLES)
                 for v in self._graph.get_collection(key)}  # fmt: skip
        model = {v.op.name for v in self._graph.get_collection(GraphKeys.TRAINABLE_VARIABLES)} or known.keys()
        for name in values:
            if name not in known:
                raise KeyError(f"The graph has no variable {name!r} to load a value into.")
        is_model = model <= values.keys()
        if is_model:
            self.settle()
        if self.ahead.left <= 0:
            self.look_back()
        with self._lock:
            self._check_usable()
            self.store.load({known[name]: value for name, value in values.items()}, owned=owned)
            self.writes += 1
            if is_model:
                self._latches.reset()
                self.fault = None
            self._sources.go_to(positions or {})

    def uninitialized(self, variables: Iterable[Variable] | None = None) -> list[str]:
        """Returns the names of the variables (by default all global and local ones) that have no value."""
        if variables is None:
            keys = (GraphKeys.GLOBAL_VARIABLES, GraphKeys.LOCAL_VARIABLES)
            variables = [variable for key in keys for variable in self._graph.get_collection(key)]
        return self.store.uninitialized(variables)

    def map_error(self, error: BaseException) -> BaseException:
        """Returns the error of `hookline.errors` that an error of the engine means; other errors as they are.

        Where a program that was to write variables has failed, the session is lost: that and every later run is an
        `AbortedError`.
        """
        mapped = errors.from_exception(error)
        if mapped is error or self._closed:
            return mapped
        with self._lock:
            if self._lost is None and self._store is not None:
                self._lost = self._store.broken()
            if self._lost is None:
                return mapped
            self.usable = False
            aborted = self._aborted()
            aborted.__cause__ = error
            return aborted


class _Free(NamedTuple):
    """A lock to wait for, to take it later."""

    lock: Any

    def wait(self) -> None:
        with self.lock:
            pass


def _call_all(functions: list[Callable[[], None]]) -> None:
    while functions:
        functions.pop()()
