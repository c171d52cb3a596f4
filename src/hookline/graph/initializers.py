"""The variables of a graph, pytrees of variables, and their initializers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import jax

from hookline import arguments
from hookline.graph.graph import Operation, Tensor, get_default_graph
from hookline.graph.nodes import spec as specs
from hookline.graph.nodes.nodes import SessionCall
from hookline.graph.nodes.ops import group, initial_tensor, op
from hookline.graph.registry import GraphKeys
from hookline.graph.variable import Variable, initial_shardings


def global_variables() -> list[Variable]:
    """Returns the variables that all workers share and that checkpoints hold.

    Example:
        >>> import hookline as hl
        >>> weight, count = hl.Variable(1.0, name="weight"), hl.Variable(0, name="count", trainable=False)
        >>> [variable.name for variable in hl.global_variables()]
        ['weight:0', 'count:0']
    """
    return get_default_graph().get_collection(GraphKeys.GLOBAL_VARIABLES)


def local_variables() -> list[Variable]:
    """Returns the variables that belong to one process and are not saved.

    Example:
        >>> import hookline as hl
        >>> total = hl.Variable(0.0, name="total", collections=[hl.GraphKeys.LOCAL_VARIABLES])
        >>> [variable.name for variable in hl.local_variables()]
        ['total:0']
    """
    return get_default_graph().get_collection(GraphKeys.LOCAL_VARIABLES)


def trainable_variables() -> list[Variable]:
    """Returns the variables that optimizers change by default.

    Example:
        >>> import hookline as hl
        >>> weight, count = hl.Variable(1.0, name="weight"), hl.Variable(0, name="count", trainable=False)
        >>> [variable.name for variable in hl.trainable_variables()]
        ['weight:0']
    """
    return get_default_graph().get_collection(GraphKeys.TRAINABLE_VARIABLES)


def variables_initializer(var_list: Iterable[Variable], name: str = "init") -> Operation:
    """Returns an operation that initialises the given variables, in one program.

    Example:
        >>> import hookline as hl
        >>> weight, bias = hl.Variable(1.0, name="weight"), hl.Variable(0.0, name="bias")
        >>> with hl.Session() as sess:
        ...     sess.run(hl.variables_initializer([weight]))
        ...     print(sess.run(hl.report_uninitialized_variables()))
        ['bias']
    """
    return group(*(variable.initializer for variable in _as_variables("variables_initializer", var_list)), name=name)


def _as_variables(who: str, var_list: Any) -> list[Variable]:
    listed = arguments.check_list(who, "var_list", var_list)
    return [arguments.check_has(who, f"one of {var_list!r}", item, "a variable", "initializer") for item in listed]


def global_variables_initializer() -> Operation:
    """Returns an operation that initialises all global variables made so far.

    Example:
        >>> import hookline as hl
        >>> weight = hl.Variable(1.0, name="weight")
        >>> with hl.Session() as sess:
        ...     sess.run(hl.global_variables_initializer())
        ...     print(sess.run(weight))
        1.0

    References:
        `tf.global_variables_initializer`.
    """
    return variables_initializer(global_variables(), name="init")


def local_variables_initializer() -> Operation:
    """Returns an operation that initialises all local variables made so far.

    Example:
        >>> import hookline as hl
        >>> total = hl.Variable(0.0, name="total", collections=[hl.GraphKeys.LOCAL_VARIABLES])
        >>> with hl.Session() as sess:
        ...     sess.run(hl.local_variables_initializer())
        ...     print(sess.run(total))
        0.0
    """
    return variables_initializer(local_variables(), name="init_local")


def report_uninitialized_variables(var_list: Iterable[Variable] | None = None) -> Tensor:
    """Returns a tensor of the names of the variables that have no value yet: an empty list if all have one.

    Args:
        var_list: The variables to check; by default all global and local ones made so far.

    Example:
        >>> import hookline as hl
        >>> weight = hl.Variable(1.0, name="weight")
        >>> missing = hl.report_uninitialized_variables()
        >>> with hl.Session() as sess:
        ...     print(sess.run(missing), sess.run(weight.initializer), sess.run(missing))
        ['weight'] None []

    References:
        `tf.report_uninitialized_variables`. The value is a list of Python strings.
    """
    who = "report_uninitialized_variables"
    watched = [*global_variables(), *local_variables()] if var_list is None else _as_variables(who, var_list)
    return SessionCall(who, lambda session: session.uninitialized(watched)).output


def variables(tree: Any, name: str = "variables", trainable: bool = True, *, sharding: Any = None) -> Any:
    """Returns a pytree of variables, one for each leaf of `tree`.

    A single variable may also hold a whole pytree. As separate variables, the leaves can be trained, watched and placed
    on parameter servers one by one.

    Args:
        tree: A pytree of arrays, or a function without arguments that returns one.
        name: The prefix of their names; the path of each leaf follows.
        trainable: As in `Variable`.
        sharding: As in `Variable`, for the whole tree.

    Example:
        >>> import hookline as hl, jax.numpy as jnp
        >>> params = hl.variables(lambda: {"dense": {"w": jnp.ones(2), "b": jnp.zeros(())}}, name="net")
        >>> params["dense"]["w"].name
        'net/dense/w:0'
    """
    arguments.check_str("variables", "name", name)

    def make(path: Any, _: Any) -> Variable:
        parts = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path]
        label = "/".join([name, *(re.sub(r"[^A-Za-z0-9_.-]|^\.*$", "_", part) for part in parts)])
        leaf = op(lambda values: dict(jax.tree.leaves_with_path(values))[path], name="initial_value")(initial)
        return Variable(leaf, name=label, trainable=trainable, sharding=next(shardings))

    graph = get_default_graph()
    with graph.control_dependencies(None):
        initial = initial_tensor(tree, name)
        if initial.spec is specs.UNKNOWN:
            raise TypeError(f"variables {name!r} requires a pytree of known structure, got {tree!r}.")

        shardings = iter(initial_shardings(f"variables {name!r}", initial, tree, initial.spec, sharding))
        return jax.tree.map_with_path(make, initial.spec)
