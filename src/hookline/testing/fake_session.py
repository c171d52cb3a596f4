"""FakeSession: a raw session for tests, which returns given results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from hookline import arguments
from hookline.graph import Graph
from hookline.session import Backend, HookFetches, RawSession, RunMetadata, RunOptions, hook_results
from hookline.session.plan.fetches import map_fetches


class RunRequest(NamedTuple):
    """The request of one run of a `FakeSession`.

    Args:
        fetches: The caller's fetches.
        hook_fetches: The fetches of each hook; empty for a plain `run`.
        feed_dict: The feeds, as given.
        options: The options, as given.
        run_metadata: The metadata object, as given.
    """

    fetches: Any
    hook_fetches: tuple[Any, ...] = ()
    feed_dict: Mapping[Any, Any] | None = None
    options: RunOptions | None = None
    run_metadata: RunMetadata | None = None


class FakeSession(RawSession, Backend):
    """A raw session that computes nothing: each run returns or raises the next given result.

    Return it from a `SessionCreator` of your test to see how hooks and monitored sessions react to failures.

    Args:
        results: The results of the runs, in order. An exception is raised; for None the run returns the `values` of its
            fetches; anything else is returned. Runs after the last result behave as with None.
        values: The values of fetches, by tensor, operation or name; other fetches are None.
        graph: The graph; an empty one if None.
        global_step: The global step at the start; None for a session without one.
        step_increment: The increase of the global step in a successful run.
        closing_raises: The exception that `close` raises, or None.

    Attributes:
        requests: The request of each run, also of one that raised.
        closed: Whether `close` was called.
        origin: A description of where its values come from; see `Session`.

    Example:
        >>> from hookline import errors
        >>> session = FakeSession([None, errors.AbortedError(None, None, "preempted")], values={"loss:0": 0.5})
        >>> session.run(["loss:0"]), session.global_step
        ([0.5], 1)
        >>> session.run("train_op")
        Traceback (most recent call last):
        ...
        hookline.errors.AbortedError: preempted
        >>> session.requests[1].fetches
        'train_op'
    """

    def __init__(
        self,
        results: Iterable[Any] = (),
        *,
        values: Mapping[Any, Any] | None = None,
        graph: Graph | None = None,
        global_step: int | None = 0,
        step_increment: int = 1,
        closing_raises: BaseException | None = None,
    ) -> None:
        super().__init__(arguments.check_optional("FakeSession", "graph", graph, Graph) or Graph())
        Backend.__init__(self, self)
        self.backend = self
        self.requests: list[RunRequest] = []
        self._results = iter(arguments.check_has("FakeSession", "results", results, "a list", "__iter__"))
        self._values = dict(arguments.check_mapping("FakeSession", "values", values, optional=True) or {})
        self._global_step = global_step
        self._step_increment = step_increment
        self._closing_raises = closing_raises

    @property
    def global_step(self) -> int:
        """The global step; `RuntimeError` without one."""
        return super().global_step if self._global_step is None else self._global_step

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> Any:
        """Records the request, and returns or raises the next result."""
        return self._run(RunRequest(fetches, (), feed_dict, options, run_metadata))[0]

    def run_with_hook_fetches(
        self,
        fetches: Any,
        hook_fetches: HookFetches,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> tuple[Any, tuple[Any, ...]]:
        """Does the same as `run`, and returns the results of the hooks as well."""
        result, results = self._run(RunRequest(fetches, hook_fetches.fetches, feed_dict, options, run_metadata))
        return result, hook_results(hook_fetches, results)

    def step_delta(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> int | None:
        """Returns `step_increment`, for any fetches; None without a global step."""
        return None if self._global_step is None else self._step_increment

    def load(self, values: Mapping[str, Any]) -> None:
        """Sets the global step if `values` has one, and ignores the rest."""
        self._global_step = values.get("global_step", self._global_step)

    def close(self) -> None:
        """Sets `closed`, and raises `closing_raises` if it was given."""
        self.closed = True
        if self._closing_raises is not None:
            raise self._closing_raises

    def _run(self, asked: RunRequest) -> tuple[Any, tuple[Any, ...]]:
        if self.closed:
            raise RuntimeError("Attempted to use a closed Session.")
        self.requests.append(asked)
        outcome = next(self._results, None)
        if isinstance(outcome, BaseException):
            raise outcome
        if self._global_step is not None:
            self._global_step += self._step_increment
        watched = tuple(self._value(fetches) for fetches in asked.hook_fetches)
        return (self._value(asked.fetches) if outcome is None else outcome), watched

    def _value(self, fetches: Any) -> Any:
        return map_fetches(fetches, self._values.get)
