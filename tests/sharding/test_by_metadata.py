"""`by_metadata` obeys Flax's partitioning metadata."""

from __future__ import annotations

import jax
import optax
import pytest
from flax import linen as nn
from flax import nnx
from jax import P

import hookline as hl

ONES = nn.initializers.ones
RULES = (("embed", "data"), ("mlp", "model"), ("heads", None))


def linen(shaped, init, **options):
    model = nn.Dense(8, kernel_init=init, **options)
    return jax.eval_shape(model.init, jax.random.key(0), shaped(1, 16))["params"]


def in_nnx(init):
    def made():
        model = nnx.Linear(16, 8, kernel_init=init, rngs=nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    with nnx.use_eager_sharding(False):
        return nnx.state(nnx.eval_shape(made))


def test_mesh_axes_of_linen_are_used(mesh, shaped):
    params = linen(shaped, nn.with_partitioning(ONES, ("data", "model")))
    opt_state = jax.eval_shape(optax.adam(1e-3).init, params)

    found = hl.sharding.by_metadata(mesh)({"params": params, "opt_state": opt_state})

    assert found["params"]["kernel"].value.spec == P("data", "model")
    assert found["params"]["bias"].spec == P()
    assert found["opt_state"][0].mu == found["params"]
    assert jax.tree.structure(found) == jax.tree.structure({"params": params, "opt_state": opt_state})


def test_logical_axes_of_linen_are_mapped(mesh, shaped):
    params = linen(shaped, nn.with_logical_partitioning(ONES, ("embed", "mlp")))

    assert hl.sharding.by_metadata(mesh, RULES)(params)["kernel"].value.spec == P("data", "model")
    with nn.logical_axis_rules((("mlp", ("data", "model")),)):
        found = hl.sharding.by_metadata(mesh)(params)
    assert found["kernel"].value.spec == P(None, ("data", "model"))


def test_rules_of_the_model_have_priority(mesh, shaped):
    params = linen(
        shaped, nn.with_logical_partitioning(ONES, ("embed", "mlp"), rules=(("embed", None), ("mlp", "data")))
    )

    assert hl.sharding.by_metadata(mesh, RULES)(params)["kernel"].value.spec == P(None, "data")


def test_metadata_of_nnx_is_used(mesh):
    state = in_nnx(nnx.with_partitioning(ONES, ("data", "model")))

    found = hl.sharding.by_metadata(mesh)(state)

    assert jax.tree.structure(found) == jax.tree.structure(state)
    assert jax.tree.leaves(found) == jax.tree.leaves(nnx.get_named_sharding(state, mesh))
    assert [place.spec for place in jax.tree.leaves(found)].count(P("data", "model")) == 3, "weights, mu and nu"


@pytest.mark.parametrize("named", [("embed", "mlp"), P("embed", "mlp"), ("data", "mlp")])
def test_logical_axes_of_nnx_are_mapped(named, mesh):
    state = in_nnx(nnx.with_partitioning(ONES, named))

    found = hl.sharding.by_metadata(mesh, RULES)(state)

    assert [place.spec for place in jax.tree.leaves(found)].count(P("data", "model")) == 3


def test_rules_of_an_nnx_variable_are_used(mesh):
    state = in_nnx(nnx.with_partitioning(ONES, ("embed", "mlp"), sharding_rules=(("mlp", None),)))

    found = hl.sharding.by_metadata(mesh, RULES)(state)

    assert found[0]["kernel"].get_value().spec == P("data", None)


def test_default_rule_handles_arrays_without_metadata(mesh, shaped):
    boxed = linen(shaped, nn.with_partitioning(ONES, (None, "model")))
    params = {"boxed": boxed, "plain": shaped(16, 8), "n": shaped(), "none": None, "f": len}

    found = hl.sharding.by_metadata(mesh, default=hl.sharding.fsdp(mesh, min_size=20))(params)

    assert found["boxed"]["kernel"].value.spec == P(None, "model")
    assert (found["boxed"]["bias"].spec, found["plain"].spec, found["n"].spec) == (P(), P("data"), P())
    assert found["none"] is found["f"] is None


def test_patterns_may_precede_it_and_a_box_adds_nothing_to_a_path(mesh, shaped):
    params = linen(shaped, nn.with_partitioning(ONES, (None, "model")))
    state = in_nnx(nnx.with_partitioning(ONES, (None, "model")))
    rule = hl.sharding.by_path(mesh, {"mu/kernel$": P("data")}, default=hl.sharding.by_metadata(mesh))

    assert rule({"mu": params})["mu"]["kernel"].value.spec == P("data")
    found = rule(state)
    assert found[1]["opt_state"][0]["mu"]["kernel"].get_value().spec == P("data")
    assert found[0]["kernel"].get_value().spec == P(None, "model")


def test_slots_of_another_shape_need_their_own_rule(mesh, shaped):
    params = linen(shaped, nn.with_partitioning(ONES, ("data", "model")))
    opt_state = jax.eval_shape(optax.scale_by_factored_rms(min_dim_size_to_factor=8).init, params)
    metadata = hl.sharding.by_metadata(mesh)

    with pytest.raises(ValueError, match="of 'v_row/kernel' has 2 entries, but the array has 1 dimension."):
        metadata(opt_state)

    found = hl.sharding.by_path(mesh, {"v_row": P("data"), "v_col": P("model")}, default=metadata)(opt_state)
    assert [slot["kernel"].value.spec for slot in (found.v_row, found.v_col)] == [P("data"), P("model")]
    assert metadata(opt_state.v)["kernel"].value.spec == P(), "it has one element, for those two are in its place"


def test_fsdp_splits_boxed_arrays(line, shaped):
    params = linen(shaped, nn.with_partitioning(ONES, (None, "model")))

    assert hl.sharding.fsdp(line, min_size=20)(params)["kernel"].value.spec == P("data")


def test_logical_axes_without_rules_are_an_error(mesh, shaped):
    params = linen(shaped, nn.with_logical_partitioning(ONES, ("embed", "mlp")))

    with pytest.raises(
        ValueError, match="'kernel' has the logical axes 'embed', 'mlp', and there are no rules for them"
    ):
        hl.sharding.by_metadata(mesh)(params)


def test_logical_axis_without_a_rule_gives_a_warning(mesh, shaped, caplog):
    params = linen(shaped, nn.with_logical_partitioning(ONES, ("heads", "mpl")))

    assert hl.sharding.by_metadata(mesh, RULES)(params)["kernel"].value.spec == P(None, None)
    assert [record.getMessage() for record in caplog.records] == [
        "sharding.by_metadata: no rule has the logical axis 'mpl', so nothing is split there. To accept that, add "
        "('mpl', None)."
    ]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            ("data", "mlp"),
            r"names the axis 'mlp', but the mesh has 'data' and 'model'\. Give rules=, if it is a logical ",
        ),
        (("data", "model", None), r"has 3 entries, but the array has 2 dimensions\."),
        ((None, ("data", "model", "more")), r"names the axis 'more'"),
    ],
)
def test_array_that_does_not_fit_its_spec_is_named(names, said, mesh, shaped):
    params = linen(shaped, nn.with_partitioning(ONES, names))

    with pytest.raises(ValueError, match=rf"^sharding\.by_metadata: the spec P\(.*\) of 'kernel' {said}"):
        hl.sharding.by_metadata(mesh)(params)


def test_mistakes_are_reported_at_the_creation_of_the_rule(mesh):
    by_metadata = hl.sharding.by_metadata
    with pytest.raises(TypeError, match=r"^sharding\.by_metadata requires a mesh as mesh, got 'data'\.$"):
        by_metadata("data")
    with pytest.raises(
        TypeError, match="requires pairs of a logical axis and an axis of the mesh as rules, got 'embed'"
    ):
        by_metadata(mesh, ["embed"])
    with pytest.raises(ValueError, match="the rule for 'embed' names the axis 'tensor', but the mesh has 'data' and"):
        by_metadata(mesh, [("embed", ["data", "tensor"])])
