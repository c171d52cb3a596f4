from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def graph():
    """None: each scenario has a graph of its own."""
