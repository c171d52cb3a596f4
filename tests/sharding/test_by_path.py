"""`by_path` gives arrays the spec of the first pattern that is found in their path."""

from __future__ import annotations

import re

import jax
import optax
import pytest
from jax import P

import hookline as hl


@pytest.fixture
def params(shaped):
    return {
        "embed": {"table": shaped(64, 16)},
        "layers": [{"kernel": shaped(16, 32), "bias": shaped(32)}, {"kernel": shaped(32, 16), "bias": shaped(16)}],
    }


def test_first_matching_pattern_gives_the_spec(mesh, params, specs):
    rule = hl.sharding.by_path(
        mesh, {"table$": P("model"), r"layers/0/kernel": P(None, "model"), "kernel": P("model", "data"), ".*": P()}
    )

    assert specs(rule(params)) == {
        "embed": {"table": P("model")},
        "layers": [{"kernel": P(None, "model"), "bias": P()}, {"kernel": P("model", "data"), "bias": P()}],
    }


def test_optimizer_slots_are_sharded_like_their_weights(mesh, params):
    opt_state = jax.eval_shape(optax.adam(1e-3).init, params)
    rule = hl.sharding.by_path(mesh, {"kernel|table": P("model", "data"), "bias": P("data")})

    found = rule({"params": params, "opt_state": opt_state})

    assert found["opt_state"][0].mu == found["opt_state"][0].nu == found["params"]
    assert found["params"]["layers"][1]["kernel"].spec == P("model", "data")


def test_paths_are_those_of_checkpoints(mesh, shaped, tmp_path):
    opt_state = optax.adam(1e-3).init({"dense": {"kernel": jax.numpy.ones((4, 2))}})
    with hl.Graph().as_default():
        hl.Variable(opt_state, name="opt_state")
        with hl.Session() as session:
            session.run(hl.global_variables_initializer())
            path = hl.train.Saver().save(session, tmp_path / "model.ckpt", global_step=0)
    names = [name for name, shape in hl.train.list_variables(path) if shape]

    assert names == ["opt_state/0/mu/dense/kernel", "opt_state/0/nu/dense/kernel"]
    rule = hl.sharding.by_path(mesh, {f"^{name}$": P("data") for name in names})
    assert rule({"opt_state": opt_state})["opt_state"][0].nu["dense"]["kernel"].spec == P("data")


def test_array_of_one_element_needs_no_pattern_and_fits_any(mesh, shaped, caplog):
    state = {"w": shaped(8), "n": shaped(), "w_one": shaped(1, 1), "key": jax.random.key(0), "none": None, "f": len}

    found = hl.sharding.by_path(mesh, {"w": P("data"), "one": P(), "n": P()})(state)

    assert {name: place and place.spec for name, place in found.items()} == {
        "w": P("data"), "n": P(), "w_one": P(), "key": P(), "none": None, "f": None
    }  # fmt: skip
    assert not caplog.records


def test_array_without_a_matching_pattern_is_an_error(mesh, params):
    with pytest.raises(
        ValueError,
        match=r"^sharding\.by_path: no pattern matches 'embed/table', 'layers/0/bias', 'layers/1/bias'\. Add one; "
        r"'\.\*': jax\.P\(\), as the last, replicates the rest\.$",
    ):
        hl.sharding.by_path(mesh, {"kernel": P()})(params)


def test_default_rule_handles_the_rest(mesh, params, specs, caplog):
    others = []

    def rest(state):
        others.extend(path for path, _ in jax.tree.leaves_with_path(state))
        return jax.tree.map(lambda leaf: jax.NamedSharding(mesh, P("data")), state)

    rule = hl.sharding.by_path(mesh, {"kernel": P("model")}, default=rest)

    assert specs(rule(params)["layers"]) == [{"kernel": P("model"), "bias": P("data")}] * 2
    assert len(others) == 3, "it is asked only for these"
    small = hl.sharding.by_path(mesh, {"kernel": P("model")}, default=hl.sharding.fsdp(mesh, min_size=20))
    assert small(params)["embed"]["table"].spec == P("data")
    whole = hl.sharding.by_path(mesh, {"kernel": P("model")}, default=jax.NamedSharding(mesh, P()))
    assert whole(params)["embed"]["table"].spec == P()
    assert not caplog.records


def test_pattern_without_a_match_gives_a_warning(mesh, params, caplog):
    hl.sharding.by_path(mesh, {"kernal": P("model"), ".*": P()})(params)

    assert [record.getMessage() for record in caplog.records] == [
        "sharding.by_path: the pattern 'kernal' matches no path."
    ]


def test_shadowed_pattern_gives_a_warning_but_a_catch_all_does_not(mesh, params, caplog):
    hl.sharding.by_path(mesh, {"kernel": P("model"), "0/kernel": P(), "bias|table": P(), ".*": P()})(params)

    assert [record.getMessage() for record in caplog.records] == [
        "sharding.by_path: the pattern '0/kernel' is never used: earlier ones match all its paths."
    ]


@pytest.mark.parametrize(
    ("shape", "spec", "said"),
    [
        ((8, 6), P("data", "model"), "splits dimension 1 of (8, 6) over 'model' into 4 parts, but 6 is no multiple "
         "of 4. Change that size, or write None for this dimension."),
        ((12,), P(("data", "model")), "splits dimension 0 of (12,) over ('data', 'model') into 8 parts, but 12 is no"),
        ((8,), P("data", None), "has 2 entries, but the array has 1 dimension. Leave the rest out; jax.P() fits any"),
    ],
)  # fmt: skip
def test_array_that_does_not_fit_its_spec_is_named(shape, spec, said, mesh, shaped):
    with pytest.raises(ValueError, match=re.escape(f"sharding.by_path: the spec {spec} of 'dense/kernel' {said}")):
        hl.sharding.by_path(mesh, {"kernel": spec})({"dense": {"kernel": shaped(*shape)}})


def test_mistakes_are_reported_at_the_creation_of_the_rule(mesh):
    by_path = hl.sharding.by_path
    with pytest.raises(TypeError, match=r"^sharding\.by_path requires a mesh as mesh, got None\.$"):
        by_path(None, {})
    with pytest.raises(TypeError, match=r"^sharding\.by_path requires a dict as patterns, got \[\('w', P\(\)\)\]\.$"):
        by_path(mesh, [("w", P())])
    with pytest.raises(TypeError, match=r"requires a jax\.P\(\.\.\.\) for the pattern 'w', got None\.$"):
        by_path(mesh, {"w": None})
    with pytest.raises(ValueError, match=r"^sharding\.by_path: the pattern '\(' is no regular expression: missing \)"):
        by_path(mesh, {"(": P()})
    with pytest.raises(
        ValueError,
        match=r"^sharding\.by_path: the spec P\('tensor',\) of the pattern 'w' names the axis 'tensor', but the "
        r"mesh has 'data' and 'model'\. Name an axis of the mesh\.$",
    ):
        by_path(mesh, {"w": P("tensor")})
    with pytest.raises(ValueError, match="the pattern 'w' names the axis 'data' twice. An axis splits one dimension."):
        by_path(mesh, {"w": P("data", "data")})
    with pytest.raises(ValueError, match="the pattern 'w' leaves a dimension open. Write None in place of UNCONST"):
        by_path(mesh, {"w": P(P.UNCONSTRAINED)})
