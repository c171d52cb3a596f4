"""Names that another front end on hookline's sessions needs, beside the public modules: see docs/extend.md."""

from hookline.signals.interrupts import defer_sigint

with defer_sigint():
    from hookline import log
    from hookline.data.reader import Stream
    from hookline.errors import from_os_error
    from hookline.graph.conditions import Guard
    from hookline.graph.front_end import FrontEnd
    from hookline.graph.gradient import Gradient
    from hookline.graph.graph import Function, contains_tensor, require_default_graph
    from hookline.graph.nodes import spec as specs
    from hookline.graph.nodes.check import Check
    from hookline.graph.nodes.nodes import Constant, HostCall, SessionCall, Source
    from hookline.graph.nodes.random import fold_in_worker
    from hookline.graph.nodes.views import Path, get_at_path
    from hookline.graph.variable import Update
    from hookline.hooks.triggers import Runs
    from hookline.monitored.hooked.hook_list import is_claimed
    from hookline.monitored.hooked.hooked_session import resume_callbacks
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
    "contains_tensor",
    "defer_sigint",
    "fold_in_worker",
    "frame",
    "from_os_error",
    "get_at_path",
    "is_claimed",
    "log",
    "read_records",
    "require_default_graph",
    "resume_callbacks",
    "specs",
    "tags_below",
]
