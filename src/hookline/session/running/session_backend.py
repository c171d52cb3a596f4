"""The backend of a session: plans requests, keeps the state, and explains errors."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax

from hookline import arguments, errors
from hookline.graph import placement
from hookline.graph.front_end import FrontEnd
from hookline.graph.global_step import find_global_step
from hookline.graph.graph import Graph
from hookline.graph.nodes.nodes import Source
from hookline.graph.registry import GraphKeys
from hookline.graph.variable import Variable
from hookline.session.local_store import LocalStore
from hookline.session.options import RunMetadata, RunOptions, SessionConfig
from hookline.session.plan.feeds import check_not_deleted, flatten_feeds
from hookline.session.plan.plan_cache import PlanCache
from hookline.session.plan.request import HookFetches
from hookline.session.plan.source_positions import OpenSource, Position, Sources
from hookline.session.raw_session import Backend
from hookline.session.running.cached_step import CachedStep
from hookline.session.running.dispatch_throttle import DispatchThrottle
from hookline.session.running.staged_run import StagedRuns
from hookline.session.store import StoreTarget, VariableStore

# JAX puts the same words before the message for each program in a row of failed ones.
_REPEATED = re.compile(r"([^:\n]+: )\1+")


class SessionBackend(Backend):
    """The backend of a `Session`, for monitored sessions, savers and experts: `session.backend`.

    Attributes:
        graph: The graph.
        lock: Held while a run or a load replaces values of variables, and while they are read.
        throttle: Limits how far the host is ahead of the device, and polls the latches.
        sources: The sources that the session reads from.
        staged: Makes the runs that need more than one program.
        is_usable: Whether the session is neither closed nor lost.
        checks_runs: Whether the front end checks runs.
        converts_results: Whether the front end converts results.
        close_callbacks: The functions to call when the session is closed or collected, to release its resources.
    """

    is_usable = True

    def __init__(self, session: Any, target: StoreTarget | None, config: SessionConfig) -> None:
        super().__init__(session)
        self.graph: Graph = session.graph
        front_end = type(self.graph.front_end)
        self.checks_runs = front_end.check_run is not FrontEnd.check_run
        self.converts_results = front_end.convert_results is not FrontEnd.convert_results
        if target is None:
            self.graph.record_shardings("Session", [placement.current_mesh_context()])
        self.lock = threading.RLock()
        self.throttle = DispatchThrottle(self, config.max_runs_ahead)
        self.sources = Sources(self)
        self.staged = StagedRuns(self)
        self._target, self.shared, self._max_plans = target, target is not None, config.max_plans
        self._plans = PlanCache(self, config.max_plans)
        self._store: VariableStore | None = None
        self._lost_error: BaseException | None = None
        self._lost_reason = "a program that was to write its variables failed, and their values are gone"
        self.close_callbacks: list[Callable[[], None]] = []

    # Lifecycle --------------------------------------------------------------------------------------------------

    @property
    def store(self) -> VariableStore:
        """The store of the variables, opened when it is first needed."""
        if self._store is None:
            with self.lock:
                self.check_usable()
                if self._store is None:
                    graph, target = self.graph, self._target
                    self._store = target.open_store(graph) if target else LocalStore(graph, self.lock)
        return self._store

    def check_usable(self) -> None:
        """Raises the error of a run if the session is closed or lost."""
        if self.session.closed:
            raise RuntimeError("Attempted to use a closed Session.")
        if self._lost_error is not None:
            raise self._aborted() from self._lost_error

    def close(self) -> None:
        """See `Session.close`."""
        try:
            failure = self.throttle.final_failure()
        finally:  # A Ctrl-C may end the wait for the device.
            with self.lock:
                self.session.closed, self.is_usable = True, False
                self.sources.close()
                if self._store is not None:
                    self._store.close()
                self._store = None
                self._plans = PlanCache(self, self._max_plans)
                self.throttle.clear()
            call_all(self.close_callbacks)
        if failure is not None:
            raise failure

    # Running ----------------------------------------------------------------------------------------------------

    def run_with_hook_fetches(
        self,
        fetches: Any,
        hook_fetches: HookFetches | tuple[Any, ...] | None,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> tuple[Any, tuple[Any, ...]]:
        """Runs the fetches of the caller and of hooks together; returns the results of both.

        Values that only hooks fetch are computed behind an optimization barrier: without hooks, all other values would
        have the same bits.
        """
        if hook_fetches is not None and not isinstance(hook_fetches, HookFetches):
            hook_fetches = HookFetches(tuple(hook_fetches), is_single_use=True)
        if options is not None:
            arguments.check_optional("Session.run", "options", options, RunOptions)
            if options.debug_tensor_watches and run_metadata is not None:
                return self._run_with_watches(fetches, hook_fetches, feed_dict, options, run_metadata)
        step = self._plans.find(fetches, hook_fetches, feed_dict)
        feeds = feed_dict
        if feed_dict:
            feeds = (flatten_feeds(feed_dict) or {}).values() if step.request.has_structures else feed_dict.values()
        if options is None and run_metadata is None and step.is_program:
            result, results, _ = step.run(feeds)
            return result, results
        return step.run_staged(feeds, options, run_metadata)

    def _run_with_watches(
        self, fetches: Any, hook_fetches: HookFetches | None, feed_dict: Any, options: RunOptions, metadata: RunMetadata
    ) -> tuple[Any, Any]:
        """Runs the fetches, and the tensors of `debug_tensor_watches` as further hook fetches."""
        names = options.debug_tensor_watches
        options = dataclasses.replace(options, debug_tensor_watches=())
        asked, deferred = (hook_fetches.fetches, hook_fetches.deferred) if hook_fetches else ((), frozenset())
        every = HookFetches((*asked, *names), deferred, is_single_use=True)
        result, results = self.run_with_hook_fetches(fetches, every, feed_dict, options, metadata)
        metadata.watched.update(zip(names, results[-len(names) :], strict=True))
        return result, results[: -len(names)]

    def find_step(self, fetches: Any, feed_dict: Any = None, max_steps: int = 1) -> CachedStep:
        """Returns the cached step of a request; makes one if there is none."""
        return self._plans.find(fetches, None, feed_dict, max_steps)

    def cached_step(self, fetches: Any, hook_fetches: HookFetches | None = None, max_steps: int = 1) -> Any:
        """Returns the step that makes these runs, up to `max_steps` in one dispatch; see `Backend.cached_step`."""
        found = self._plans.find(fetches, hook_fetches, None, max_steps)
        return found if found.is_program or max_steps > 1 else None

    def step_delta(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> int | None:
        """Returns the increase of the global step in a run of these fetches; None if only the device knows it."""
        return self.find_step(fetches, feed_dict).step_delta

    def declare_hook_fetches(self, hook_fetches: Iterable[Any]) -> list[int]:
        """Declares all fetches of hooks; see `Backend.declare_hook_fetches`."""
        with self.lock:
            return self._plans.declare_hook_fetches(hook_fetches)

    # Errors -----------------------------------------------------------------------------------------------------

    def raise_explained(self, error: Exception, step: CachedStep, feeds: Iterable[Any]) -> None:
        """Raises a clearer error for a failed run if there is one, else returns. The caller holds the lock.

        Raises:
            AbortedError: The run destroyed the variables, or found them destroyed: the session is lost.
            InvalidArgumentError: A fed array was deleted.
        """
        store = self.store
        if store.has_deleted_values():
            self._lost_error = error
        elif errors.from_exception(error) is not error:
            self._lost_error = store.await_failure()
        if self._lost_error is not None:
            self.is_usable = False
            raise self._aborted() from error
        if not isinstance(error, errors.OpError):
            check_not_deleted(zip(step.request.fed, feeds, strict=True))

    def map_error(self, error: BaseException) -> BaseException:
        """Returns the error of `hookline.errors` for an error of the JAX runtime; other errors as they are.

        If a program that writes variables has failed, the session is lost: this and every later run raises an
        `AbortedError`.
        """
        mapped = errors.from_exception(error)
        if mapped is error or self.session.closed:
            return mapped
        with self.lock:
            if self._lost_error is None and self._store is not None:
                self._lost_error = self._store.await_failure()
            if self._lost_error is None:
                return mapped
            self.is_usable = False
            aborted = self._aborted()
            aborted.__cause__ = error
            return aborted

    def _aborted(self) -> errors.AbortedError:
        # The JAX runtime's message may hold a whole traceback, which stays readable on the cause.
        lines = _REPEATED.sub(r"\1", str(self._lost_error)).splitlines() or [repr(self._lost_error)]
        reason = lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}"
        return errors.AbortedError.from_message(
            f"The session is lost: {self._lost_reason} ({reason}). Make a new session and restore a checkpoint; a "
            f"MonitoredSession does so.",
        )

    # State ------------------------------------------------------------------------------------------------------

    @property
    def known_step(self) -> int | None:
        """The global step if the host knows it, without waiting; None if only the device knows it."""
        return (self._store or self.store).known_step()

    @property
    def step_changes(self) -> int:  # type: ignore[override]
        """The number of writes to the global step so far, of any kind."""
        return (self._store or self.store).step_changes

    def step_or_none(self) -> int | None:
        """Returns the global step; None if the graph has none, or it has no value."""
        try:
            return self.store.step() if find_global_step(self.graph) is not None else None
        except errors.FailedPreconditionError:
            return None

    def variables(self, *keys: Any) -> list[Variable]:
        """Returns the graph's variables in some collections; by default all global and local ones."""
        every = keys or (GraphKeys.GLOBAL_VARIABLES, GraphKeys.LOCAL_VARIABLES)
        return [variable for key in every for variable in self.graph.get_collection(key)]

    def values_with_positions(
        self, variables: Iterable[Variable], iterators: Iterable[str]
    ) -> tuple[dict[str, Any], dict[str, Position]]:
        """Returns the values of variables by name, and the positions of iterators.

        The values are not copied. A caller that keeps them must copy them, and must hold the lock until it has.
        """
        with self.lock:
            self.check_usable()
            return self.store.values(variables), self.sources.positions(iterators)

    def borrow_value(self, variable: Variable) -> Any:
        """Returns the value of a variable without a copy: use it before a later run writes the variable."""
        with self.lock:
            self.check_usable()
            (leaves,) = self.store.read_leaves([variable])
            return jax.tree.unflatten(self.store.structure(variable), leaves)

    @contextlib.contextmanager
    def replacing(self, variables: Iterable[Variable]) -> Iterator[Callable[[], None]]:
        """Yields a function that frees the values of variables, before the `with` block loads new ones.

        Two copies of a large model may not fit in memory. From the call of the function to the end of the block no
        other thread can use the session. If the block fails after the values were freed, the session is lost.
        """
        is_free = False

        def forget() -> None:
            nonlocal is_free
            locked.enter_context(self.lock)
            self.check_usable()
            is_free = True  # Also if a Ctrl-C comes while they are freed.
            is_free = self.store.free(variables)

        with contextlib.ExitStack() as locked:
            try:
                yield forget
            except BaseException as error:  # The session is lost: its values are gone.
                if is_free:
                    self._lost_error, self.is_usable = error, False
                    self._lost_reason = "its variables were freed for others, which could not be read"
                raise

    def load(
        self, values: Mapping[str, Any], *, owned: bool = False, positions: Mapping[str, Any] | None = None
    ) -> None:
        """See `Session.load`.

        Args:
            values: New values by variable name.
            owned: Whether the session takes ownership of the arrays: they are not copied, and must not be used again.
            positions: The positions from which iterators continue, by name, from `values_with_positions`.
        """
        arguments.check_mapping("Session.load", "values", values)
        known = {variable.op.name: variable for variable in self.variables()}
        model = {variable.op.name for variable in self.variables(GraphKeys.TRAINABLE_VARIABLES)} or known.keys()
        for name in values:
            if name not in known:
                raise KeyError(f"The graph has no variable {name!r} to load a value into.")
        is_model = model <= values.keys()
        if is_model:
            self.throttle.deliver_pending()
        with self.lock:
            self.check_usable()
            self.store.load({known[name]: value for name, value in values.items()}, owned=owned)
            self.write_count += 1
            if is_model:
                self.throttle.reset()
                self.session.invalid_reason = None
            self.sources.seek(positions or {})

    def source(self, iterator: Source) -> OpenSource:
        """Returns the open source from which the session reads for an iterator's operation."""
        with self.lock:
            self.check_usable()
            return self.sources.open_source(iterator)

    def attach_coordinator(self, coord: Any) -> None:
        """Lets a `Coordinator` stop the threads that prefetch the data of iterators."""
        with self.lock:
            self.sources.attach_coordinator(coord)

    # Shared variables -------------------------------------------------------------------------------------------

    def end_training(self) -> None:
        """Ends the training for all workers that share the variables; returns when their last update is applied."""
        self.store.end_training()

    def publish(self) -> None:
        """Admits the workers that share the variables: the model is ready, or an ended training goes on."""
        self.store.publish()

    def wait_until_ready(self, timeout_secs: float = 0.0) -> bool:
        """Waits until the chief has published the model or the timeout has passed; returns whether it is published.

        If the variables are not shared, it does not wait.
        """
        return self.store.wait_until_ready(timeout_secs)


def call_all(functions: list[Callable[[], None]]) -> None:
    """Calls functions in reverse order, and removes them."""
    while functions:
        functions.pop()()
