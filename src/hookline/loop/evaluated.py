"""What an evaluation computes of one batch, or of several in one compiled loop, as an operation can call it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from hookline.loop import accumulators, metrics
from hookline.loop.call import Call, called, required
from hookline.loop.forms import NnxObjects, Tree
from hookline.loop.kinds import Unfit, is_nnx
from hookline.loop.step import says
from hookline.session.repeat import counted_loop


class Evaluated:
    """A function of the state, or of parts of it, and of a batch.

    It gets the parts that its parameters name as those of the train step do; else as many as it requires, the first
    ones. Metrics in the state begin empty: those of NNX take in batch after batch, as their arrays are handed on from
    one call to the next; those of a pytree begin so with each batch, for nobody knows whether what comes back is one of
    them.

    Args:
        who: Whose it is, for messages.
        function: The function.
        form: How the state is held.
        batch: The spec of a batch.

    Attributes:
        accumulated: The names of the metrics that stand in the state, known when it was traced.
        left_out: The metrics that are none, with the reasons.

    Raises:
        TypeError: It requires something else.
    """

    def __init__(self, who: str, function: Any, form: Tree | NnxObjects, batch: Any) -> None:
        self.name = self.__name__ = called(function)
        self._who, self._form = who, form
        self._parts = _parts(who, function, form)
        self._call = Call(who, function, list(self._parts), keyed=False)
        self._call.settle(batch)
        self.accumulated: frozenset[str] = frozenset()
        self.left_out: dict[str, str] = {}

    def begun(self, mesh: Mesh | None) -> list[Any]:
        """Returns whether the first batch comes, and arrays as the metrics in the state have them; or nothing."""
        leaves = [leaf for found in self._accumulators(self._given(self._form.values)) for leaf in found.leaves()]
        if not leaves:
            return []
        arrays = [np.zeros(leaf.shape, leaf.dtype) for leaf in leaves]
        if mesh is not None:
            arrays = [jax.device_put(array, jax.NamedSharding(mesh, jax.P())) for array in arrays]
        return [np.True_, *arrays]

    def __call__(self, values: Any, batch: Any, *begun: Any) -> dict[str, Any]:
        """Returns the metrics as `told`, and as `carried` the arrays of those in the state."""
        given = self._given(values)
        with says(self._who, self.name):
            if isinstance(self._form, Tree) and self._form.accumulates:
                given = accumulators.begun_anew(given, True)
            if begun:
                is_first, *leaves = begun
                for found in self._accumulators(given):
                    found.with_leaves([leaves.pop(0) for _ in found.leaves()])
                given = accumulators.begun_anew(given, is_first)
        returned = self._call(given, batch)
        with says(self._who, self.name):
            self._refuse_state(given, returned)
            after = self._accumulators(given)
            told, self.left_out = metrics.flat(returned, after)
            self.accumulated = frozenset(told) - frozenset(metrics.flat(returned)[0])
        carried = [jnp.asarray(leaf, leaf.dtype) for found in after for leaf in found.leaves()]
        return {"told": {name: jnp.asarray(value) for name, value in told.items()}, "carried": carried}

    def __str__(self) -> str:
        return str(self._call)

    def in_loop(self, most: int) -> Callable[..., dict[str, Any]]:
        """Returns the evaluation of so many of a block's batches in one compiled loop; of each metric it gives rows."""

        def evaluate_rows(values: Any, block: Any, count: Any, *begun: Any) -> dict[str, Any]:
            def one(place: Any, carried: Sequence[Any]) -> dict[str, Any]:
                batch = jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, place, keepdims=False), block)
                return self(values, batch, *((begun[0] & (place == 0), *carried) if begun else ()))

            def body(place: Any, so_far: Any) -> Any:
                rows, carried = so_far
                found = one(place, carried)
                return jax.tree.map(lambda row, value: row.at[place].set(value), rows, found["told"]), found["carried"]

            like = jax.eval_shape(one, 0, begun[1:])["told"]
            rows = {name: jnp.zeros((most, *value.shape), value.dtype) for name, value in like.items()}
            rows, carried = counted_loop(count, most, body, (rows, list(begun[1:])))
            return {"told": rows, "carried": carried}

        evaluate_rows.__name__ = self.name
        return evaluate_rows

    def _given(self, values: Any) -> tuple[Any, ...]:
        whole = self._form.whole(values)
        return tuple(whole if key is None else whole[key] for key in self._parts.values())

    def _accumulators(self, given: tuple[Any, ...]) -> list[accumulators.Accumulator]:
        """Returns what the function changes; what it returns of a pytree may as well be of one batch alone."""
        named = dict(zip(self._parts, given, strict=True))
        return accumulators.found_in(named) if isinstance(self._form, NnxObjects) else []

    def _refuse_state(self, given: tuple[Any, ...], returned: Any) -> None:
        items = returned if type(returned) is tuple else (returned,)
        kinds = [jax.tree.structure(part) for part in given]
        parts = [kind for kind in kinds if not jax.tree_util.treedef_is_leaf(kind)]
        if any(map(is_nnx, jax.tree.leaves(returned, is_leaf=is_nnx))) or any(
            jax.tree.structure(item) in parts for item in items
        ):
            raise Unfit(
                "an evaluation returns its metrics alone, but it returned the state or a part of it, like a train step"
            )


def _parts(who: str, function: Any, form: Tree | NnxObjects) -> dict[str, Any]:
    """Returns which parameters get which parts of the state.

    Raises:
        TypeError: It requires more than there is.
    """
    names = required(who, function)
    if names is None:
        return dict(form.parts)
    keys = list(form.parts.values())
    if keys == [None]:
        return {(names or ["the state"])[0]: None}
    by_name = {name: form.parts[name] for name in names if name in form.parts}
    if by_name:
        return by_name
    count = len(names) - 1
    if not 1 <= count <= len(keys):
        raise TypeError(
            f"{who}: {called(function)} is called with parts of the state ({', '.join(form.parts)}) and a batch; it "
            f"requires {', '.join(names) or 'nothing'}. Call its parameters as those of the train step are called."
        )
    return dict(zip(names, keys[:count], strict=True))
