"""`tf.cond` and `tf.case`: compute both branches and select one result.

XLA cannot skip a part of the graph that other parts use. Operations that a branch does not return have no effect, and
its updates of variables count only if the branch is taken.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline import Tensor
from hookline.extend import Source, Update
from hookline_tf1._machinery.graphs import get_default_graph, name_scope
from hookline_tf1._machinery.ignored_arguments import ignored
from hookline_tf1._machinery.nodes import TAKEN, argument, constant, convert_to_tensor, node
from hookline_tf1._machinery.tensors import Operation


class BranchedUpdate(Operation, Update):
    """An update in a branch: it changes nothing if the branch is not taken."""

    def __init__(self, name: str, variables: Any, fn: Callable[..., Any], args: tuple[Any, ...], **how: Any) -> None:
        taken = None if how.get("is_initializer") else TAKEN.get()
        self._is_branched = taken is not None
        if not self._is_branched:
            Update.__init__(self, name, variables, fn, args, **how)
            return

        def perhaps(old: Any, taken: Any, *given: Any) -> Any:
            return jax.tree.map(lambda new, kept: jnp.where(taken, new, kept), fn(old, *given), old)

        Update.__init__(self, name, variables, perhaps, (taken, *args))

    @property
    def increment(self) -> int | None:  # type: ignore[override]
        """The increment of an integer, if the host knows it; None in a branch."""
        return None if self._is_branched else self._increment

    @increment.setter
    def increment(self, value: int | None) -> None:  # type: ignore[misc]
        self._increment = value


@contextlib.contextmanager
def _branch(taken: Any) -> Iterator[None]:
    outer = TAKEN.get()
    both = taken if outer is None else node(lambda a, b: a & b, "taken", {"a": outer, "b": taken})
    token = TAKEN.set(both)
    graph = get_default_graph()
    first = graph.version
    try:
        yield
    finally:
        TAKEN.reset(token)
    for operation in graph.get_operations()[first:]:
        if isinstance(operation, Source):
            raise NotImplementedError(
                f"tf.cond: a branch takes an element of a dataset ({operation.node_def}), which would be used up where "
                f"the branch is not taken, too. Use one iterator and feed a handle, or make two training operations."
            )


def cond(
    pred: Any,
    true_fn: Callable[[], Any] | None = None,
    false_fn: Callable[[], Any] | None = None,
    strict: bool = False,
    name: str = "cond",
    fn1: Callable[[], Any] | None = None,
    fn2: Callable[[], Any] | None = None,
) -> Any:
    """Selects the result of one of two functions.

    References:
        `tf.cond`. Both branches are computed, so neither may fail when it is not taken. A gradient passes through the
        taken branch, but is NaN where the gradient of the other one is infinite.
    """
    true_fn, false_fn = (fn1 if true_fn is None else true_fn), (fn2 if false_fn is None else false_fn)
    if not callable(true_fn) or not callable(false_fn):
        raise TypeError("tf.cond requires two functions, true_fn and false_fn.")
    if isinstance(pred, bool | np.bool_):
        raise TypeError("pred must not be a Python bool")
    pred = convert_to_tensor(pred)
    with name_scope(name, "cond"):
        with _branch(pred):
            yes = true_fn()
        with _branch(node(lambda taken: ~taken, "not_taken", {"taken": pred})):
            no = false_fn()
        if not strict:
            yes, no = _unpacked(yes), _unpacked(no)
        ours, structure = jax.tree.flatten(yes, is_leaf=_is_none)
        theirs, other = jax.tree.flatten(no, is_leaf=_is_none)
        if structure != other:
            raise ValueError(f"tf.cond: the functions return different structures, {structure} and {other}.")
        pairs = zip(ours, theirs, strict=True)
        return jax.tree.unflatten(structure, [_merged(pred, a, b) for a, b in pairs])


def _unpacked(value: Any) -> Any:
    """Returns the only item of a list, like TensorFlow without `strict`."""
    is_list = isinstance(value, list | tuple) and not hasattr(value, "_fields")
    return value[0] if is_list and len(value) == 1 else value


def _is_none(value: Any) -> bool:
    return value is None


def _merged(pred: Any, yes: Any, no: Any) -> Any:
    if not isinstance(yes, Tensor) and (yes is None or hasattr(yes, "node_def")):
        # Operations have no values to merge: the result depends on both.
        graph = get_default_graph()
        with graph.control_dependencies([item for item in (yes, no) if item is not None]):
            return constant(True, name="Merge")
    yes, no = (value if isinstance(value, Tensor) else convert_to_tensor(value) for value in (yes, no))
    return node(lambda p, a, b: jnp.where(p, a, b), "Merge", {"p": pred, "a": argument(yes), "b": argument(no)})


def case(
    pred_fn_pairs: Any,
    default: Callable[[], Any] | None = None,
    exclusive: bool = False,
    strict: bool = False,
    name: str = "case",
) -> Any:
    """Selects the result of the function with the first true predicate.

    References:
        `tf.case`. See `cond`; without a default the last function is the default.
    """
    ignored("tf.case", exclusive=exclusive)
    pairs = list(pred_fn_pairs.items() if isinstance(pred_fn_pairs, dict) else pred_fn_pairs)
    chosen: Callable[[], Any] = pairs.pop()[1] if default is None else default
    for pred, fn in reversed(pairs):
        chosen = _either(pred, fn, chosen, strict, name)
    return chosen()


def _either(pred: Any, fn: Callable[[], Any], rest: Any, strict: bool, name: str) -> Callable[[], Any]:
    return lambda: cond(pred, fn, rest, strict, name)


__all__ = ["case", "cond"]
