"""The interface to stores of variables: the only way in which a session accesses their values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import jax

from hookline.graph.graph import Graph
from hookline.graph.variable import Update, Variable

Leaves = tuple[jax.Array, ...]
"""The arrays of one variable."""


class VariableStore(Protocol):
    """The interface of a session to the store of its variables.

    Values that programs write are in this process (`local`), in the buffers from which the next run takes them. Remote
    variables are read with `read_leaves` and change by `submit`. Only the plan of a run calls `is_remote`.
    """

    @property
    def local(self) -> Any:
        """The `LocalStore` of the variables in this process; itself if it is one."""
        ...

    @property
    def default_sharding(self) -> Any:
        """The sharding of arrays without one of their own (`Graph.default_sharding`); None: JAX or a server chooses."""
        return None

    @property
    def mesh_context(self) -> Any:
        """The mesh context in which programs are traced (`Graph.mesh_context`)."""
        return None

    def read_leaves(self, variables: Iterable[Variable]) -> tuple[Leaves, ...]:
        """Returns the current values of variables, flattened.

        Raises:
            FailedPreconditionError: A variable was never initialised; the message names it.
        """
        ...

    def structure(self, variable: Variable) -> Any:
        """Returns the tree structure of a variable that has a value."""
        ...

    def read_counter(self, variable: Variable) -> int:
        """Returns the value of an integer scalar, from the host's copy if there is one."""
        ...

    def step(self) -> int:
        """Returns the global step."""
        ...

    def known_step(self) -> int | None:
        """Returns the global step if it is known without waiting, else `None`."""
        ...

    def wait_for_step(self, step: int, timeout_secs: float | None) -> int:
        """Waits until the global step is at least `step` or the timeout has passed, and returns it."""
        ...

    def values(self, variables: Iterable[Variable]) -> dict[str, Any]:
        """Returns the values by name, not copied: the next run may donate their memory."""
        ...

    def snapshot(self, variables: Iterable[Variable]) -> dict[str, Any]:
        """Returns a copy of the values by name; the caller owns it."""
        ...

    def load(self, values: Mapping[Variable, Any], *, owned: bool) -> None:
        """Sets variables to concrete values; they are copied unless the caller passes their ownership (`owned`)."""
        ...

    def free(self, variables: Iterable[Variable]) -> bool:
        """Frees the values of variables before others are loaded; returns whether it did."""
        return False

    def uninitialized(self, variables: Iterable[Variable]) -> list[str]:
        """Returns the names of the variables that have no value."""
        ...

    def has_deleted_values(self) -> bool:
        """Returns whether a value in this process was donated to a program that then did not start."""
        return self.local.has_deleted_values()

    def await_failure(self) -> BaseException | None:
        """Waits for the values in this process; returns the error that destroyed one of them, if any."""
        return self.local.await_failure()

    step_changes: int
    """The number of writes to the global step."""

    # For remote stores; the defaults fit a store in this process ------------------------------------------------

    worker_index: int = 0
    """The number of this worker; 0 is the chief."""

    def is_remote(self, variable: Variable) -> bool:
        """Returns whether the variable lives in another process: its updates are submitted and not computed here."""
        return False

    def admit_run(self, updates: Sequence[Update], *, nested: bool) -> AbstractContextManager[None]:
        """Returns the context manager for a run that reads remote variables or submits these updates.

        Entering it may wait until other workers allow the run, so the caller does not hold the session's lock, unless
        the run is `nested` in a host operation of another one.
        """
        return nullcontext()

    def begin_run(self, updates: Sequence[Update]) -> None:
        """Begins such a run; called with the session's lock, inside its `admit_run`."""

    def submit(self, updates: Sequence[tuple[Update, list[Any]]], last_step: int | None) -> bool:
        """Applies updates of remote variables where they live, all of them or none.

        Args:
            updates: Each with the values of its `inputs`; `None` for a variable to be read there, because the update
                comes after another one in the same run.
            last_step: Nothing is applied if the global step is this or more.

        Returns:
            Whether they were applied: `False` only because of `last_step`.

        Raises:
            OutOfRangeError: The training has ended.
        """
        raise AssertionError("no variable of a local store is remote")

    def wait_until_ready(self, timeout_secs: float) -> bool:
        """Waits until the chief has published the model or the timeout has passed; returns whether it has."""
        return True

    def publish(self) -> None:
        """Admits workers: from now on the model can be trained."""

    def end_training(self) -> None:
        """Ends the training for all workers; returns when the last accepted update is applied."""

    def close(self) -> None:
        """Releases its resources."""
        ...


class StoreTarget(Protocol):
    """A value of `Session(target=...)` for variables that live in other processes."""

    def open_store(self, graph: Graph) -> VariableStore:
        """Returns the store of the variables of `graph`."""
        ...

    def hooks(self, summary_dir: str | None) -> list[Any]:
        """Returns the hooks that every process of a training with such variables should have."""
        ...


TARGETS: dict[str, Callable[[str], StoreTarget]] = {}
"""Functions that make targets from strings, by scheme (`scheme://...`)."""


def resolve_target(target: str | StoreTarget) -> StoreTarget | None:
    """Returns the target that a session was given; `None` for this process.

    Raises:
        TypeError: The target is neither a string nor a cluster.
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
            f"give a Cluster (it requires Ray: pip install ray)."
        )
    return make(target)
