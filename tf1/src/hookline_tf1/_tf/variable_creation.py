"""Creates the variables of `get_variable`, or finds the shared one."""

from __future__ import annotations

import inspect
from typing import Any

from hookline import Tensor as CoreTensor
from hookline.extend import contains_tensor
from hookline_tf1 import initializers
from hookline_tf1._machinery import dtypes
from hookline_tf1._machinery.graphs import GraphKeys, get_default_graph, name_scope
from hookline_tf1._machinery.ignored_arguments import unknown
from hookline_tf1._machinery.nodes import as_array, convert_to_tensor
from hookline_tf1._rules.tensor_shape import TensorShape, as_ints
from hookline_tf1._tf.variable_store import store_of_graph
from hookline_tf1._tf.variables import Variable

# Arguments without effect, with the values that mean "not given".
_TAKEN = dict.fromkeys(
    ("partitioner", "caching_device", "use_resource", "synchronization", "aggregation", "custom_getter")
) | {"validate_shape": True}


def dtype_of(initializer: Any, wanted: Any = None) -> Any:
    """Returns the dtype of an initializer that is a value; None for others.

    Args:
        initializer: A value, a function or an initializer object.
        wanted: The requested dtype of the variable, if any.

    Raises:
        ValueError: The value has another dtype.
    """
    if isinstance(initializer, str) or not _is_value(initializer):
        return None
    if isinstance(initializer, CoreTensor) or contains_tensor(initializer):
        found = convert_to_tensor(initializer).dtype
    else:
        found = as_array(as_ints(initializer), plain=not hasattr(initializer, "dtype")).dtype
    if wanted is not None and found is not None and dtypes.canonical(found) != dtypes.canonical(wanted):
        raise ValueError(
            f"tf.get_variable: the initializer {initializer!r} is a value of dtype {dtypes.as_dtype(found).name}, but "
            f"dtype={dtypes.as_dtype(wanted).name} was requested. Cast the value, or leave the dtype out."
        )
    return found


def _is_value(initializer: Any) -> bool:
    return initializer is not None and (isinstance(initializer, CoreTensor) or not callable(initializer))


def make_variable(
    name: str,
    shape: Any = None,
    dtype: Any = dtypes.float32,
    initializer: Any = None,
    regularizer: Any = None,
    reuse: Any = None,
    trainable: Any = None,
    collections: Any = None,
    constraint: Any = None,
    **further: Any,
) -> Any:
    """Returns the variable with that full name: the getter that a custom getter gets."""
    unknown("tf.get_variable", {key: value for key, value in further.items() if value != _TAKEN.get(key)}, *_TAKEN)
    store, dtype = store_of_graph(), dtypes.as_dtype(dtype)
    found = store.variables.get(name)
    if found is not None:
        if reuse is False or reuse is None:
            raise ValueError(
                f"Variable {name} already exists, disallowed. Did you mean to set reuse=True or reuse=tf.AUTO_REUSE in "
                f"VarScope? Originally defined at {found.op.location}"
            )
        _check_shared(name, found, shape, None if _is_value(initializer) else dtype)
        return found
    if reuse is True:
        raise ValueError(
            f"Variable {name} does not exist, or was not created with tf.get_variable(). Did you mean to set "
            f"reuse=tf.AUTO_REUSE in VarScope?"
        )
    graph = get_default_graph()
    with graph.control_dependencies(None), graph.name_scope(None):
        initial = _initial_value(name, shape, dtype, initializer)
        made = Variable(initial, trainable, collections, name=name, dtype=dtype, constraint=constraint)
    store.variables[name] = made
    if regularizer is not None:
        with name_scope(f"{name}/Regularizer/"):
            loss = regularizer(made)
        if loss is not None:
            graph.add_to_collection(GraphKeys.REGULARIZATION_LOSSES, loss)
    return made


def _check_shared(name: str, found: Any, shape: Any, dtype: Any) -> None:
    if shape is not None and not TensorShape(shape).is_compatible_with(found.shape):
        raise ValueError(
            f"Trying to share variable {name}, but specified shape {TensorShape(shape)} and found shape {found.shape}."
        )
    if dtype is not None and dtypes.canonical(dtype) != dtypes.canonical(found.dtype):
        raise ValueError(
            f"Trying to share variable {name}, but specified dtype {dtype.name} and found dtype {found.dtype.name}."
        )


def _initial_value(name: str, shape: Any, dtype: Any, initializer: Any) -> Any:
    if isinstance(initializer, str):
        initializer = initializers.made(initializer)
    if _is_value(initializer):
        if shape is not None:
            raise ValueError("If initializer is a constant, do not specify shape.")
        return initializer
    if initializer is None:
        initializer = initializers.glorot_uniform if dtype.is_floating else initializers.Zeros
    shape = TensorShape(shape)
    if not shape.is_fully_defined() and not (shape == TensorShape(None) and inspect.isfunction(initializer)):
        raise ValueError(f"Shape of a new variable ({name}) must be fully defined, but instead was {shape}.")
    with get_default_graph().name_scope(f"{name}/Initializer/"):
        if not shape.is_known:
            return initializer()
        return initializers.made(initializer)(shape.as_list(), dtype=dtype)
