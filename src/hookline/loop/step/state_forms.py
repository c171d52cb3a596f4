"""Converts between the user's state and the pytree of arrays that a variable can hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline.checkpoint.directory import leaves as paths
from hookline.graph.nodes import spec as specs
from hookline.loop.metrics import find_accumulators, log_not_resettable
from hookline.loop.step.leaf_types import (
    InvalidStep,
    adopt_types,
    are_nnx,
    as_strong,
    as_weak,
    cast_to_dtypes,
    cast_to_given,
    dtype_of,
    expected_spec,
    is_array,
    is_nnx,
    is_number,
    is_value,
    is_weak,
    leaf_spec,
    traced_specs,
)
from hookline.loop.step.step_result import Labels, named_losses, split_result
from hookline.loop.step_call import split_state
from hookline.signals.interrupts import calls_user_code

_WHOLE: Mapping[str, Any] = {"the state": None}


def state_form(given: Any, names: list[str] | None, *, has_batch: bool = True) -> PytreeState | NnxState:
    """Returns the form of a state: the object that converts it.

    Args:
        given: The state, or the function that makes it, which is only traced.
        names: The required parameters of the step; `None` if they are not known.
        has_batch: Whether the step gets a batch.

    Raises:
        TypeError: The state is abstract, mixes NNX objects with other things, or has no arrays.
    """
    make = given if is_function(given) else None
    state = given if make is None else _eval_state(make)
    if make is None and any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(state)):
        raise TypeError(
            "Loop: the state is abstract: its arrays have shapes and no values. Give the function that makes it, "
            "Loop(train_step, init, batches): its arrays are then made on their devices, by sharding= if you give one."
        )
    _refuse_references(state)
    parts, accumulates = split_state(names, state, has_batch=has_batch), bool(find_accumulators(state))
    log_not_resettable(state)
    if are_nnx(state):
        return NnxState(state, make, parts, accumulates)
    inside = [leaf for leaf in jax.tree.leaves(state, is_leaf=is_nnx) if is_nnx(leaf)]
    if inside:
        raise TypeError(
            f"Loop requires a state of NNX objects only, as a tuple or a dict, or one without any: "
            f"{type(inside[0]).__name__} is among other things in {type(state).__name__}. Put the other things "
            f"into a module, as nnx.Variable; or use the functional form, `graphdef, state = nnx.split(...)`."
        )
    if not any(map(is_value, jax.tree.leaves(state))):
        raise TypeError(f"Loop requires a state that holds arrays, got {state!r}.")
    return PytreeState(state, make, parts, accumulates)


def is_function(state: Any) -> bool:
    """Returns whether a state is given as a function that makes it; a callable module is a state."""
    return callable(state) and jax.tree_util.treedef_is_leaf(jax.tree.structure(state)) and not is_nnx(state)


def _eval_state(make: Callable[[], Any]) -> Any:
    """Returns the result of a function, with a `jax.ShapeDtypeStruct` in place of each array."""
    made: list[Any] = []

    def arrays() -> list[Any]:
        made[:] = [make()]
        return [leaf for leaf in jax.tree.leaves(made[0]) if is_array(leaf)]

    try:
        found = iter(jax.eval_shape(arrays))
    except Exception as error:
        error.add_note(
            "hookline: while Loop traced the function that makes its state, without arguments. Bind arguments with "
            "functools.partial."
        )
        raise
    if are_nnx(made[0]):
        from flax import nnx

        return nnx.eval_shape(make)
    return jax.tree.map(lambda leaf: next(found) if is_array(leaf) else leaf, made[0])


class NnxState:
    """A state of Flax NNX objects, which the step changes in place. Its methods are those of `PytreeState`."""

    unchanged: Sequence[str] = ()

    def __init__(
        self,
        state: Any,
        make: Callable[[], Any] | None = None,
        parts: Mapping[str, Any] = _WHOLE,
        accumulates: bool = False,
    ) -> None:
        from flax import nnx

        self._objects, self._make = state, make
        self.parts, self.accumulates = parts, accumulates
        self._graphdef, held = nnx.split(state)
        self._state_structure = jax.tree.structure(held)
        given = nnx.to_pure_dict(held)
        self._paths = [path for path, _ in paths.flatten_with_paths(given)[0]]
        self._is_weak = [is_weak(leaf) for leaf in jax.tree.leaves(given)]
        self._traced: list[Any] = []
        self._types_settled = False
        self.retyped: dict[str, Any] = {}
        self.values = as_strong(given)

    @property
    def for_sharding_rules(self) -> Any:  # noqa: D102
        return jax.tree.unflatten(self._state_structure, jax.tree.leaves(self.values))

    @property
    def initial_value(self) -> Any:  # noqa: D102
        from flax import nnx

        make = self._make
        if make is None:
            return self.values
        return calls_user_code(lambda: cast_to_dtypes(self.values, as_strong(nnx.to_pure_dict(nnx.split(make())[1]))))

    def release(self) -> None:  # noqa: D102
        self.values = specs.of_value(self.values)

    def step_arguments(self, state: Any) -> tuple[Any, ...]:  # noqa: D102
        return _split_state(self.parts, state)

    def arguments(self, values: Any) -> tuple[Any, ...]:  # noqa: D102
        return self.step_arguments(self.to_state(values))

    def to_state(self, values: Any) -> Any:  # noqa: D102
        from flax import nnx

        # An nnx.State and its pure dict have their leaves in the same order: both sort the same keys.
        leaves = zip(jax.tree.leaves(values), self._is_weak, strict=True)
        typed_as_given = [as_weak(leaf) if weak else leaf for leaf, weak in leaves]
        return nnx.merge(self._graphdef, jax.tree.unflatten(self._state_structure, typed_as_given))

    def read_result(self, before: Any, returned: Any, labels: Labels = None) -> tuple[Any, Any]:  # noqa: D102
        from flax import nnx

        if any(map(is_nnx, jax.tree.leaves(returned, is_leaf=is_nnx))):
            raise InvalidStep(
                "a step that is given NNX objects changes them and returns only its metrics, but it returned such "
                "objects as well. Return the metrics: `return {'loss': loss}`"
            )
        after = nnx.to_pure_dict(nnx.state(before))
        leaves, structure = jax.tree.flatten(self.values)
        if structure == jax.tree.structure(after) and not self._types_settled:
            self._traced = traced_specs(jax.tree.leaves(after))
            leaves = map(expected_spec, leaves, self._is_weak, self._traced)
        check_same_types(jax.tree.unflatten(structure, leaves), after)
        return cast_to_given(self.values, after), named_losses([returned], [labels])

    def to_user(self, values: Any) -> Any:  # noqa: D102
        from flax import nnx

        nnx.update(self._objects, jax.tree.unflatten(self._state_structure, jax.tree.leaves(values)))
        return self._objects

    def from_user(self, values: Any) -> Any:  # noqa: D102
        from flax import nnx

        return cast_to_dtypes(self.values, as_strong(nnx.to_pure_dict(nnx.split(self._objects)[1])))

    def refine_leaf_types(self) -> list[str]:  # noqa: D102
        leaves, structure = jax.tree.flatten(self.values)
        changed = adopt_types(self._paths, leaves, self._is_weak, self._traced, self.retyped)
        self.values, self._types_settled = jax.tree.unflatten(structure, leaves), not changed
        return changed

    def __repr__(self) -> str:
        objects = self.step_arguments(self._objects)
        return f"NNX objects: {', '.join(type(item).__name__ for item in objects)}"


class PytreeState:
    """A state as a pytree, which the step returns beside its metrics.

    Leaves that are no arrays (functions, strings, flags) are static, so the variable does not contain them. Python
    numbers are static, too, if the step returns them unchanged; `refine_leaf_types` finds the others. A weakly typed
    leaf (`jnp.array(0)`) gets the type in which the step returns it, as in a hand-written loop. If that type is weak,
    the step gets a weakly typed leaf; the variable keeps only its dtype.

    Attributes:
        values: The state as a variable holds it: a pytree of arrays, or of their shapes.
        parts: For each parameter of the step, the key of its part of the state; None for the whole state.
        accumulates: Whether it contains metrics that accumulate over steps.
        retyped: By path, the new dtypes of weakly typed leaves that the step returns with another dtype.
        unchanged: The parts that the step did not return in the last trace.
    """

    def __init__(
        self,
        state: Any,
        make: Callable[[], Any] | None = None,
        parts: Mapping[str, Any] = _WHOLE,
        accumulates: bool = False,
    ) -> None:
        self._make = make
        self.parts, self.accumulates = parts, accumulates
        self._leaves, self._structure = jax.tree.flatten(state)
        self._is_variable = [is_array(leaf) for leaf in self._leaves]
        self._types_settled = False
        self.unchanged: list[str] = []
        self._is_weak = [is_array(leaf) and is_weak(leaf) for leaf in self._leaves]
        self.retyped: dict[str, Any] = {}
        self._traced: list[Any] = []
        self.values = self._values(self._leaves)

    def _values(self, leaves: list[Any]) -> Any:
        return as_strong(self._variable_leaves(leaves))

    @property
    def for_sharding_rules(self) -> Any:
        """The values in the structure to which sharding rules apply, with the model's own sharding metadata."""
        return self.values

    @property
    def initial_value(self) -> Any:
        """The initial value of the variable: the values, or a function that makes them."""
        make = self._make
        if make is None:
            return self.values

        @calls_user_code
        def values() -> Any:
            made = jax.tree.leaves(make())
            # A Python number that has become an array keeps the dtype that the traces have found.
            kept = [old if is_number(new) else new for old, new in zip(self._leaves, made, strict=True)]
            return cast_to_dtypes(self.values, self._values(kept))

        return values

    def release(self) -> None:
        """Releases the arrays, because a session has its own."""
        self._leaves = [
            jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if isinstance(leaf, jax.Array) else leaf
            for leaf in self._leaves
        ]
        self.values = self._values(self._leaves)

    def refine_leaf_types(self) -> list[str]:
        """Gives leaves of weak types the types of the last trace, and returns their paths.

        Python numbers that the step has changed become arrays. If it returns any path, the step must be traced again.

        Raises:
            InvalidStep: The step changed a leaf that no variable can hold.
        """
        found, changed = self._paths(), []
        for index, (before, after) in enumerate(zip(self._leaves, self._traced, strict=True)):
            if self._is_variable[index] or _same(before, after):
                continue
            if not is_number(before):
                raise InvalidStep(
                    f"the state at {found[index]!r} is no array, so it must not change; but the step changed "
                    f"{before!r} to {after!r}",
                    ValueError,
                )
            if not is_value(after):
                raise InvalidStep(
                    f"the state at {found[index]!r} was given as the number {before!r}, and returned as {after!r}",
                    ValueError,
                )
            self._leaves[index], self._is_variable[index], self._is_weak[index] = (
                jnp.asarray(before),
                True,
                is_weak(before),
            )
            changed.append(found[index])
            if is_weak(before) and not is_weak(after):
                self.retyped[found[index]] = dtype_of(after)
        changed += adopt_types(found, self._leaves, self._is_weak, self._traced, self.retyped)
        self._types_settled = not changed
        self.values = self._values(self._leaves)
        return list(dict.fromkeys(changed))

    def step_arguments(self, state: Any) -> tuple[Any, ...]:
        """Returns the arguments of the step for this state."""
        return _split_state(self.parts, state)

    def arguments(self, values: Any) -> tuple[Any, ...]:
        """Returns the step's arguments for the values of `Loop.state`, for the user's own operations.

        Example:
            >>> import hookline as hl, jax.numpy as jnp
            >>> loop = hl.train.Loop(lambda w, b, x: (w, b, {}), {"w": 1.0, "b": 2.0}, [jnp.ones(())])
            >>> with loop.graph.as_default():
            ...     total = hl.op(lambda values: sum(loop.form.arguments(values)))(loop.state)
            >>> with loop.session(progress=False, nan_check=None) as session:
            ...     float(session.run(total))
            3.0
        """
        return self.step_arguments(self.to_state(values))

    def to_state(self, values: Any) -> Any:
        """Returns the user's state for the values of a variable."""
        arrays = iter(jax.tree.leaves(values))
        leaves = [
            next(arrays) if inside else leaf for leaf, inside in zip(self._leaves, self._is_variable, strict=True)
        ]
        return self._unflatten(
            [as_weak(leaf) if weak else leaf for leaf, weak in zip(leaves, self._is_weak, strict=True)]
        )

    def read_result(self, before: Any, returned: Any, labels: Labels = None) -> tuple[Any, Any]:
        """Returns the new values and the metrics, given the state before the step and the step's result.

        Args:
            before: The state before the step.
            returned: The result of the step.
            labels: The names of the variables that it returned.

        Raises:
            InvalidStep: The result is not a state and metrics, or a state of another structure, shape or dtype.
        """
        types = [
            leaf_spec(leaf, weak) if inside else leaf
            for leaf, weak, inside in zip(self._leaves, self._is_weak, self._is_variable, strict=True)
        ]
        found, metrics = split_result(self.step_arguments(self._unflatten(types)), list(self.parts), returned, labels)
        self.unchanged = [name for name in self.parts if name not in found]
        parts = zip(self.parts, self.step_arguments(before), strict=True)
        state = _merge_parts(self.parts, before, [found.get(name, part) for name, part in parts])
        leaves, structure = jax.tree.flatten(state)
        if structure != self._structure:
            check_same_types(self._unflatten(self._leaves), state)
            raise InvalidStep(
                f"it returned a state of another structure: {structure} instead of {self._structure}", ValueError
            )
        self._traced = traced_specs(leaves)
        if not self._types_settled:
            types = [expected_spec(*each) for each in zip(types, self._is_weak, leaves, strict=True)]
        after = self._variable_leaves(leaves)
        check_same_types(self._variable_leaves(types), after)
        return cast_to_given(self.values, after), metrics

    def to_user(self, values: Any) -> Any:
        """Returns the user's state for the final values; NNX objects are the user's own, updated in place."""
        return self.to_state(values)

    def from_user(self, values: Any) -> Any:
        """Returns the values of the state that `to_user` returned; NNX objects may have changed since then."""
        return values

    def _variable_leaves(self, leaves: list[Any]) -> Any:
        return self._unflatten(
            [leaf if inside else None for leaf, inside in zip(leaves, self._is_variable, strict=True)]
        )

    def _unflatten(self, leaves: list[Any]) -> Any:
        return jax.tree.unflatten(self._structure, leaves)

    def _paths(self) -> list[str]:
        return [path for path, _ in paths.flatten_with_paths(self._unflatten(self._leaves))[0]]

    def __repr__(self) -> str:
        return f"a {type(self._unflatten(self._leaves)).__name__}"


def accumulator_mask(form: PytreeState | NnxState) -> list[bool]:
    """Returns for each leaf of a form's values whether it belongs to a metric that accumulates."""
    leaves, structure = jax.tree.flatten(form.values)
    inside = set()
    if form.accumulates:
        numbered = structure.unflatten([jnp.asarray(index) for index in range(len(leaves))])
        found = [leaf for each in find_accumulators(form.to_state(numbered)) for leaf in each.leaves()]
        inside = {int(leaf) for leaf in found if isinstance(leaf, jax.Array)}
    return [index in inside for index in range(len(leaves))]


def _split_state(parts: Mapping[str, Any], state: Any) -> tuple[Any, ...]:
    return tuple(state if key is None else state[key] for key in parts.values())


def _merge_parts(parts: Mapping[str, Any], state: Any, found: list[Any]) -> Any:
    if None in parts.values():
        return found[0]
    return tuple(found) if isinstance(state, tuple) else dict(zip(parts, found, strict=True))


def check_same_types(before: Any, after: Any) -> None:
    """Raises `InvalidStep` unless two states have the same paths, shapes and dtypes."""
    given, found = dict(paths.flatten_with_paths(before)[0]), dict(paths.flatten_with_paths(after)[0])
    lines = [f"{path or 'it'} is gone" for path in given.keys() - found.keys()]
    lines += [f"{path or 'it'} is new" for path in found.keys() - given.keys()]
    for path in given.keys() & found.keys():
        one, other = given[path], found[path]
        if is_array(one) and _describe_leaf(one) != _describe_leaf(other):
            lines.append(f"{path or 'it'} was {_describe_leaf(one)} and is {_describe_leaf(other)}")
    if lines:
        raise InvalidStep(
            f"a step returns a state of the same structure, shapes and dtypes, but {'; '.join(sorted(lines))}",
            ValueError,
        )


def _describe_leaf(leaf: Any) -> str:
    return f"{dtype_of(leaf)}[{','.join(map(str, np.shape(leaf)))}]" if is_value(leaf) else repr(leaf)


def _same(before: Any, after: Any) -> bool:
    if before is after:
        return True
    if type(before) is not type(after) or is_array(after):
        return False
    try:
        return bool(before == after) or before != before  # The latter for NaN.
    except Exception:
        return False


def _refuse_references(state: Any) -> None:
    found = [path for path, leaf in paths.flatten_with_paths(state)[0] if isinstance(leaf, jax.Ref)]
    if found:
        raise TypeError(
            f"Loop: the state at {found[0]!r} is a jax.Ref, which a step writes in place. Give the arrays, "
            f"`jax.tree.map(jax.ref.get, state)`, and make references inside the step: `refs = jax.tree.map("
            f"jax.new_ref, state); metrics = train_step(refs, batch); return jax.tree.map(jax.ref.get, refs), metrics`."
        )
