"""The message classes of event files, from the tensorboard package.

Importing this module takes longer than importing all the rest of `hookline.summary`, so it is imported on first use.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError
from tensorboard.compat.proto import event_pb2, graph_pb2, summary_pb2

# The generated modules fill their namespaces at run time, so type checkers do not see them.
_events: Any = event_pb2
_summaries: Any = summary_pb2
_graphs: Any = graph_pb2

Event: Any = _events.Event
SessionLog: Any = _events.SessionLog
Summary: Any = _summaries.Summary
GraphDef: Any = _graphs.GraphDef

__all__ = ["DecodeError", "Event", "GraphDef", "SessionLog", "Summary"]
