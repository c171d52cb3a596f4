"""What a monitored session needs of a raw one: the protocol, with what holds for a session that is alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from hookline import arguments, errors
from hookline.graph.graph import Graph, Operation
from hookline.session.compilation import CompilationLog
from hookline.session.late import LateResults
from hookline.session.options import RunMetadata, RunOptions
from hookline.session.watched import Watched


class RawSession:
    """A session without hooks, as a `SessionCreator` returns it. `Session` is one; so is `testing.ScriptedSession`.

    One of your own defines `run`, and `global_step` if it counts. It may define `close`. What it can do beside, it says
    in a `LowLevel` of its own. In a run in which hooks fetch something `fetches` is a list of two: what the caller
    fetches, and a list with what each hook does. What `run` returns has the structure of its fetches.

    Args:
        graph: What it runs.

    Attributes:
        graph: As above.
        closed: Whether `close` was called.
        lowlevel: What monitored sessions use beside.
        origin: Where the values of its variables come from, in words, where a `SessionManager` made it.
        hook_data: What hooks share on this session, each kind under a key of its own.
        fault: Why the state is not worth a last checkpoint: the latest error of an operation that was given what it
            must not be since the model was loaded, or what `condemn` was given; else None.
        step_limit: The smallest limit of `limit_step`; None without one.

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
        >>> session.run("train"), session.global_step, session.lowlevel.known_step
        (None, 1, 1)
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.closed = False
        self.origin = ""
        self.hook_data: dict[Any, Any] = {}
        self.fault: BaseException | None = None
        self.step_limit: int | None = None
        self._step_limits: dict[int, int] = {}
        self.lowlevel: Any = LowLevel(self)

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
            RuntimeError: There is none.
        """
        raise RuntimeError(f"{type(self).__name__} has no global step.")

    def latched(self, operation: Operation, *, wait: bool = False) -> int | None:
        """Returns the global step to which the first run led in which the condition of a `hookline.latch` held."""
        return None

    def settle(self) -> None:
        """Waits for the runs so far, and raises what an operation was given in them that it must not be."""

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

    def step_limit_of(self, owner: object) -> int | None:
        """Returns the limit that `limit_step` set for an owner; None without one."""
        return self._step_limits.get(id(owner))

    def close(self) -> None:
        """Ends it; again does nothing."""
        self.closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.close()


class LowLevel:
    """What monitored sessions use of a raw session, beside what users and hooks see of it; savers need an `Engine`.

    The defaults are those of a session that has nothing but `RawSession.run`, and its variables for itself.

    Args:
        session: The session.

    Attributes:
        session: As above.
        compilations: Its compilations so far; None of a session that says nothing of them.
        shared: Whether others may change its variables: they live on parameter servers.
        writes: How many runs and loads have changed variables. Where nobody counts them, a run that fails is taken for
            one that has changed nothing, and the last state may be saved.
        alarms: How many latches are known to have latched.
        step_changes: How often the global step has been written, by whatever way.
        expects_steps: Whether the global step ought to move, so that the monitored session says where it does not; for
            hooks whose trigger does not show it.
        hook_states: Returns what hooks keep, when the whole model is saved.
        restored_hook_states: What a checkpoint held of it when it was restored.
    """

    compilations: CompilationLog | None = None
    shared = False
    writes = alarms = step_changes = 0

    def __init__(self, session: RawSession) -> None:
        self.session = session
        self.expects_steps = False
        self.hook_states: Callable[[], Mapping[str, Any]] = dict
        self.restored_hook_states: dict[str, Any] = {}

    def expect(self, watched: Iterable[Any]) -> list[int]:
        """Says what hooks may ever fetch, so that the runs that they watch share one program from the start.

        Args:
            watched: For each hook a fetch structure.

        Returns:
            The places of those that are not in the graph; they are passed over.
        """
        return []

    def run_watched(
        self,
        fetches: Any,
        watched: Watched,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> tuple[Any, tuple[Any, ...]]:
        """Runs, with the fetches of hooks beside those of the caller; returns the results of both."""
        asked = [fetches, [[] if one is None else one for one in watched.fetches]]
        found = self.session.run(asked, feed_dict, options, run_metadata)
        if not isinstance(found, list | tuple) or len(found) != 2 or len(found[1]) != len(asked[1]):
            raise TypeError(f"{type(self.session).__name__}.run must return the structure of {asked!r}, got {found!r}.")
        return found[0], answers(watched, found[1])

    def plans(self) -> Any:
        """Returns a copy of the `PlanCache`, to look up the programs of runs that are not made; None without one."""
        return None

    def cached_step(self, fetches: Any, watched: Watched | None = None) -> Any:
        """Returns what makes the run again in one call, a `CachedStep`; None where nothing does."""
        return None

    def repeated_step(self, fetches: Any, watched: Watched | None, capacity: int) -> Any:
        """Returns what makes up to `capacity` of these runs at once, a `RepeatedStep`.

        Raises:
            ValueError: Nothing does.
        """
        raise ValueError(
            f"steps_per_run={capacity} needs a session that makes several steps in one run, and a "
            f"{type(self.session).__name__} does not. Leave out steps_per_run."
        )

    def gain(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> int | None:
        """Returns by how much a run of these fetches advances the global step; None if that is not known before."""
        return None

    @property
    def known_step(self) -> int | None:
        """The global step where looking at it waits for nothing; else None."""
        try:
            return self.session.global_step
        except RuntimeError:
            return None

    def map_error(self, error: BaseException) -> BaseException:
        """Returns the error of `hookline.errors` that an error of the engine means; other errors as they are."""
        return errors.from_exception(error)

    def measure(self, waits: Callable[[Any], Any], reads: Callable[[Any], Any]) -> None:
        """Has a wrapper around what waits for the device, and another one around what waits for batches."""

    def serve(self, coord: Any) -> None:
        """Lets the threads that read data ahead stop with a `Coordinator`."""

    def seal(self) -> None:
        """Ends the training for all workers that share the variables."""


def answers(watched: Watched, results: Iterable[Any]) -> tuple[Any, ...]:
    """Returns the results of hooks as they are given to them: None for none, and as `LateResults` where asked so."""
    pairs = enumerate(zip(watched.fetches, results, strict=True))
    given = ((i, None if asked is None else result) for i, (asked, result) in pairs)
    return tuple(LateResults.of(result) if i in watched.late else result for i, result in given)
