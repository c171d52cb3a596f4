"""Groups of variables, and the operations that give them their initial values."""

from __future__ import annotations

from collections.abc import Iterable

from hookline.graph.graph import get_default_graph
from hookline.graph.keys import GraphKeys
from hookline.graph.ops import group
from hookline.graph.tensor import Kind, Operation, Tensor
from hookline.graph.variable import Variable


def global_variables() -> list[Variable]:
    """Returns the variables that all workers share and that checkpoints hold."""
    return get_default_graph().get_collection(GraphKeys.GLOBAL_VARIABLES)


def local_variables() -> list[Variable]:
    """Returns the variables that belong to one process and are not saved."""
    return get_default_graph().get_collection(GraphKeys.LOCAL_VARIABLES)


def trainable_variables() -> list[Variable]:
    """Returns the variables that optimizers change by default."""
    return get_default_graph().get_collection(GraphKeys.TRAINABLE_VARIABLES)


def variables_initializer(var_list: Iterable[Variable], name: str = "init") -> Operation:
    """Returns an operation that initialises the given variables, in one program."""
    return group(*(variable.initializer for variable in var_list), name=name)


def global_variables_initializer() -> Operation:
    """Returns an operation that initialises all global variables made so far.

    References:
        `tf.global_variables_initializer`.
    """
    return variables_initializer(global_variables(), name="init")


def local_variables_initializer() -> Operation:
    """Returns an operation that initialises all local variables made so far."""
    return variables_initializer(local_variables(), name="init_local")


def report_uninitialized_variables(var_list: Iterable[Variable] | None = None) -> Tensor:
    """Returns a tensor of the names of the variables that have no value yet: an empty list when all is ready.

    Args:
        var_list: Variables to look at; by default all global and local ones made so far.

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
    watched = [*global_variables(), *local_variables()] if var_list is None else list(var_list)
    return Operation(
        Kind.SESSION, "report_uninitialized_variables", fn=lambda session: session.uninitialized(watched)
    ).output
