"""The session: compiles and runs parts of a graph."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hookline import arguments, errors
from hookline.graph.front_end import FrontEndObject
from hookline.graph.graph import Graph, Operation, get_default_graph
from hookline.graph.registry import GraphKeys
from hookline.graph.variable import Variable
from hookline.session.options import RunMetadata, RunOptions, SessionConfig
from hookline.session.plan.feeds import iter_feeds
from hookline.session.raw_session import RawSession
from hookline.session.running.session_backend import SessionBackend, call_all
from hookline.session.store import StoreTarget, resolve_target


class Session(FrontEndObject, RawSession):
    """Runs a graph and keeps the values of its variables.

    `run` compiles the operations that the fetches need into one program, caches it, and returns without waiting for the
    device: results are `jax.Array`s, which wait when they are read. It may be called from several threads; a host
    operation runs in one of them at a time.

    Args:
        target: The location of the variables: empty for this process, or a `hookline.distributed.Cluster`, or its
            `target`.
        graph: The graph to run; by default the default graph.
        config: Its configuration; by default `SessionConfig()`.

    Attributes:
        graph: The graph that it runs.
        closed: Whether `close` was called.
        backend: Its backend, for experts: a `SessionBackend`.
        origin: The origin of its variables' values, in words, if a `SessionManager` made it.
        invalid_reason: The reason why the state is not worth a last checkpoint: the latest error of a
            `hookline.extend.Check` since the model was loaded, or the argument of `mark_invalid`; else None.
        hook_data: Data that hooks share on this session, each kind under a key of its own.
        step_limit: The smallest limit set by `set_last_step`; None without one.

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
        arguments.check_optional("Session", "config", config, SessionConfig)
        arguments.check_optional("Session", "graph", graph, Graph)
        super().__init__(graph or get_default_graph())
        self.backend = backend = SessionBackend(self, resolve_target(target), config or SessionConfig())
        self._contexts: list[Any] = []
        weakref.finalize(self, call_all, backend.close_callbacks).atexit = False

    @classmethod
    def _graph_for(cls, target: Any = "", graph: Any = None, *args: Any, **kwargs: Any) -> Graph:
        return graph if isinstance(graph, Graph) else get_default_graph()

    # Lifecycle --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Frees the variables. A later run raises `RuntimeError`; closing again does nothing.

        Raises:
            InvalidArgumentError: A check failed, as in `deliver_pending`. The session is closed anyway.
        """
        try:
            self.backend.close()
        finally:
            self.hook_data.clear()

    def __enter__(self) -> Session:
        if self._contexts:
            raise RuntimeError("The session was entered already; its `with` block ends it, so it has only one.")
        self.backend.check_usable()
        context = self.graph.as_default()
        context.__enter__()
        self._contexts.append(context)
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._contexts.pop().__exit__(*exc_info)
        try:
            self.close()
        except errors.InvalidArgumentError as failure:
            _, leaving, _ = exc_info
            # The end of the input is no error, so the failed check is raised.
            if leaving is None or isinstance(leaving, errors.END_OF_INPUT):
                raise
            leaving.add_note(f"While leaving the session: {failure}")

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
            options: Options of the run.
            run_metadata: Filled in with facts about the run.

        Returns:
            The values in the structure of `fetches`: `jax.Array`s, for host operations their results, for integer
            scalar variables such as the global step NumPy integers, for operations `None`.

        Raises:
            TypeError, ValueError: Something cannot be fetched or fed.
            InvalidArgumentError: A fed value has a wrong shape or kind, or a placeholder is not fed.
            FailedPreconditionError: A variable has no value.
            OutOfRangeError: The input has ended.
            AbortedError: The session is lost.
            RuntimeError: The session is closed.
        """
        if run_metadata is not None:
            arguments.check_optional("Session.run", "run_metadata", run_metadata, RunMetadata)
        return self.backend.run_with_hook_fetches(fetches, None, feed_dict, options, run_metadata)[0]

    def make_callable(
        self, fetches: Any, feed_list: Sequence[Any] | None = None, accept_options: bool = False
    ) -> Callable[..., Any]:
        """Returns a function that runs these fetches, planned once; it takes the values to feed as arguments.

        Args:
            fetches: As in `run`.
            feed_list: Keys of a `feed_dict`, in the order in which the function takes their values.
            accept_options: Whether the function takes `options` and `run_metadata` by name, too.

        Returns:
            The function. It returns and raises the same as `run`.

        Raises:
            TypeError: `feed_list` is not a list, or something cannot be fetched or fed.
            ValueError: Something belongs to another graph, or is fed twice.
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
        tensors = [tensor for key in keys for tensor, _ in iter_feeds(key, key)]
        if len(set(tensors)) < len(tensors):
            raise ValueError(f"Session.make_callable: feed_list contains a tensor twice: {feed_list!r}.")
        backend = self.backend
        step = backend.find_step(fetches, dict.fromkeys(tensors))
        run = step.run if step.is_program else step.run_staged

        def call(*values: Any, options: RunOptions | None = None, run_metadata: RunMetadata | None = None) -> Any:
            if len(values) != len(keys):
                raise TypeError(f"The callable takes {len(keys)} values, one for each of feed_list, got {len(values)}.")
            if keys != tensors:
                pairs = zip(keys, values, strict=True)
                values = tuple(part for key, value in pairs for _, part in iter_feeds(key, value))
            if options is not None or run_metadata is not None:
                return self.run(fetches, dict(zip(tensors, values, strict=True)), options, run_metadata)
            backend.check_usable()
            return run(values)[0]

        return call if accept_options else lambda *values: call(*values)

    # The state --------------------------------------------------------------------------------------------------

    @property
    def global_step(self) -> int:
        """The current global step; reading it is free, and does not wait for the device if the host can count it.

        Raises:
            RuntimeError: The graph has no global step.
        """
        step = self.backend.known_step
        return self.backend.store.step() if step is None else step

    def wait_for_step(self, step: int, timeout_secs: float | None = None) -> int:
        """Waits until the global step is at least `step`, or the timeout has passed, and returns the global step."""
        return self.backend.store.wait_for_step(step, timeout_secs)

    def latched(self, operation: Operation, *, wait: bool = False) -> int | None:
        """Returns the global step after the first run in which the condition of a `hookline.latch` held.

        Args:
            operation: The latch.
            wait: Whether to wait for all runs so far. Otherwise the result is the latest known: the session polls its
                latches before it is `SessionConfig.max_runs_ahead` runs ahead of the last poll.

        Returns:
            The global step; None if the condition did not hold in the runs polled so far. In a graph without a global
            step, the number of the run, from 1 on.

        Raises:
            TypeError: The operation is not a latch.
        """
        return self.backend.throttle.latched(operation, wait)

    def deliver_pending(self) -> None:
        """Waits for the runs so far, and raises the error of a check that failed in them.

        It is called before a checkpoint is written, before the `end` of hooks, and when the session is closed. It costs
        nothing if no operation has a `hookline.extend.Check`. Each failure is raised once.

        Raises:
            InvalidArgumentError: An operation was given invalid input. The error names the operation.
        """
        self.backend.throttle.deliver_pending()

    def wait_for_device(self) -> None:
        """Waits until the device has computed the runs so far: a save or an evaluation is not charged for their time.

        An error of the device is raised by what comes next.
        """
        self.backend.store.await_failure()

    def snapshot(self, variables: Iterable[Variable] | None = None) -> dict[str, Any]:
        """Returns a copy of the values of variables, all from the same moment, by name.

        Args:
            variables: By default all global variables of the graph.
        """
        backend = self.backend
        if variables is None:
            variables = backend.variables(GraphKeys.GLOBAL_VARIABLES)
        with backend.lock:
            backend.check_usable()
            return backend.store.snapshot(variables)

    def load(self, values: Mapping[str, Any]) -> None:
        """Sets variables to concrete values, all of them or none.

        Args:
            values: New values by variable name (`"weights"`), with the structure, shapes and kinds of dtype of the
                variables.

        Raises:
            KeyError: No variable has one of the names.
            ValueError: A value does not fit its variable.
            InvalidArgumentError: A check failed, as in `deliver_pending`; only if all trained variables are set.
        """
        self.backend.load(values)

    def uninitialized(self, variables: Iterable[Variable] | None = None) -> list[str]:
        """Returns the names of the variables (by default all global and local ones) that have no value."""
        backend = self.backend
        return backend.store.uninitialized(backend.variables() if variables is None else variables)
