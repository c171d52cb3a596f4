"""The evaluation step: the integer variable that counts the runs of an evaluation; a graph has at most one."""

from __future__ import annotations

import jax.numpy as jnp

from hookline.graph.graph import Graph, get_default_graph
from hookline.graph.keys import GraphKeys
from hookline.graph.variable import Variable


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
    existing = eval_step_of(graph)
    if existing is not None:
        return existing
    with graph.name_scope(None):
        return Variable(
            lambda: jnp.zeros((), int),
            name="eval_step",
            trainable=False,
            collections=[GraphKeys.LOCAL_VARIABLES, GraphKeys.EVAL_STEP],
        )


def eval_step_of(graph: Graph) -> Variable | None:
    """Returns the evaluation step of a graph, or `None` if it has none.

    Raises:
        ValueError: Collection `GraphKeys.EVAL_STEP` holds several items.
    """
    items = graph.get_collection(GraphKeys.EVAL_STEP)
    if len(items) > 1:
        raise ValueError(
            f"Collection {GraphKeys.EVAL_STEP!r} holds {len(items)} items; a graph has one evaluation step."
        )
    return items[0] if items else None
