"""The interface between monitored and raw sessions, with defaults for a session without shared variables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from hookline import arguments, errors
from hookline.graph.graph import Graph, Operation
from hookline.session.activity import Activity
from hookline.session.options import RunMetadata, RunOptions
from hookline.session.plan.request import HookFetches
from hookline.session.plan.result_readers import DeferredResults


class RawSession:
    """A session without hooks, as a `SessionCreator` returns it. `Session` is one; so is `testing.FakeSession`.

    A subclass defines `run`, and `global_step` if it counts steps. It may define `close`, and set `backend` to a
    `Backend` of its own for more. In a run in which hooks fetch something, `fetches` is a list of two: the caller's
    fetches, and a list with the fetches of each hook. The result of `run` has the structure of its fetches.

    Args:
        graph: The graph that it runs.

    Attributes:
        graph: As above.
        closed: Whether `close` was called.
        backend: The interface for monitored sessions.
        origin: The origin of its variables' values, in words, if a `SessionManager` made it.
        hook_data: Data that hooks share on this session, each kind under a key of its own.
        invalid_reason: The reason why the state is not worth a last checkpoint: the latest error of a
            `hookline.extend.Check` since the model was loaded, or the argument of `mark_invalid`; else None.
        step_limit: The smallest limit set by `set_last_step`; None without one.
        stop_reason: Why the monitored session ends, for `end` and `on_exception` of hooks; None before that.
        activity: What it does while it makes no steps, for the account of a run.

    Example:
        >>> import jax
        >>> class Counting(RawSession):
        ...     step = 0
        ...     def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        ...         self.step += 1
        ...         return jax.tree.map(lambda name: None if name == "train" else self.step, fetches)
        ...     @property
        ...     def global_step(self):
        ...         return self.step
        >>> session = Counting(Graph())
        >>> session.run("train"), session.global_step, session.backend.known_step
        (None, 1, 1)
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.closed = False
        self.origin = ""
        self.hook_data: dict[Any, Any] = {}
        self.invalid_reason: BaseException | None = None
        self._last_invalid_write = 0
        self.step_limit: int | None = None
        self.stop_reason: str | None = None
        self.activity = Activity()
        self._step_limits: dict[int, int] = {}
        self.backend: Any = Backend(self)

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> Any:
        """Runs the part of the graph that the fetches need and returns their values; see `Session.run`."""
        raise NotImplementedError

    @property
    def global_step(self) -> int:
        """The global step now.

        Raises:
            RuntimeError: The session has no global step.
        """
        raise RuntimeError(f"{type(self).__name__} has no global step.")

    def latched(self, operation: Operation, *, wait: bool = False) -> int | None:
        """Returns the global step after the first run in which the condition of a `hookline.latch` held."""
        return None

    def deliver_pending(self) -> None:
        """Waits for the runs so far, and raises the error of a check that failed in them."""

    def mark_invalid(self, error: BaseException, *, more_runs: int = 0) -> None:
        """Marks the state as not worth a last checkpoint, until the model is loaded again; for hooks.

        Args:
            error: The reason, such as a NaN in the variables. It is not raised here.
            more_runs: How many further runs may be under way. After more than these the script has decided to continue,
                and its checkpoints are written again.
        """
        self.invalid_reason, self._last_invalid_write = error, self.backend.write_count + more_runs

    @property
    def is_invalid(self) -> bool:
        """Whether the state is marked as invalid, and the script has not continued since."""
        return self.invalid_reason is not None and self.backend.write_count <= self._last_invalid_write

    def set_last_step(self, last_step: int | None, owner: object = None) -> None:
        """Limits every run under hooks, as `RunOptions(last_step=...)` limits one; the smallest limit holds.

        Call it in a hook's `after_create_session`: a session that a recovery makes has no limit yet. A hook limits the
        session only if it is in the session's list of hooks. The limit of a hook inside another hook has no effect,
        because the outer one may ignore its request to stop.

        Args:
            last_step: The updates of a run are not applied if the global step is this or more when it begins. None
                removes the limit of `owner`.
            owner: The owner of the limit, such as the hook, which replaces its earlier one; a limit without an owner is
                permanent.

        Raises:
            TypeError: `last_step` is not a whole number.
        """
        limits, key = self._step_limits, id(owner)
        if last_step is None or not self.backend.can_limit_step(owner):
            limits.pop(key, None)
        else:
            arguments.check_int("Session.set_last_step", "last_step", last_step)
            limits[key] = last_step if owner is not None else min(last_step, limits.get(key, last_step))
        self.step_limit = min(limits.values(), default=None)

    def last_step_of(self, owner: object) -> int | None:
        """Returns the limit that `set_last_step` set for an owner; None without one, or if it has no effect."""
        return self._step_limits.get(id(owner))

    def close(self) -> None:
        """Ends the session; a second call does nothing."""
        self.closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.close()


class Backend:
    """The backend of a raw session, for monitored sessions; savers need a `SessionBackend`.

    The defaults fit a session that defines only `RawSession.run`, and shares no variables.

    Args:
        session: The session.

    Attributes:
        session: As above.
        shared: Whether other processes may change its variables, because they live on parameter servers.
        write_count: The number of runs and loads that have changed variables. If a session does not count them, a
            failed run is assumed to have changed nothing, and the last state may be saved.
        latched_count: The number of latches that are known to be set.
        step_changes: The number of writes to the global step, of any kind.
        expects_steps: Whether the global step should advance, so that the monitored session warns if it does not; for
            hooks whose trigger does not imply it.
        can_limit_step: Returns whether an owner may limit the steps of runs.
        hook_states: Returns the states of hooks, when the whole model is saved.
        restored_hook_states: The states of hooks in the checkpoint that was restored.
        restored: The checkpoint that was restored last, and the names of its variables in the graph.
    """

    shared = False
    write_count = latched_count = step_changes = 0

    def __init__(self, session: RawSession) -> None:
        self.session = session
        self.expects_steps = False
        self.can_limit_step: Callable[[Any], bool] = lambda owner: True
        self.hook_states: Callable[[], Mapping[str, Any]] = dict
        self.restored_hook_states: dict[str, Any] = {}
        self.restored: tuple[str, frozenset[str]] = ("", frozenset())

    def declare_hook_fetches(self, hook_fetches: Iterable[Any]) -> list[int]:
        """Declares all fetches of hooks, so that all runs with hook fetches share one program from the start.

        Args:
            hook_fetches: For each hook a fetch structure.

        Returns:
            The indices of fetches that are not in the graph; they are ignored.
        """
        return []

    def run_with_hook_fetches(
        self,
        fetches: Any,
        hook_fetches: HookFetches,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> tuple[Any, tuple[Any, ...]]:
        """Runs the fetches of the caller and of hooks together; returns the results of both."""
        asked = [fetches, [[] if one is None else one for one in hook_fetches.fetches]]
        found = self.session.run(asked, feed_dict, options, run_metadata)
        if not isinstance(found, list | tuple) or len(found) != 2 or len(found[1]) != len(asked[1]):
            raise TypeError(f"{type(self.session).__name__}.run must return the structure of {asked!r}, got {found!r}.")
        return found[0], hook_results(hook_fetches, found[1])

    def cached_step(self, fetches: Any, hook_fetches: HookFetches | None = None, max_steps: int = 1) -> Any:
        """Returns a `CachedStep` that makes these runs, up to `max_steps` of them in one dispatch.

        Returns:
            None if there is none, or if a single run needs more than a program.

        Raises:
            ValueError: The session cannot make several steps of these fetches in one run.
        """
        if max_steps == 1:
            return None
        raise ValueError(
            f"steps_per_run={max_steps} needs a session that makes several steps in one run, and a "
            f"{type(self.session).__name__} does not. Leave out steps_per_run."
        )

    def step_delta(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> int | None:
        """Returns the increase of the global step in a run of these fetches; None if it is not known in advance."""
        return None

    @property
    def known_step(self) -> int | None:
        """The global step if it is known without waiting; else None."""
        try:
            return self.session.global_step
        except RuntimeError:
            return None

    def map_error(self, error: BaseException) -> BaseException:
        """Returns the error of `hookline.errors` for an error of the JAX runtime; other errors as they are."""
        return errors.from_exception(error)

    def attach_coordinator(self, coord: Any) -> None:
        """Lets a `Coordinator` stop the threads that prefetch data."""

    def end_training(self) -> None:
        """Ends the training for all workers that share the variables."""


def hook_results(hook_fetches: HookFetches, results: Iterable[Any]) -> tuple[Any, ...]:
    """Returns the results as hooks get them: None if a hook fetches nothing, `DeferredResults` if they are deferred."""
    pairs = enumerate(zip(hook_fetches.fetches, results, strict=True))
    given = ((i, None if asked is None else result) for i, (asked, result) in pairs)
    return tuple(DeferredResults.of(result) if i in hook_fetches.deferred else result for i, result in given)
