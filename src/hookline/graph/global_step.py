"""The global step and the evaluation step: integer variables that count runs; a graph has at most one of each."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from hookline import arguments
from hookline.graph.graph import Graph, Tensor, get_default_graph
from hookline.graph.registry import GraphKeys
from hookline.graph.variable import Variable, is_counter


def create_global_step(graph: Graph | None = None) -> Variable:
    """Creates the global step, an integer scalar called `global_step` that starts at 0.

    Args:
        graph: The graph to add it to; by default the default graph.

    Raises:
        ValueError: The graph already has one.

    Example:
        >>> import hookline as hl
        >>> step = hl.train.create_global_step()
        >>> hl.train.get_global_step() is step
        True

    References:
        `tf.train.create_global_step`. Its dtype is int64 if JAX has 64-bit types enabled, else int32.
    """
    graph = get_default_graph() if graph is None else graph
    if get_global_step(graph) is not None:
        raise ValueError("The graph already has a global step: use get_global_step or get_or_create_global_step.")
    return _create_counter(graph, "global_step", [GraphKeys.GLOBAL_VARIABLES, GraphKeys.GLOBAL_STEP])


def get_global_step(graph: Graph | None = None) -> Variable | None:
    """Returns the global step of the graph, or `None` if it has none.

    It is the item of collection `GraphKeys.GLOBAL_STEP`, or else the variable called `global_step`.

    Raises:
        TypeError: It is not an integer scalar variable.
        ValueError: The collection has several items.

    Example:
        >>> import hookline as hl
        >>> hl.train.get_global_step() is None
        True
        >>> step = hl.train.create_global_step()
        >>> hl.train.get_global_step().name
        'global_step:0'

    References:
        `tf.train.get_global_step`.
    """
    graph = get_default_graph() if graph is None else graph
    if not isinstance(graph, Graph):
        raise TypeError(f"A global step belongs to a graph: give a hookline.Graph or None, got {graph!r}.")
    found = _single_item(graph, GraphKeys.GLOBAL_STEP, "global step")
    if found is None:
        named = (v for v in graph.get_collection(GraphKeys.GLOBAL_VARIABLES) if v.op.name == "global_step")
        found = next(named, None)
    if found is not None:
        assert_global_step(found)
    return found


def find_global_step(graph: Graph) -> Variable | None:
    """Returns the global step of the graph if it has a valid one, else `None`.

    A variable called `global_step` that is not an integer scalar is an error only where a global step is required.
    """
    try:
        return get_global_step(graph)
    except (TypeError, ValueError):
        return None


def get_or_create_global_step(graph: Graph | None = None) -> Variable:
    """Returns the global step of the graph, and creates it if there is none.

    Example:
        >>> import hookline as hl
        >>> step = hl.train.get_or_create_global_step()
        >>> hl.train.get_or_create_global_step() is step
        True

    References:
        `tf.train.get_or_create_global_step`.
    """
    existing = get_global_step(graph)
    return create_global_step(graph) if existing is None else existing


def assert_global_step(global_step_tensor: Any) -> None:
    """Checks that the global step is an integer scalar variable, and raises `TypeError` if not.

    Example:
        >>> import hookline as hl
        >>> hl.train.assert_global_step(hl.train.create_global_step())
        >>> hl.train.assert_global_step(3)
        Traceback (most recent call last):
        ...
        TypeError: The global step must be a variable that holds one integer, got 3. ...

    References:
        `tf.train.assert_global_step`.
    """
    if not isinstance(global_step_tensor, Variable) or not is_counter(global_step_tensor):
        made = f" (made at {global_step_tensor.op.location})" if isinstance(global_step_tensor, Variable) else ""
        raise TypeError(
            f"The global step must be a variable that holds one integer, got {global_step_tensor!r}{made}. A variable "
            f"called 'global_step' is taken for it: give it an integer as initial value, or another name."
        )


def global_step(sess: Any, global_step_tensor: Tensor) -> int:
    """Returns the value of the global step in a session, as a Python int, without waiting for the device.

    A monitored session is read without its hooks.

    Example:
        >>> import hookline as hl
        >>> step = hl.train.create_global_step()
        >>> with hl.Session() as sess:
        ...     sess.run(step.initializer)
        ...     hl.train.global_step(sess, step)
        0

    References:
        `tf.train.global_step`.
    """
    raw_session = getattr(arguments.check_has("global_step", "sess", sess, "a session", "run"), "raw_session", None)
    value = (sess if raw_session is None else raw_session()).run(global_step_tensor)
    return arguments.check_int("global_step", "global_step_tensor", value)


def get_or_create_eval_step() -> Variable:
    """Returns the evaluation step of the default graph, and creates it if there is none.

    It is a local variable: checkpoints do not hold it, and each session starts it at 0. `evaluate_once` and
    `evaluate_repeatedly` count it. A hand-written loop fetches `get_or_create_eval_step().assign_add(1)` in each run.

    Raises:
        ValueError: Collection `GraphKeys.EVAL_STEP` holds several items.

    Example:
        >>> import hookline as hl
        >>> step = hl.train.get_or_create_eval_step()
        >>> hl.train.get_or_create_eval_step() is step
        True

    References:
        `tf.contrib.training.get_or_create_eval_step`. Its dtype is int64 if JAX has 64-bit types enabled, else int32.
    """
    graph = get_default_graph()
    existing = get_eval_step(graph)
    if existing is not None:
        return existing
    return _create_counter(graph, "eval_step", [GraphKeys.LOCAL_VARIABLES, GraphKeys.EVAL_STEP])


def get_eval_step(graph: Graph) -> Variable | None:
    """Returns the evaluation step of a graph, or `None` if it has none.

    Raises:
        ValueError: Collection `GraphKeys.EVAL_STEP` holds several items.
    """
    return _single_item(graph, GraphKeys.EVAL_STEP, "evaluation step")


def _create_counter(graph: Graph, name: str, collections: list[str]) -> Variable:
    with graph.as_default(), graph.name_scope(None):
        return Variable(lambda: jnp.zeros((), int), name=name, trainable=False, collections=collections)


def _single_item(graph: Graph, key: str, what: str) -> Any:
    """Returns the item of a collection, or `None` if it is empty; raises `ValueError` if it holds several."""
    items = graph.get_collection(key)
    if len(items) > 1:
        raise ValueError(f"Collection {key!r} holds {len(items)} items; a graph has one {what}.")
    return items[0] if items else None
