"""What another front end over the same engine needs, beside the other public modules: see docs/extend.md."""

from hookline.signals.interrupts import held_back

with held_back():
    from hookline import log
    from hookline.data.reader import Stream
    from hookline.errors import from_os_error
    from hookline.graph.conditions import Guard
    from hookline.graph.front_end import FrontEnd
    from hookline.graph.gradient import Gradient
    from hookline.graph.graph import Function, default_graph, holds_tensor
    from hookline.graph.nodes import spec as specs
    from hookline.graph.nodes.check import Check
    from hookline.graph.nodes.nodes import Constant, HostCall, SessionCall, Source
    from hookline.graph.nodes.random import of_worker
    from hookline.graph.nodes.views import Path, take_path
    from hookline.graph.variable import Update
    from hookline.hooks.triggers import Runs
    from hookline.monitored.hooked.hook_list import is_claimed
    from hookline.monitored.hooked.hooked_session import recall
    from hookline.summary.ops import clean_name, tags_below
    from hookline.summary.records import frame, read_records

__all__ = [
    "Check",
    "Constant",
    "FrontEnd",
    "Function",
    "Gradient",
    "Guard",
    "HostCall",
    "Path",
    "Runs",
    "SessionCall",
    "Source",
    "Stream",
    "Update",
    "clean_name",
    "default_graph",
    "frame",
    "from_os_error",
    "held_back",
    "holds_tensor",
    "is_claimed",
    "log",
    "of_worker",
    "read_records",
    "recall",
    "specs",
    "tags_below",
    "take_path",
]
