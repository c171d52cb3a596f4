"""`fsdp` splits large arrays over one axis."""

from __future__ import annotations

import logging

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import P
from jax.sharding import AbstractMesh

import hookline as hl


@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((8, 16), P(None, "data")),
        ((16, 8), P("data")),
        ((8, 8), P("data")),  # The first of two.
        ((8, 18), P("data")),  # 4 does not divide 18.
        ((3, 4, 5), P(None, "data")),
        ((4,), P()),  # Less than min_size.
    ],
)
def test_array_is_split_along_its_largest_divisible_dimension(shape, spec, line, shaped):
    found = hl.sharding.fsdp(line, min_size=5)({"w": shaped(*shape)})["w"]

    assert found.is_equivalent_to(jax.NamedSharding(line, spec), len(shape))


def test_small_arrays_are_replicated_by_default(line, shaped):
    found = hl.sharding.fsdp(line)({"large": shaped(512, 512), "small": shaped(512, 508)})

    assert (found["large"].spec, found["small"].spec) == (P("data"), P())


def test_optimizer_slots_are_split_like_their_weights(line, shaped, specs):
    params = {"w": shaped(8, 16), "b": shaped(16)}
    opt_state = jax.eval_shape(optax.adam(1e-3).init, params)

    found = hl.sharding.fsdp(line, min_size=100)({"params": params, "opt_state": opt_state})

    assert specs(found["params"]) == {"w": P(None, "data"), "b": P()}
    assert found["opt_state"][0].mu == found["opt_state"][0].nu == found["params"]
    assert found["opt_state"][0].count.spec == P()


def test_indivisible_large_array_is_replicated_with_a_warning(line, shaped, caplog):
    state = {f"w{i}": shaped(50257, i) for i in (6, 7, 8, 9, 10)} | {"n": shaped()}

    found = hl.sharding.fsdp(line)(state)

    assert [found[f"w{i}"].spec for i in (6, 7, 8, 9, 10)] == [P(), P(), P(None, "data"), P(), P()]
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "sharding.fsdp: each device holds all of 'w10' (50257, 10), 'w6' (50257, 6), 'w7' (50257, 7) and 1 more: no "
        "dimension is a multiple of 4, the size of 'data'."
    )


def test_small_arrays_and_scalars_give_no_warning(line, shaped, caplog):
    hl.sharding.fsdp(line, min_size=0)({"n": shaped(), "one": shaped(1, 1), "key": jax.random.key(0)})
    hl.sharding.fsdp(line, min_size=100)({"w": shaped(3, 7)})

    assert not caplog.records


def test_keys_none_numbers_and_other_leaves_are_handled(line, shaped):
    state = {"key": jax.random.key(0), "keys": jax.random.split(jax.random.key(0), 8), "none": None, "n": 3, "f": len}

    found = hl.sharding.fsdp(line, min_size=8)(state)

    assert (found["key"].spec, found["keys"].spec, found["n"].spec) == (P(), P("data"), P())
    assert found["none"] is found["f"] is None


def test_values_are_accepted_as_a_state(line):
    found = hl.sharding.fsdp(line, min_size=0)({"jax": jnp.ones(8), "numpy": np.ones((4, 8))})

    assert (found["jax"].spec, found["numpy"].spec) == (P("data"), P(None, "data"))


@pytest.mark.parametrize(
    ("axes", "given", "split_over"),
    [
        (("x",), None, "x"),
        (("model", "data"), None, "data"),
        (("data", "fsdp"), None, "fsdp"),
        (("data", "fsdp"), "data", "data"),
        (("data", "fsdp"), ("data", "fsdp"), ("data", "fsdp")),
    ],
)
def test_axis_may_be_chosen(axes, given, split_over, shaped):
    mesh = AbstractMesh((2,) * len(axes), axes)

    assert hl.sharding.fsdp(mesh, min_size=0, axis=given)(shaped(8)).spec == P(split_over)


def test_mistakes_are_reported_at_the_creation_of_the_rule(mesh):
    fsdp = hl.sharding.fsdp
    with pytest.raises(TypeError, match=r"^sharding\.fsdp requires a mesh as mesh, got 4\.$"):
        fsdp(4)
    with pytest.raises(TypeError, match=r"^sharding\.fsdp requires a whole number as min_size, got '1'\.$"):
        fsdp(mesh, min_size="1")
    with pytest.raises(
        ValueError, match="axis names the axis 'batch', but the mesh has 'data' and 'model'. Name an axis"
    ):
        fsdp(mesh, axis="batch")
    with pytest.raises(
        ValueError, match=r"^sharding.fsdp requires axis .* none of them 'fsdp' or 'data': \('x', 'y'\)"
    ):
        fsdp(AbstractMesh((2, 2), ("x", "y")))
