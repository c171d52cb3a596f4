"""Where variables live. The session touches their values nowhere else."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from hookline.graph.graph import Graph
from hookline.graph.variable import Update, Variable
from hookline.session.buckets import Bucket, Carrier, Leaves, variables_of

Flat = Sequence[Leaves]


class Exchange(Protocol):
    """The variables of one program in a store: what a run takes out and puts back.

    They come in three groups, as `Program` has them.

    Attributes:
        step: The global step at the last `take`, as far as the host knows it.
    """

    step: int | None

    def take(self) -> tuple[Flat, Flat, Flat]:
        """Returns the values that the program takes, flattened, and notes the `step`.

        Raises:
            FailedPreconditionError: A variable was never initialised.
        """
        ...

    def put(self, new: tuple[Flat, Flat, Flat], structures: Sequence[Any]) -> None:
        """Sets the variables that the program writes, and counts on what counts."""
        ...


class PlainExchange:
    """An exchange that looks each variable up in each run.

    Args:
        store: The store.
        groups: The variables whose values the program takes.
        written: The ones that it writes.
        gains: By how much each of those counts on in a run; None where the host does not know.
        hosted: What the program leaves to the host to count; nothing here.
    """

    def __init__(
        self,
        store: VariableStore,
        groups: Sequence[Sequence[Carrier]],
        written: Sequence[Carrier],
        gains: Sequence[int | None],
        hosted: Mapping[Variable, int],
    ) -> None:
        assert not hosted, "a store that is shared counts on the device"
        self._store, self._gains = store, gains
        self._groups, self._written = [*map(variables_of, groups)], variables_of(written)
        self.step: int | None = None

    def take(self) -> tuple[Flat, Flat, Flat]:
        """Returns the values that the program takes."""
        self.step = self._store.known_step()
        taken, counted, read = [list(self._store.take(variables)) for variables in self._groups]
        return taken, counted, read

    def put(self, new: tuple[Flat, Flat, Flat], structures: Sequence[Any]) -> None:
        """Sets the variables that the program writes."""
        self._store.put(zip(self._written, itertools.chain(*new), structures, self._gains, strict=True))


class VariableStore(Protocol):
    """What a session needs of the place where its variables live.

    A run is an exchange: `take` hands out the values that the run's program reads, `put` takes the new ones and
    advances the counters. The caller holds the session's lock between the two.
    """

    def take(self, variables: Iterable[Any]) -> tuple[Leaves, ...]:
        """Returns the current values of variables, or buckets, flattened.

        Raises:
            FailedPreconditionError: One was never initialised; the message names it.
        """
        ...

    def structure(self, variable: Variable) -> Any:
        """Returns the tree structure of a variable that has a value."""
        ...

    def put(self, values: Iterable[tuple[Variable, Leaves, Any, int | None]]) -> None:
        """Sets variables to (leaves, structure), which the store owns from now on.

        The last item is the amount by which a counter advanced, `None` if the host does not know it.
        """
        ...

    def assign_buckets(self, *together: Sequence[Variable]) -> Mapping[Variable, Bucket]:
        """Decides which of the variables that a new program is given travel together; returns all buckets so far.

        A variable stays in its bucket, or alone, as was decided for the first program that was given it; alone, if it
        had no value then.

        Args:
            *together: Variables that may travel together.
        """
        ...

    def exchange(
        self,
        groups: Sequence[Sequence[Carrier]],
        written: Sequence[Carrier],
        gains: Sequence[int | None],
        hosted: Mapping[Variable, int],
    ) -> Exchange:
        """Returns what `take` and `put` do for the variables of one program; see `PlainExchange`."""
        ...

    def counter(self, variable: Variable) -> int:
        """Returns the value of an integer scalar, from the host's copy where that is known."""
        ...

    def step(self) -> int:
        """Returns the global step."""
        ...

    def known_step(self) -> int | None:
        """Returns the global step if that waits for nothing, else `None`."""
        ...

    def wait_for_step(self, step: int, timeout_secs: float | None) -> int:
        """Blocks until the global step is at least `step` or the time is over, and returns it."""
        ...

    def snapshot(self, variables: Iterable[Variable]) -> dict[str, Any]:
        """Returns a copy of the values by name; the caller owns it."""
        ...

    def load(self, values: Mapping[Variable, Any], *, owned: bool) -> None:
        """Sets variables to concrete values; they are copied unless the caller gives them away (`owned`)."""
        ...

    def uninitialized(self, variables: Iterable[Variable]) -> list[str]:
        """Returns the names of those that have no value."""
        ...

    def destroyed(self) -> bool:
        """Whether the memory of some value was given to a program that then did not start."""
        ...

    def broken(self) -> BaseException | None:
        """Waits for the values and returns the error that destroyed one of them, if any."""
        ...

    step_changes: int
    """How often the global step was written."""

    # Where variables live elsewhere -----------------------------------------------------------------------------

    shared: bool
    """Whether others may change the variables."""

    @property
    def worker_index(self) -> int:
        """The number of this worker; 0 is the chief."""
        ...

    def is_remote(self, variable: Variable) -> bool:
        """Whether the variable lives elsewhere: its updates are submitted and not computed here."""
        ...

    def turn(self, updates: Sequence[Update], *, nested: bool) -> AbstractContextManager[None]:
        """Returns the context manager that must enclose a run that reads remote variables or submits these updates.

        Entering it may wait until other workers allow the run, so the caller does not hold the session's lock; unless
        the run is `nested` in a host operation of another one.
        """
        ...

    def begin_run(self, updates: Sequence[Update]) -> None:
        """Takes note that such a run begins; with the lock, inside its `turn`."""
        ...

    def submit(self, updates: Sequence[tuple[Update, list[Any]]], last_step: int | None) -> bool:
        """Applies updates of remote variables where they live, all of them or none.

        Args:
            updates: Each with the concrete values of its `inputs`; `None` for a variable that is to be read there,
                because the update comes after another one in the same run.
            last_step: Nothing is applied if the global step is this or more.

        Returns:
            Whether they were applied: `False` only because of `last_step`.

        Raises:
            OutOfRangeError: The training has ended.
        """
        ...

    def wait_until_ready(self, timeout_secs: float) -> bool:
        """Blocks until the chief has published the model or the time is over, and returns whether it has."""
        ...

    def publish(self) -> None:
        """Lets workers in: the model can be trained from here on."""
        ...

    def seal(self) -> None:
        """Ends the training for all workers: returns when the last accepted update is applied."""
        ...

    def close(self) -> None:
        """Lets go of what it holds."""
        ...


class StoreTarget(Protocol):
    """What `Session(target=...)` takes for variables that live elsewhere."""

    def open_store(self, graph: Graph) -> VariableStore:
        """Returns the store of the variables of `graph`."""
        ...

    def hooks(self, summary_dir: str | None) -> list[Any]:
        """Returns the hooks that every process of a training with such variables should have."""
        ...


TARGETS: dict[str, Callable[[str], StoreTarget]] = {}
"""What a target means that is a string, by its scheme (`scheme://...`)."""


def resolve_target(target: str | StoreTarget) -> StoreTarget | None:
    """Returns what a session's target means; `None` for this process.

    Raises:
        TypeError: It is neither a string nor a cluster.
        ValueError: Nothing is registered for the target's scheme.
    """
    if not isinstance(target, str):
        if not hasattr(target, "open_store"):
            advice = "give a graph as graph=..." if isinstance(target, Graph) else "'' is this process"
            raise TypeError(
                f"Session: target must be a string or a hookline.distributed.Cluster, got {target!r}; {advice}."
            )
        return target
    if not target:
        return None
    make = TARGETS.get(target.partition("://")[0])
    if make is None:
        raise ValueError(
            f"Session: target {target!r} is not known. Use '' for this process, or import hookline.distributed and "
            f"give a Cluster (pip install hookline[ray])."
        )
    return make(target)
