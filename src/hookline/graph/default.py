"""Functions on the default graph."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from hookline.graph.graph import Operation, Tensor, get_default_graph


def name_scope(name: str | None) -> AbstractContextManager[str]:
    """Calls `Graph.name_scope` of the default graph."""
    return get_default_graph().name_scope(name)


def control_dependencies(control_inputs: Iterable[Operation | Tensor | str] | None) -> AbstractContextManager[None]:
    """Calls `Graph.control_dependencies` of the default graph."""
    return get_default_graph().control_dependencies(control_inputs)


def add_to_collection(name: Hashable, value: Any) -> None:
    """Calls `Graph.add_to_collection` of the default graph."""
    get_default_graph().add_to_collection(name, value)


def get_collection(key: Hashable, scope: str | None = None) -> list[Any]:
    """Calls `Graph.get_collection` of the default graph."""
    return get_default_graph().get_collection(key, scope)
