"""Runs the functions of `map`, `filter` and the like: each is a separate graph, run for each element."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from hookline import (
    Session,
    Tensor,
    get_default_graph,
    global_variables,
    local_variables,
    placeholder,
    variables_initializer,
)
from hookline_tf1._machinery import nodes
from hookline_tf1._machinery.graphs import Graph
from hookline_tf1.data import _elements
from hookline_tf1.data._elements import Component

Values = Mapping[Tensor, Any]


class Mapped:
    """Turns a function of tensors into a function of an element's arrays.

    Args:
        fn: The function, called with an element; the parts of a tuple are separate arguments.
        spec: The dtypes and partial shapes of the elements.

    Attributes:
        result: The function's result: tensors of the inner graph, or a dataset that depends on them.
    """

    def __init__(self, fn: Callable[..., Any], spec: Any) -> None:
        self._graph = Graph(seed=get_default_graph().seed)
        self._local = threading.Lock()
        self._session: Session | None = None
        with self._graph.as_default():
            self.arguments = _elements.mapped(_placeholder, spec)
            is_tuple = isinstance(self.arguments, tuple) and not hasattr(self.arguments, "_fields")
            self.result = fn(*self.arguments) if is_tuple else fn(self.arguments)
            self._init = variables_initializer([*global_variables(), *local_variables()])

    def returned(self) -> Any:
        """Returns the result as a structure of tensors."""
        with self._graph.as_default():
            # As in TF, a list at the top is a tuple of components: functions such as `tf.decode_csv` return a list.
            result = _joined(tuple(self.result) if isinstance(self.result, list) else self.result)
            return jax.tree.map(nodes.convert_to_tensor, result)

    def fed(self, element: Any) -> dict[Tensor, Any]:
        """Returns the feeds of the inner graph for an element."""
        tensors, values = jax.tree.leaves(self.arguments), jax.tree.leaves(element)
        return dict(zip(tensors, values, strict=True))

    def run(self, fetches: Any, element: Any) -> Any:
        """Computes tensors of the inner graph for an element, as NumPy arrays."""
        with self._local, jax.default_device(jax.devices("cpu")[0]):
            session = self._session
            if session is None:
                session = self._session = Session(graph=self._graph)
                session.run(self._init)
            return jax.tree.map(_on_host, session.run(fetches, self.fed(element)))


def _placeholder(component: Component) -> Tensor:
    if component.dtype is None:
        return placeholder(object, component.shape, name="element")
    return nodes.placeholder(component.dtype, component.shape, name="element")


def _on_host(value: Any) -> Any:
    return _elements.as_array(value)


def _joined(result: Any) -> Any:
    """Stacks each list of tensors inside a structure to one tensor, as in TF."""
    if isinstance(result, list):
        parts = [_joined(part) for part in result]
        return nodes.convert_to_tensor(parts)
    if isinstance(result, dict):
        return type(result)((key, _joined(part)) for key, part in result.items())
    if isinstance(result, tuple):
        parts = [_joined(part) for part in result]
        return type(result)(*parts) if hasattr(result, "_fields") else tuple(parts)
    return result if isinstance(result, Tensor) else np.asarray(getattr(result, "value", result))


class Pass:
    """One pass over a dataset, from its beginning.

    Args:
        values: The values of the tensors that the dataset depends on.
    """

    def __init__(self, values: Values) -> None:
        self._values = values
        self._begun: Counter[object] = Counter()

    def value(self, given: Any) -> Any:
        """Replaces the tensors in an argument by their values."""
        return jax.tree.map(lambda leaf: self._values[leaf] if isinstance(leaf, Tensor) else leaf, given)

    def arrays(self, given: Any) -> Any:
        """Converts a structure, with its tensors' values, to NumPy arrays."""
        return jax.tree.map(_elements.as_array, self.value(given))

    def whole(self, given: Any) -> int:
        """Returns an argument as an integer."""
        return int(np.asarray(self.value(given)))

    def with_values(self, values: Values) -> Pass:
        """Returns a pass over a dataset that a mapped function made, with further values."""
        inner = Pass({**self._values, **values})
        inner._begun = self._begun
        return inner

    def times_begun(self, stage: object) -> int:
        """Counts the beginnings of a stage in this pass; returns the number of earlier ones."""
        self._begun[stage] += 1
        return self._begun[stage] - 1


Make = Callable[[Pass], Iterator[Any]]
