"""What another front end over the same engine needs, beside the other public modules; docs/extend.md has an example.

Graphs: a class of graphs has a `FrontEnd`, its behaviour towards users, and `default_graph` returns the default graph
as one of that class.

Nodes, for operations that the public functions do not make: a `Constant`; a `Function`, which JAX traces; a `HostCall`
and a `SessionCall`, which Python runs; an `Update` of variables; a `Gradient`; a `Guard`, which may hold updates back;
a `Source`, which reads data, such as a `Stream`. A `Check` has an operation refuse wrong arguments in a run. `specs`
are what is known of values before a run. A `Path` leads to a part of a value, and `take_path` follows it.
`holds_tensor` looks for tensors in arguments. `of_worker` gives each worker its own random numbers.

Hooks: `Runs` is a trigger that counts runs. `is_claimed` says whether a session has a hook already, and `recall` has a
retired hook called again.

Summaries and files: `clean_name` and `tags_below` make the names of summaries, `frame` and `read_records` are for files
of records, and `from_os_error` is for errors of files.

In the package itself: `held_back` for imports, and `log`, whose loggers escape control characters.
"""

from hookline.interrupts import held_back

with held_back():
    from hookline import log
    from hookline.data.stream import Stream
    from hookline.errors import from_os_error
    from hookline.graph import spec as specs
    from hookline.graph.check import Check
    from hookline.graph.front_end import FrontEnd
    from hookline.graph.gradient import Gradient
    from hookline.graph.graph import Function, default_graph, holds_tensor
    from hookline.graph.guard import Guard
    from hookline.graph.nodes import Constant, HostCall, SessionCall, Source
    from hookline.graph.random import of_worker
    from hookline.graph.variable import Update
    from hookline.graph.views import Path, take_path
    from hookline.hooks.triggers import Runs
    from hookline.monitored.hook_list import is_claimed
    from hookline.monitored.hooked import recall
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
