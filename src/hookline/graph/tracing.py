"""The graph whose functions JAX is tracing."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hookline.graph.graph import Graph

TRACED: ContextVar[Graph | None] = ContextVar("TRACED", default=None)
"""The graph of the program that is being traced in this thread.

It is not the default graph: a traced function adds nothing to it.
"""
