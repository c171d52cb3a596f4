"""InMemoryCheckpoint: keeps a training between two sessions; StateValues: reads and sets the state in a session."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from hookline import log, paths
from hookline.checkpoint.directory.manifest import Lineage
from hookline.checkpoint.saving import contents
from hookline.coordination import process_group
from hookline.graph import GraphKeys, Variable, placement
from hookline.graph.nodes import spec as specs
from hookline.loop.passes import CompletedPasses
from hookline.loop.step.optimizer_state import is_scheduled
from hookline.loop.warm_start import set_leaves
from hookline.session import Session
from hookline.session.origin import FROM_MEMORY

_logger = log.get_logger(__name__)


@dataclasses.dataclass
class InMemoryCheckpoint:
    """The contents of a checkpoint, in memory.

    Attributes:
        step: The global step.
        values: The values of variables, by name. The user has references to these arrays, too.
        positions: The positions of iterators, by name.
        hook_states: The states of hooks.
        passes: The passes over the data.
        lineage: The lineage of the last save; None if there was none.
    """

    step: int
    values: dict[str, Any]
    positions: dict[str, Any]
    hook_states: Mapping[str, Any]
    passes: CompletedPasses
    lineage: Lineage | None = None

    @classmethod
    def capture(cls, session: Session, passes: CompletedPasses) -> Self:
        """Takes the contents from a session that makes no further run."""
        backend = session.backend
        values, positions = backend.values_with_positions(
            backend.variables(GraphKeys.GLOBAL_VARIABLES), backend.sources.names()
        )
        for position in positions.values():
            position.on_saved()
        where = {name: position.value for name, position in positions.items()}
        return cls(
            session.global_step, values, where, dict(backend.hook_states()), passes, contents.last_lineage(session)
        )

    def warn_if_ignored(self, session: Session, logdir: str | None) -> None:
        """Warns if a session begins at another step, because it was restored from a checkpoint."""
        if session.global_step != self.step:
            _logger.warning(
                "Loop: it goes on from the checkpoint in '%s', at step %d, and not from step %d, where it stopped.",
                logdir,
                session.global_step,
                self.step,
            )

    def restore_into(self, session: Session) -> None:
        """Resumes a new session from the memory.

        Raises:
            RuntimeError: The user has donated or deleted the arrays.
        """
        if any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in jax.tree.leaves(self.values)):
            raise RuntimeError(
                f"Loop cannot go on from step {self.step} in memory: arrays of the returned state were deleted or "
                f"donated since. Donate copies of them, or give run() a logdir with a checkpoint."
            )
        session.backend.load(self.values, positions=self.positions)
        session.backend.restored_hook_states = dict(self.hook_states)
        contents.begin_from(session, self.lineage)
        session.origin = FROM_MEMORY


class StateValues(Mapping[str, Any]):
    """The arrays of the state in an open session, by name, to read and set between two steps: `Loop.state_in`.

    The names are those of `train.list_variables`, without `state/`. The last keys of a path are enough if they are
    unique: `"learning_rate"` for `"opt_state/hyperparams/learning_rate"`. A value that is set is part of the state from
    the next step on, and of its checkpoints. Reading waits for the dispatched steps.

    Args:
        state: The variable.
        session: The raw session.
    """

    def __init__(self, state: Variable, session: Session) -> None:
        self._state, self._session = state, session
        self._specs = dict(paths.flatten_with_paths(state.spec)[0])

    def __getitem__(self, name: str) -> Any:
        """Returns a copy on the host: a NumPy array, or number.

        Raises:
            KeyError: The state has no array of this name, or several.
            ValueError: It is a random key; or the array is sharded over SPMD processes.
        """
        path = self._path(name)
        leaf = dict(paths.flatten_with_paths(self._session.backend.borrow_value(self._state))[0])[path]
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            raise ValueError(f"{path!r} of the state is a random key, which has no value on the host.")
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            if not leaf.is_fully_replicated:
                raise ValueError(
                    f"{path!r} of the state is sharded over several processes, so none of them can read it."
                )
            leaf = placement.addressable_data(leaf)
        return np.array(leaf)[()]  # A copy: the buffer is donated to the next step.

    def __setitem__(self, name: str, value: Any) -> None:
        """Sets an array to one of the same shape and kind of dtype; in SPMD, all processes must set the same value.

        Raises:
            KeyError: The state has no array of this name, or several.
            ValueError: The shape or the dtype differs; or SPMD processes set different values.
            TypeError: It is a hyperparameter with a schedule, which each step computes.
        """
        path = self._path(name)
        spec = self._specs[path]
        if is_scheduled(path, self._specs):
            raise TypeError(f"{path!r} of the state follows a schedule, which sets it in each step.")
        array = np.asarray(value)
        if array.shape != spec.shape or not _fits_dtype(array.dtype, spec.dtype):
            raise ValueError(
                f"{path!r} of the state is {spec.dtype}{list(spec.shape)}, and cannot be set to {array.dtype}"
                f"{list(array.shape)}."
            )
        if problem := specs.describe_overflow(array, spec.dtype):
            raise ValueError(f"{path!r} of the state is {spec.dtype}: {problem}.")
        array = array.astype(spec.dtype)
        if (others := process_group.current()) is not None:
            sums = others.all_gather(f"the new value of {path}", zlib.crc32(array.tobytes()))
            if len(set(sums)) > 1:
                raise ValueError(
                    f"The SPMD processes set {path!r} of the state to different values; this one to {value!r}."
                )
        set_leaves(self._session, self._state, {path: array})

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    def _path(self, name: str) -> str:
        found = [name] if name in self._specs else [path for path in self._specs if path.endswith(f"/{name}")]
        if len(found) == 1:
            return found[0]
        if found:
            raise KeyError(f"The state has several arrays {name!r}: {', '.join(found)}. Give more of the name.")
        raise KeyError(
            f"The state has no array {name!r}. There are: {', '.join(self._specs)}. A Python number that the step does "
            f"not change is no array: give jnp.asarray(0.1)."
        )


def _fits_dtype(given: Any, kept: Any) -> bool:
    """Returns whether a dtype is of the same kind as another, or of a lower one: bool, integer, float, complex."""
    order = [jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating]
    last = [jnp.issubdtype(kept, kind) for kind in order]
    return any(last) and any(jnp.issubdtype(given, kind) for kind in order[: last.index(True) + 1])
