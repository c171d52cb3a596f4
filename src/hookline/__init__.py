"""hookline: JAX training under sessions and hooks."""

import importlib
from typing import TYPE_CHECKING, Any

from hookline.interrupts import held_back
from hookline.version import __version__

with held_back():
    from hookline import errors, sharding, summary
    from hookline.graph import (
        Graph,
        GraphKeys,
        Operation,
        Tensor,
        Variable,
        add_to_collection,
        constant,
        control_dependencies,
        get_collection,
        get_default_graph,
        global_variables,
        global_variables_initializer,
        gradients,
        group,
        host_op,
        latch,
        local_variables,
        local_variables_initializer,
        name_scope,
        no_op,
        op,
        placeholder,
        random_key,
        report_uninitialized_variables,
        reset_default_graph,
        skip_updates_if,
        trainable_variables,
        update,
        variables,
        variables_initializer,
    )
    from hookline.session import RunMetadata, RunOptions, Session, SessionConfig

if TYPE_CHECKING:
    from hookline import data, distributed, train

__all__ = [
    "Graph",
    "GraphKeys",
    "Operation",
    "RunMetadata",
    "RunOptions",
    "Session",
    "SessionConfig",
    "Tensor",
    "Variable",
    "__version__",
    "add_to_collection",
    "constant",
    "control_dependencies",
    "data",
    "distributed",
    "errors",
    "get_collection",
    "get_default_graph",
    "global_variables",
    "global_variables_initializer",
    "gradients",
    "group",
    "host_op",
    "latch",
    "local_variables",
    "local_variables_initializer",
    "name_scope",
    "no_op",
    "op",
    "placeholder",
    "random_key",
    "report_uninitialized_variables",
    "reset_default_graph",
    "sharding",
    "skip_updates_if",
    "summary",
    "train",
    "trainable_variables",
    "update",
    "variables",
    "variables_initializer",
]


def __getattr__(name: str) -> Any:
    # Most of the library is behind these modules: they are loaded when first used.
    if name in ("data", "distributed", "train"):
        with held_back():
            return importlib.import_module(f"hookline.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
