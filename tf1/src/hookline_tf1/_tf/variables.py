"""Variables with TensorFlow's arguments and methods."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

import hookline as core
from hookline import Tensor as CoreTensor
from hookline.extend import SessionCall, contains_tensor, specs
from hookline_tf1._machinery import default_session, dtypes
from hookline_tf1._machinery.graphs import GraphKeys, get_collection, get_default_graph
from hookline_tf1._machinery.ignored_arguments import ignored, unknown
from hookline_tf1._machinery.nodes import argument, convert_to_tensor, node
from hookline_tf1._machinery.tensors import Tensor
from hookline_tf1._rules import host_strings, index_bounds
from hookline_tf1._rules.index_bounds import Within

# Otherwise -1 would mean the last row.
_AS_GIVEN = {"wrap_negative_indices": False}


class Variable(Tensor, core.Variable):
    """A value that a session keeps between runs.

    Args:
        initial_value: A tensor, a value, or a function that returns one.
        trainable: Whether optimizers change it by default.
        collections: Collections to join.
        validate_shape: Without effect: a variable has one shape.
        caching_device: Without effect.
        name: Its name.
        variable_def: Is refused.
        dtype: Its dtype; by default the dtype of the initial value.
        expected_shape: Without effect.
        import_scope: Without effect.
        constraint: A function that optimizers apply to it after each update.
        **further: `use_resource`, `synchronization`, `aggregation`, `shape`: without effect.

    References:
        `tf.Variable`. A read never races with a write: see hookline's docs/design.md.
    """

    def __init__(
        self,
        initial_value: Any = None,
        trainable: Any = None,
        collections: Any = None,
        validate_shape: bool = True,
        caching_device: Any = None,
        name: str | None = None,
        variable_def: Any = None,
        dtype: Any = None,
        expected_shape: Any = None,
        import_scope: Any = None,
        constraint: Any = None,
        **further: Any,
    ) -> None:
        unknown("tf.Variable", further, "use_resource", "synchronization", "aggregation", "shape")
        ignored("tf.Variable", validate_shape=validate_shape is False, caching_device=caching_device)
        ignored("tf.Variable", expected_shape=expected_shape, import_scope=import_scope)
        if variable_def is not None:
            raise ValueError("tf.Variable cannot be made of a VariableDef: there are no protobuf messages of graphs.")
        if initial_value is None:
            raise ValueError("initial_value must be specified.")
        if constraint is not None and not callable(constraint):
            raise ValueError("The `constraint` argument must be a callable.")
        graph = get_default_graph()
        with graph.control_dependencies(None):
            initial = _initial(initial_value, dtype)
            if host_strings.is_text(initial):
                raise TypeError(
                    f"tf.Variable {name or 'Variable'!r}: {initial_value!r} is a string, and variables cannot hold "
                    f"strings. Use tf.constant, or feed a tf.placeholder."
                )
        trained = True if trainable is None else bool(trainable)
        core.Variable.__init__(self, initial, name or "Variable", trained, collections)
        self.constraint = constraint

    def value(self) -> Any:
        """Returns the variable, which is a tensor."""
        return self

    def eval(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, session: Any = None, feed_dict: Any = None
    ) -> Any:
        """Returns the value in a session, by default the default one; unlike a tensor's, its first argument."""
        return super().eval(feed_dict, session)

    def initialized_value(self) -> Any:
        """Returns the value before the run, or else the initial value; for the initial values of other variables."""
        spec: Any = self.spec
        if not specs.is_array(spec) or None in (specs.open_shape(spec) or ()):
            return self.initial_value

        def before(session: Any) -> Any:
            if session.uninitialized([self]):
                return False, np.zeros(spec.shape, spec.dtype)
            return True, session.snapshot([self])[self.op.name]

        with self.graph.control_dependencies(None):
            given = {"given": SessionCall("value_before", before).output}
            has = host_strings.OnHost(lambda given: given[0], "is_initialized", given, np.dtype(bool), []).output
            value = host_strings.OnHost(lambda given: given[1], "read", given, spec.dtype, spec.shape).output
            args = {"has": has, "value": value, "initial": self.initial_value}
            return node(lambda has, value, initial: jnp.where(has, value, initial), "initialized_value", args)

    def load(self, value: Any, session: Any = None) -> None:
        """Sets the value in a session, by default the default one."""
        default_session.session_for(repr(self.name), session).run(self.initializer, {self.initial_value: value})

    # TensorFlow's order of arguments; the core's `name` is keyword-only.

    def assign(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, value: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Returns an update that sets the variable; its value is the new one."""
        ignored("tf.Variable.assign", use_locking=use_locking)
        made = core.Variable.assign(self, self._assigned(value), name=name)
        return made if read_value else made.op

    def assign_add(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, delta: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Returns an update that adds to the variable; its value is the new one."""
        ignored("tf.Variable.assign_add", use_locking=use_locking)
        made = core.Variable.assign_add(self, self._assigned(delta), name=name)
        return made if read_value else made.op

    def assign_sub(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, delta: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Returns an update that subtracts from the variable; its value is the new one."""
        ignored("tf.Variable.assign_sub", use_locking=use_locking)
        made = core.Variable.assign_sub(self, self._assigned(delta), name=name)
        return made if read_value else made.op

    def _assigned(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            self.shape.assert_is_compatible_with(value.shape)
        if isinstance(value, CoreTensor | int | float):
            return value
        return convert_to_tensor(value, self.dtype) if contains_tensor(value) else self._beside(value)

    def scatter_add(self, indices: Any, updates: Any, name: str = "ScatterAdd") -> Any:
        """Returns an update that adds rows at these indices."""
        return self._scattered(lambda rows, updates: rows.add(updates, **_AS_GIVEN), indices, updates, name)

    def scatter_sub(self, indices: Any, updates: Any, name: str = "ScatterSub") -> Any:
        """Returns an update that subtracts rows at these indices."""
        return self._scattered(lambda rows, updates: rows.add(-updates, **_AS_GIVEN), indices, updates, name)

    def scatter_update(self, indices: Any, updates: Any, name: str = "ScatterUpdate") -> Any:
        """Returns an update that sets rows at these indices."""
        return self._scattered(lambda rows, updates: rows.set(updates, **_AS_GIVEN), indices, updates, name)

    def _scattered(self, fn: Any, indices: Any, updates: Any, name: str) -> Any:
        """Returns an update of rows, which skips indices out of range."""
        given = {"indices": argument(indices), "updates": argument(updates)}
        made = core.update(self, lambda old, i, u: fn(old.at[i], u), *given.values(), name=name)
        dims = specs.open_shape(self.spec)
        if dims and dims[0] is not None:
            index_bounds.watch(made.op, (Within("indices", lambda indices, updates: dims[0]),), given)
        return made

    def count_up_to(self, limit: int) -> Any:
        """Is refused: use a hook, or `Dataset.repeat`, the successor of `tf.train.limit_epochs`."""
        raise NotImplementedError("Variable.count_up_to is not available: count in Python, or use a StopAtStepHook.")

    def __repr__(self) -> str:
        dtype = self.dtype
        return f"<tf.Variable {self.name!r} shape={self.shape} dtype={dtype.name if dtype else None}>"


class CoreVariable(Variable):
    """A variable that the core creates, such as the global step, with the arguments of `hookline.Variable`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        core.Variable.__init__(self, *args, **kwargs)
        self.constraint = None


def _initial(value: Any, dtype: Any) -> Any:
    """Converts an initial value for a variable of that dtype."""
    if callable(value) and not isinstance(value, CoreTensor):
        value = value()
    if not isinstance(value, CoreTensor):
        return convert_to_tensor(value, dtype, name="initial_value")
    wanted = None if dtype is None else dtypes.canonical(dtype)
    if wanted is None or value.dtype is None or dtypes.canonical(value.dtype) == wanted:
        return value
    return node(lambda x: jnp.asarray(x, wanted), "initial_value", {"x": value})


def is_variable_initialized(variable: Any) -> Any:
    """`tf.is_variable_initialized`."""
    missing = core.report_uninitialized_variables([variable])
    return core.host_op(lambda names: not names, name="IsVariableInitialized")(missing)


def global_variables(scope: str | None = None) -> list[Any]:
    """`tf.global_variables`."""
    return get_collection(GraphKeys.GLOBAL_VARIABLES, scope)


def local_variables(scope: str | None = None) -> list[Any]:
    """`tf.local_variables`."""
    return get_collection(GraphKeys.LOCAL_VARIABLES, scope)


def trainable_variables(scope: str | None = None) -> list[Any]:
    """`tf.trainable_variables`."""
    return get_collection(GraphKeys.TRAINABLE_VARIABLES, scope)


def model_variables(scope: str | None = None) -> list[Any]:
    """`tf.model_variables`."""
    return get_collection(GraphKeys.MODEL_VARIABLES, scope)


def moving_average_variables(scope: str | None = None) -> list[Any]:
    """`tf.moving_average_variables`."""
    return get_collection(GraphKeys.MOVING_AVERAGE_VARIABLES, scope)


def variables_initializer(var_list: Any, name: str = "init") -> Any:
    """`tf.variables_initializer`."""
    get_default_graph()
    return core.variables_initializer(var_list, name)


def global_variables_initializer() -> Any:
    """`tf.global_variables_initializer`."""
    return variables_initializer(global_variables())


def local_variables_initializer() -> Any:
    """`tf.local_variables_initializer`."""
    return variables_initializer(local_variables())


def tables_initializer(name: str = "init_all_tables") -> Any:
    """`tf.tables_initializer`."""
    return core.group(*get_collection(GraphKeys.TABLE_INITIALIZERS), name=name)


def report_uninitialized_variables(var_list: Any = None, name: str = "report_uninitialized_variables") -> Any:
    """`tf.report_uninitialized_variables`: the names, as `bytes`."""
    get_default_graph()
    names = core.report_uninitialized_variables(var_list)
    return host_strings.OnHost(host_strings.as_row, name, {"names": names}, host_strings.STRING, [None]).output


def assert_variables_initialized(var_list: Any = None) -> Any:
    """`tf.assert_variables_initialized`: runs the variables; one without a value is an error of the run."""
    variables = [*global_variables(), *local_variables()] if var_list is None else list(var_list)
    return core.group(*variables)


__all__ = [
    "Variable",
    "assert_variables_initialized",
    "global_variables",
    "global_variables_initializer",
    "is_variable_initialized",
    "local_variables",
    "local_variables_initializer",
    "model_variables",
    "moving_average_variables",
    "report_uninitialized_variables",
    "tables_initializer",
    "trainable_variables",
    "variables_initializer",
]
