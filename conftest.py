"""Fixtures of the tests in tests/ and of the doctests in src/."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

# Before anything imports JAX, which reads it once.
os.environ["JAX_PLATFORMS"] = "cpu"


@pytest.fixture(autouse=True)
def fresh_default_graph() -> Iterator[None]:
    """Gives each test a default graph of its own; costs nothing to those that do not use the graph."""
    yield
    if graph := sys.modules.get("hookline.graph"):
        graph.reset_default_graph()
