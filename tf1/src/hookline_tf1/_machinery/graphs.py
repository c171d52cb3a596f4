"""Graphs whose tensors, operations, variables and sessions have the methods that scripts call."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import hookline as core
from hookline.extend import require_default_graph
from hookline_tf1._machinery.ignored_arguments import ignored, log_once
from hookline_tf1._machinery.namespaces import Offers


class Graph(core.Graph):
    """A graph, with the methods that scripts call.

    References:
        `tf.Graph`.
    """

    def add_to_collections(self, names: Hashable | Iterable[Hashable], value: Any) -> None:
        """Adds a value to several collections."""
        for name in (names,) if isinstance(names, str) else set(names):  # type: ignore[arg-type]
            self.add_to_collection(name, value)

    def clear_collection(self, name: Hashable) -> None:
        """Empties a collection."""
        self.get_collection_ref(name).clear()

    def get_name_scope(self) -> str:
        """Returns the current name scope, without its slash."""
        return self.current_scope.removesuffix("/")

    @contextlib.contextmanager
    def device(self, device_name_or_function: Any) -> Iterator[None]:
        """Has no effect, logged once: XLA chooses the device."""
        if device_name_or_function is not None:
            log_once("tf.Graph.device")
        yield

    @contextlib.contextmanager
    def colocate_with(self, op: Any, ignore_existing: bool = False) -> Iterator[None]:
        """Has no effect, logged once: XLA chooses the device."""
        log_once("tf.colocate_with")
        yield

    @contextlib.contextmanager
    def gradient_override_map(self, op_type_map: Any) -> Iterator[None]:
        """Is refused: use `jax.custom_vjp` inside `hookline.op` for a custom gradient."""
        raise NotImplementedError("gradient_override_map is not available: use jax.custom_vjp inside hookline.op.")
        yield

    @contextlib.contextmanager
    def container(self, container_name: str) -> Iterator[str]:
        """Has no effect."""
        yield container_name

    def as_graph_def(self, from_version: int | None = None, add_shapes: bool = False) -> str:
        """Returns the graph's listing: graphs have no protobuf message."""
        ignored("tf.Graph.as_graph_def", from_version=from_version, add_shapes=add_shapes)
        return self.as_text()

    def is_feedable(self, tensor: Any) -> bool:
        """Returns True: each tensor may be fed."""
        return True

    def prevent_feeding(self, tensor: Any) -> None:
        """Has no effect."""

    @property
    def building_function(self) -> bool:
        """False: no graph belongs to a function."""
        return False


class GraphKeys(core.GraphKeys, metaclass=Offers):
    """The standard names of collections.

    References:
        `tf.GraphKeys`.
    """

    called = "tf.GraphKeys"


def get_default_graph() -> Graph:
    """Returns the default graph.

    References:
        `tf.get_default_graph`.
    """
    return require_default_graph(Graph)


def reset_default_graph() -> None:
    """Gives the calling thread a new, empty default graph."""
    core.reset_default_graph()
    get_default_graph()


def add_to_collection(name: Hashable, value: Any) -> None:
    """`Graph.add_to_collection` of the default graph."""
    get_default_graph().add_to_collection(name, value)


def add_to_collections(names: Any, value: Any) -> None:
    """`Graph.add_to_collections` of the default graph."""
    get_default_graph().add_to_collections(names, value)


def get_collection(key: Hashable, scope: str | None = None) -> list[Any]:
    """`Graph.get_collection` of the default graph."""
    return get_default_graph().get_collection(key, scope)


def get_collection_ref(key: Hashable) -> list[Any]:
    """`Graph.get_collection_ref` of the default graph."""
    return get_default_graph().get_collection_ref(key)


def control_dependencies(control_inputs: Any) -> Any:
    """`Graph.control_dependencies` of the default graph."""
    return get_default_graph().control_dependencies(control_inputs)


@contextlib.contextmanager
def name_scope(name: str | None = None, default_name: str | None = None, values: Any = None) -> Iterator[str]:
    """Prefixes the names of the operations created inside the block.

    References:
        `tf.name_scope`, `tf.op_scope`.
    """
    with get_default_graph().name_scope(default_name if name is None else name) as scope:
        yield scope


def op_scope(values: Any, name: str | None, default_name: str | None = None) -> Any:
    """`name_scope` with its arguments from before TF 1.0."""
    return name_scope(name, default_name, values)


def device(device_name_or_function: Any) -> Any:
    """Has no effect: XLA chooses the device."""
    return get_default_graph().device(device_name_or_function)


def colocate_with(op: Any, ignore_existing: bool = False) -> Any:
    """Has no effect: XLA chooses the device."""
    return get_default_graph().colocate_with(op, ignore_existing)


def set_random_seed(seed: int) -> None:
    """Sets the default graph's seed, for the random operations created later.

    References:
        `tf.set_random_seed`. The random numbers differ from TensorFlow's.
    """
    get_default_graph().seed = int(seed)


__all__ = [
    "Graph",
    "GraphKeys",
    "add_to_collection",
    "add_to_collections",
    "colocate_with",
    "control_dependencies",
    "device",
    "get_collection",
    "get_collection_ref",
    "get_default_graph",
    "name_scope",
    "op_scope",
    "reset_default_graph",
    "set_random_seed",
]
