"""A user's shardings of a state are checked before any value is moved."""

from __future__ import annotations

import re

import equinox as eqx
import jax
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from jax import NamedSharding, P
from jax.sharding import SingleDeviceSharding

import hookline as hl


@pytest.fixture
def one():
    """A mesh of one device."""
    return jax.make_mesh((1,), ("data",))


@pytest.fixture
def state(shaped):
    return {"b": shaped(8), "layer": [shaped(4, 8), None, shaped(8, 4)], "n": shaped(dtype="int32")}


def test_one_sharding_applies_to_all(one, state):
    whole = NamedSharding(one, P())

    assert hl.sharding.resolve_shardings("Loop", state, whole) == [whole] * 4


def test_one_device_applies_to_all(state):
    [device] = jax.devices()

    assert hl.sharding.resolve_shardings("Loop", state, device) == [SingleDeviceSharding(device)] * 4


def test_tree_prefix_applies_to_the_leaves_below(one, state):
    whole, rows = NamedSharding(one, P()), NamedSharding(one, P("data"))

    assert hl.sharding.resolve_shardings("Loop", state, {"b": rows, "layer": whole, "n": None}) == [
        rows,
        whole,
        whole,
        None,
    ]
    layer = [None, None, rows]
    assert hl.sharding.resolve_shardings("Loop", state, {"b": None, "layer": layer, "n": whole}) == [
        None,
        None,
        rows,
        whole,
    ]
    assert hl.sharding.resolve_shardings("Loop", state, None) == [None] * 4


def test_rule_is_called_with_the_state(one, state):
    found = hl.sharding.resolve_shardings("Loop", state, hl.sharding.fsdp(one, min_size=0))

    assert [place.spec for place in found] == [P("data"), P(None, "data"), P("data"), P()]


def test_shardings_may_be_in_a_callable_module(one):
    model = eqx.nn.MLP(4, 1, 8, 1, key=jax.random.key(0))

    found = hl.sharding.resolve_shardings("Loop", model, hl.sharding.fsdp(one, min_size=0)(model))

    shapes = {leaf.shape: place for leaf, place in zip(jax.tree.leaves(model), found, strict=True) if place is not None}
    assert shapes[8, 4].spec == P("data")
    assert found.count(None) == 2, "its activations"


def test_shardings_of_flax_metadata_are_accepted(one, shaped):
    model = nn.Dense(8, kernel_init=nn.with_partitioning(nn.initializers.ones, (None, "data")))
    params = jax.eval_shape(model.init, jax.random.key(0), shaped(1, 16))["params"]
    assert [p.spec for p in hl.sharding.resolve_shardings("Loop", params, nn.get_sharding(params, one))] == [
        P(),
        P(None, "data"),
    ]

    init = nnx.with_partitioning(nn.initializers.ones, (None, "data"))
    with nnx.use_eager_sharding(False):
        state = nnx.state(nnx.eval_shape(lambda: nnx.Linear(16, 8, kernel_init=init, rngs=nnx.Rngs(0))))
    found = hl.sharding.resolve_shardings("Loop", state, nnx.get_named_sharding(state, one))
    assert [place.spec for place in found] == [P(), P(None, "data")]


def test_leaf_that_is_no_array_has_no_sharding(one):
    whole = NamedSharding(one, P())

    assert hl.sharding.resolve_shardings("Loop", (len, 3, np.ones(2)), whole) == [None, whole, whole]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (P("data", "model"), "the spec P('data', 'model') of 'layer/0' splits dimension 1 of (4, 6) over 'model' into "
         "4 parts, but 6 is no multiple of 4."),
        (P(None, None, "data"), "the spec P(None, None, 'data') of 'layer/0' has 3 entries, but the array has 2 "
         "dimensions."),
        (P(P.UNCONSTRAINED), "the spec P(UNCONSTRAINED,) of 'layer/0' leaves a dimension open."),
    ],
)  # fmt: skip
def test_array_that_does_not_fit_its_spec_is_named(spec, said, mesh, shaped):
    with pytest.raises(ValueError, match="^" + re.escape(f"Loop: {said}")):
        hl.sharding.resolve_shardings("Loop", {"layer": [shaped(4, 6)]}, NamedSharding(mesh, spec))


def test_state_of_one_array_has_no_path(mesh, shaped):
    with pytest.raises(ValueError, match=r"^Loop: the spec P\('model',\) of the state splits dimension 0 of \(6,\)"):
        hl.sharding.resolve_shardings("Loop", shaped(6), NamedSharding(mesh, P("model")))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (P("data"), "Loop requires a sharding for 'b', got the spec P('data',). Write jax.NamedSharding(mesh, jax.P("),
        ("data", "Loop requires a sharding, a device or None for 'b', got 'data'."),
        ({"b": 3, "layer": None, "n": None}, "Loop requires a sharding, a device or None for 'b', got 3."),
    ],
)
def test_invalid_sharding_is_refused(given, said, state):
    with pytest.raises(TypeError, match="^" + re.escape(said)):
        hl.sharding.resolve_shardings("Loop", state, given)


def test_mesh_is_no_sharding(one, state):
    with pytest.raises(
        TypeError, match=r"^Loop requires shardings, got a mesh\. .* jax\.NamedSharding\(mesh, jax\.P\(\)"
    ):
        hl.sharding.resolve_shardings("Loop", state, one)


def test_list_of_devices_is_no_sharding(state):
    devices = jax.devices()
    said = rf"^Loop requires shardings, got a list of devices\. .* jax\.make_mesh\(\({len(devices)},\), \('data',\), "
    with pytest.raises(TypeError, match=said):
        hl.sharding.resolve_shardings("Loop", state, devices)
    places = hl.sharding.resolve_shardings("Loop", [np.zeros(2), np.zeros(2)], [devices[0]] * 2)
    assert [place.device_set for place in places] == [{devices[0]}] * 2, "a list is a state, too"


def test_tree_of_another_structure_is_refused_with_paths(one, state):
    whole = NamedSharding(one, P())
    with pytest.raises(
        ValueError, match="^Loop: the shardings have 'bias', 'weights', which the state does not have.$"
    ):
        hl.sharding.resolve_shardings("Loop", state, {"bias": whole, "weights": whole})
    with pytest.raises(
        ValueError, match="^Loop: the shardings lack 'layer/0', 'layer/2', 'n'. Write None for an array"
    ):
        hl.sharding.resolve_shardings("Loop", state, {"b": whole})
    with pytest.raises(ValueError, match="^Loop: the shardings have 'b/x', which the state does not have.$"):
        hl.sharding.resolve_shardings("Loop", state, {"b": {"x": whole}, "layer": whole, "n": whole})
    with pytest.raises(ValueError, match="^Loop: the shardings are in other containers than the state."):
        hl.sharding.resolve_shardings("Loop", state, {"b": whole, "layer": (whole, None, whole), "n": whole})


def test_abstract_mesh_is_refused(mesh, state):
    with pytest.raises(ValueError, match=r"^Loop: 'b' has an abstract mesh\. Give a mesh that has devices"):
        hl.sharding.resolve_shardings("Loop", state, NamedSharding(mesh, P()))
