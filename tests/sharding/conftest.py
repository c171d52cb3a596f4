"""States without values, on meshes without devices: a rule needs neither."""

from __future__ import annotations

import jax
import pytest
from jax.sharding import AbstractMesh, AxisType


@pytest.fixture
def mesh():
    """Two by four."""
    return AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


@pytest.fixture
def line():
    """Four in a row."""
    return AbstractMesh((4,), ("data",), axis_types=(AxisType.Auto,))


@pytest.fixture
def shaped():
    """Makes an abstract array."""
    return lambda *shape, dtype="float32": jax.ShapeDtypeStruct(shape, dtype)


@pytest.fixture
def specs():
    """Shows a tree of shardings as one of specs."""
    return lambda tree: jax.tree.map(lambda place: place.spec, tree)
