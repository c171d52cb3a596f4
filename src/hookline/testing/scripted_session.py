"""ScriptedSession: stands in for a raw session, and follows a script."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

from hookline import arguments, errors
from hookline.graph import Graph
from hookline.session import LateResults, RunMetadata, RunOptions, SessionConfig, Watched
from hookline.session.fetches import mapped
from hookline.session.run_ahead import RunAhead


class Asked(NamedTuple):
    """The request of one run of a `ScriptedSession`.

    Args:
        fetches: The caller's fetches.
        watched: What each hook asked for; empty for a plain `run`.
        feed_dict: The feeds, as given.
        options: The options, as given.
        run_metadata: The metadata object, as given.
    """

    fetches: Any
    watched: tuple[Any, ...] = ()
    feed_dict: Mapping[Any, Any] | None = None
    options: RunOptions | None = None
    run_metadata: RunMetadata | None = None


class ScriptedSession:
    """A raw session without an engine: each run returns or raises what the script says.

    Give it to a `SessionCreator` of your test to see how hooks and monitored sessions behave when things go wrong.

    Args:
        script: What the runs do, in order. An exception is raised, and anything else is returned; None stands for the
            values of the fetches. After the end of the script, every run behaves as with None.
        values: The values of possible fetches, by tensor, operation or name; others are None.
        graph: The graph; an empty one if None.
        global_step: The global step at the start; None for a session without one.
        gain: The number of steps that a successful run adds.
        closing_raises: What `close` raises, if anything.

    Attributes:
        asked: The request of each run, even of those that raised.
        closed: Whether `close` was called.
        origin: Where its values come from, in words; see `Session`.

    Example:
        >>> session = ScriptedSession([None, errors.AbortedError(None, None, "preempted")], values={"loss:0": 0.5})
        >>> session.run(["loss:0"]), session.global_step
        ([0.5], 1)
        >>> session.run("train_op")
        Traceback (most recent call last):
        ...
        hookline.errors.AbortedError: preempted
        >>> session.asked[1].fetches
        'train_op'
    """

    def __init__(
        self,
        script: Iterable[Any] = (),
        *,
        values: Mapping[Any, Any] | None = None,
        graph: Graph | None = None,
        global_step: int | None = 0,
        gain: int = 1,
        closing_raises: BaseException | None = None,
    ) -> None:
        self.graph = arguments.instance("ScriptedSession", "graph", graph, Graph) or Graph()
        self.asked: list[Asked] = []
        self.closed = False
        self.origin = ""
        self.writes = self.alarms = 0
        self.fault: Any = None
        self.ahead = RunAhead(SessionConfig().max_runs_ahead)  # Of no device.
        self.step_limit: int | None = None
        self.hook_data: dict[Any, Any] = {}
        self.expects_steps = False
        self.hook_states: Any = dict
        self.restored_hook_states: dict[str, Any] = {}
        self._script = iter(arguments.having("ScriptedSession", "script", script, "a list", "__iter__"))
        self._values = dict(arguments.mapping("ScriptedSession", "values", values, optional=True) or {})
        self._global_step = global_step
        self._gain = gain
        self._closing_raises = closing_raises

    @property
    def known_global_step(self) -> int | None:
        """The global step, which is always known here."""
        return self._global_step

    @property
    def step_changes(self) -> int:
        """Always 0, because the step is always known."""
        return 0

    def settle(self) -> None:
        """Nothing to look at."""

    def prepared(self, fetches: Any, watched: Any) -> None:
        """There is no short way: each run is asked for."""

    def step_gain(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> int | None:
        """The gain, whatever is fetched; None without a global step."""
        return None if self._global_step is None else self._gain

    def limit_step(self, last_step: int | None, owner: object = None) -> None:
        """Notes the limit in `step_limit`."""
        self.step_limit = last_step

    def condemn(self, error: BaseException) -> None:
        """Notes the error in `fault`."""
        self.fault = error

    def latched(self, operation: Any, *, wait: bool = False) -> None:
        """No condition has held."""

    @property
    def shared(self) -> bool:
        """False: nobody else changes its variables."""
        return False

    def seal(self) -> None:
        """Does nothing: there are no other workers."""

    def serve(self, coord: Any) -> None:
        """Does nothing: it has no iterators."""

    @property
    def global_step(self) -> int:
        """The global step; `RuntimeError` without one."""
        if self._global_step is None:
            raise RuntimeError("This ScriptedSession has no global step.")
        return self._global_step

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> Any:
        """Does what the script says, and records the request."""
        return self._run(Asked(fetches, (), feed_dict, options, run_metadata))[0]

    def run_watched(
        self,
        fetches: Any,
        watched: tuple[Any, ...] | Watched,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> tuple[Any, tuple[Any, ...]]:
        """Like `run`, but also returns the values that the hooks asked for."""
        asked, late = (watched.fetches, watched.late) if isinstance(watched, Watched) else (watched, ())
        result, results = self._run(Asked(fetches, asked, feed_dict, options, run_metadata))
        return result, tuple(LateResults.of(item) if i in late else item for i, item in enumerate(results))

    def expect(self, watched: Any) -> list[int]:
        """Takes what hooks may fetch, and makes nothing of it: everything is there."""
        return []

    def load(self, values: Mapping[str, Any]) -> None:
        """Sets the global step if `values` has one, and forgets the rest."""
        self._global_step = values.get("global_step", self._global_step)

    def map_error(self, exc: BaseException) -> BaseException:
        """Maps errors of the engine, as a session does."""
        return errors.from_exception(exc)

    def close(self) -> None:
        """Notes that it was called."""
        self.closed = True
        if self._closing_raises is not None:
            raise self._closing_raises

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, asked: Asked) -> tuple[Any, tuple[Any, ...]]:
        if self.closed:
            raise RuntimeError("Attempted to use a closed Session.")
        self.asked.append(asked)
        outcome = next(self._script, None)
        if isinstance(outcome, BaseException):
            raise outcome
        if self._global_step is not None:
            self._global_step += self._gain
        watched = tuple(self._value(fetches) for fetches in asked.watched)
        return (self._value(asked.fetches) if outcome is None else outcome), watched

    def _value(self, fetches: Any) -> Any:
        return mapped(fetches, self._values.get)
