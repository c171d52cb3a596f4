"""hookline: JAX training under sessions and hooks."""

import importlib
from typing import TYPE_CHECKING, Any

from hookline.signals.interrupts import defer_sigint
from hookline.version import __version__

if TYPE_CHECKING:
    from hookline import (
        cli,
        clock,
        data,
        distributed,
        errors,
        extend,
        numpy,
        sharding,
        sinks,
        summary,
        testing,
        train,
    )
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
    from hookline.session import RawSession, RunMetadata, RunOptions, Session, SessionConfig

__all__ = [
    "Graph",
    "GraphKeys",
    "Operation",
    "RawSession",
    "RunMetadata",
    "RunOptions",
    "Session",
    "SessionConfig",
    "Tensor",
    "Variable",
    "__version__",
    "add_to_collection",
    "cli",
    "clock",
    "constant",
    "control_dependencies",
    "data",
    "distributed",
    "errors",
    "extend",
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
    "numpy",
    "op",
    "placeholder",
    "random_key",
    "report_uninitialized_variables",
    "reset_default_graph",
    "sharding",
    "sinks",
    "skip_updates_if",
    "summary",
    "testing",
    "train",
    "trainable_variables",
    "update",
    "variables",
    "variables_initializer",
]


# The public modules, as docs/public.md lists them.
_MODULES = frozenset(
    {
        "cli",
        "clock",
        "data",
        "distributed",
        "errors",
        "extend",
        "numpy",
        "sharding",
        "sinks",
        "summary",
        "testing",
        "train",
    }
)
_OF_SESSION = frozenset({"RawSession", "RunMetadata", "RunOptions", "Session", "SessionConfig"})


def __getattr__(name: str) -> Any:
    # These modules import JAX, which `hookline --help` does not need, so they are imported at the first use of a name.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with defer_sigint():
        if name in _MODULES:
            return importlib.import_module(f"hookline.{name}")
        module = importlib.import_module("hookline.session" if name in _OF_SESSION else "hookline.graph")
    found = globals()[name] = getattr(module, name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
