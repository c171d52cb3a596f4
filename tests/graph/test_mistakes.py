"""Common mistakes with graphs: each gives one sentence with the name, the mistake and the remedy."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hookline as hl
from hookline import errors


def run(tensor, feed_dict=None):
    with hl.Session() as sess:
        return sess.run(tensor, feed_dict)


def fed(value, dtype="float32", shape=None):
    x = hl.placeholder(dtype, shape, name="x")
    return run(hl.host_op(lambda x: x)(x) if dtype is str else x * 1, {x: value})


def enter_twice():
    session = hl.Session()
    with session, session:
        pass


def enter_closed():
    session = hl.Session()
    session.close()
    with session:
        pass


def from_host(value, spec):
    return run(hl.host_op(lambda: value, name="batch", spec=spec)() * 2)


def weight(value=1.0):
    return hl.Variable(value, name="weight")


def read_in_an_initial_value(value):
    hl.Variable(weight(value) * 2, name="double")
    run(hl.global_variables_initializer())


def finalized(add):
    x = hl.constant(1.0, name="x")
    hl.get_default_graph().finalize()
    with hl.name_scope(None):
        return add(x)


def count_past_the_end():
    step = hl.train.get_or_create_global_step()
    last, more = step.assign(2**31 - 1).op, step.assign_add(1)
    with hl.Session() as sess:
        sess.run(step.initializer)
        sess.run(last)
        try:
            sess.run(more)
        finally:
            assert sess.global_step == 2**31 - 1  # nothing is lost
            assert sess.run(step) == 2**31 - 1


def load_step(value):
    step = hl.train.get_or_create_global_step()
    with hl.Session() as sess:
        sess.run(step.initializer)
        sess.load({"global_step": value})


def minimize(loss, **arguments):
    return hl.train.Optimizer(optax.sgd(0.1)).minimize(loss, **arguments)


FLOATS = jax.ShapeDtypeStruct((2,), "float32")
NO_VALUE = r"Const:0 has no value before it is run\. .*hookline\.op"

MISTAKES = {
    "a number as target": (lambda: hl.Session(37), TypeError, "target must be a string or .*Cluster, got 37"),
    "a graph as target": (lambda: hl.Session(hl.Graph()), TypeError, "give a graph as graph="),
    "a session entered twice": (enter_twice, RuntimeError, "entered already"),
    "a closed session entered": (enter_closed, RuntimeError, "closed Session"),
    "float of a tensor": (lambda: float(hl.constant(1.0)), TypeError, NO_VALUE),
    "int of a tensor": (lambda: int(hl.constant(1)), TypeError, NO_VALUE),
    "a tensor as an index": (lambda: [1, 2][hl.constant(1)], TypeError, NO_VALUE),
    "bool of a tensor": (lambda: bool(hl.constant(1.0)), TypeError, "no truth value"),
    "np.sum of a tensor": (lambda: np.sum(hl.constant(1.0)), TypeError, NO_VALUE),
    "jnp.sum of a tensor": (lambda: jnp.sum(hl.constant(1.0)), ValueError, NO_VALUE),
    "jnp.exp of a tensor": (lambda: jnp.exp(hl.constant(1.0)), ValueError, NO_VALUE),
    "jit of a tensor": (lambda: jax.jit(lambda x: x)(hl.constant(1.0)), ValueError, NO_VALUE),
    "a tensor in a traced function": (
        lambda: (lambda t: hl.op(lambda x: t * x)(hl.constant(2.0)))(hl.constant(1.0)),
        TypeError,
        r"'Const:0' is used inside a function that JAX is tracing.*hookline\.op\(fn\)\(\.\.\., tensor\)",
    ),
    "a slice of unknown length": (lambda: hl.constant([1.0, 2.0])[: hl.constant(1)], TypeError, "dynamic_slice"),
    "a shape as text": (lambda: hl.placeholder("float32", "3"), TypeError, r"such as \[None, 3\], got '3'"),
    "a shape as number": (lambda: hl.placeholder("float32", 0), TypeError, "got 0"),
    "a shape of numbers with a point": (lambda: hl.placeholder("float32", [2.5]), TypeError, "got 2.5"),
    "a negative dimension": (lambda: hl.placeholder("float32", [-1, 3]), ValueError, "write None for one that is open"),
    "no dtype": (lambda: hl.placeholder(None), TypeError, "requires a dtype"),
    "a misspelt dtype": (lambda: hl.placeholder("flaot32"), TypeError, "'flaot32' is not a dtype"),
    "feeds in a list": (lambda: run(weight() * 1.0, [1.0]), TypeError, r"feed_dict must be a dict.*got \[1\.0\]"),
    "feeds in a string": (lambda: run(weight() * 1.0, "x"), TypeError, "feed_dict must be a dict"),
    "a tensor fed": (lambda: fed(hl.constant(1.0, name="c")), TypeError, "is fed the tensor 'c:0'"),
    "a number too large to feed": (lambda: fed(1e300), errors.InvalidArgumentError, "holds 1e.300, which float32"),
    "an integer too large to feed": (lambda: fed(2**40, "int32"), errors.InvalidArgumentError, "but int32 holds only"),
    "a number fed as text": (lambda: fed(5, str), errors.InvalidArgumentError, "'x:0' is not text: 5"),
    "text of another shape": (lambda: fed(["a"], str, []), errors.InvalidArgumentError, r"shape \(1,\), but \(\) is"),
    "a number as global step": (lambda: minimize(weight() * 1.0, global_step=5), TypeError, "variable to increment"),
    "a number as loss": (lambda: minimize(5.0), TypeError, "the loss must be a tensor, got 5.0"),
    "a name to train": (lambda: minimize(weight() * 1.0, var_list=["w"]), TypeError, "only variables can be trained"),
    "a variable twice": (
        lambda: (lambda w: minimize(w * 1.0, var_list=[w, w]))(weight()), ValueError, "list contains a variable twice",
    ),
    "no initial value": (lambda: hl.Variable(None), ValueError, "requires an initial value, got None"),
    "a function without a value": (lambda: hl.Variable(lambda: None), ValueError, "its function returned None"),
    "a name that climbs": (lambda: hl.Variable(1.0, name="../../etc"), ValueError, "'../../etc' is not a name"),
    "a flag as name": (lambda: hl.Variable(1.0, False), TypeError, "A name is a string, got False"),
    "text assigned": (lambda: weight().assign("a"), TypeError, r"'weight' holds float32\[\] and cannot hold 'a'"),
    "None assigned": (lambda: weight().assign(None), TypeError, "cannot hold None"),
    "a number too large to assign": (lambda: weight().assign([1e300]), ValueError, "'weight': the value holds 1e.300"),
    "another shape from the host": (
        lambda: from_host(np.ones(3, "float32"), FLOATS), errors.InvalidArgumentError,
        r"HostOp 'batch' .* returned float32\[3\], but its spec promises float32\[2\]",
    ),
    "another kind from the host": (
        lambda: from_host(np.ones(2), jax.ShapeDtypeStruct((2,), "int32")), errors.InvalidArgumentError,
        r"returned float64\[2\], but its spec promises int32\[2\]",
    ),
    "another structure from the host": (
        lambda: from_host({"a": 1.0}, FLOATS), errors.InvalidArgumentError, "returned the structure",
    ),
    "a variable in an initial value": (
        lambda: read_in_an_initial_value(1.0), errors.FailedPreconditionError,
        r"The initial value of 'double' reads variable 'weight'.*`weight\.initialized_value\(\)`",
    ),
    "a counter in an initial value": (
        lambda: read_in_an_initial_value(1), errors.FailedPreconditionError, r"`weight\.initialized_value\(\)`",
    ),
    "an op in a finalized graph": (
        lambda: finalized(lambda x: hl.op(jnp.exp, name="more")(x)), RuntimeError,
        r"^Graph is finalized and cannot be modified\. exp 'more' was to be added",
    ),
    "a sum in a finalized graph": (lambda: finalized(lambda x: x + 1.0), RuntimeError, "add 'add' was to be added"),
    "a variable in a finalized graph": (
        lambda: finalized(lambda x: hl.Variable(x, name="late")), RuntimeError, "Variable 'late' was to be added",
    ),
    "a step past the end": (
        count_past_the_end, errors.FailedPreconditionError, "cannot count to 2147483648: its dtype is int32.*_x64",
    ),
    "a step assigned past the end": (
        lambda: hl.train.get_or_create_global_step().assign(2**31), ValueError, "but int32 holds only",
    ),
    "a step loaded past the end": (lambda: load_step(np.int64(2**31)), ValueError, "but int32 holds only"),
    "a constant of 64 bits": (lambda: hl.constant(2**40), ValueError, "'Const' holds 1099511627776, but .*enable_x64"),
    "a constant beyond 64 bits": (lambda: hl.constant(2**70), ValueError, "larger than any integer"),
    "a constant of the wrong kind": (lambda: hl.constant(1.5, "int32"), TypeError, "cannot be made one of int32"),
    "a constant of too few numbers": (lambda: hl.constant([1, 2], shape=[3]), ValueError, "do not fill the shape"),
    "a dependency that is no list": (
        lambda: hl.control_dependencies(hl.no_op()).__enter__(), TypeError, "requires a list of operations",
    ),
    "a group of a number": (lambda: hl.group(5), TypeError, "got 5 of type int"),
    "a group of nothing": (lambda: hl.group(None), TypeError, "got None"),
    "a gradient of a number": (lambda: hl.gradients(5, weight()), TypeError, "ys must be tensors or variables, got 5"),
    "a gradient by a name": (lambda: hl.gradients(weight() * 1.0, "w"), TypeError, "xs must be tensors.*got 'w'"),
    "a function that is none": (lambda: hl.update(weight(), 3.0), TypeError, "update requires a function"),
    "text on the device": (lambda: hl.placeholder(str, name="s") + 1, TypeError, "'s:0' holds text or an object"),
    "a text constant on the device": (lambda: hl.op(jnp.sum)(hl.constant("a")), TypeError, "hookline.host_op for it"),
    "a number beside text": (lambda: fed(["a", 3], str), errors.InvalidArgumentError, "is not text"),
    "ragged text": (lambda: fed([["a"], ["a", "b"]], str), errors.InvalidArgumentError, "is not"),
    "an unknown length": (lambda: len(hl.placeholder("float32", [None])), TypeError, "is not known before it is run"),
    "a rounded tensor": (lambda: round(hl.constant(1.5)), TypeError, "has no value before it is run"),
    "a formatted tensor": (lambda: f"{hl.constant(1.5):.3f}", TypeError, "has no value before it is run"),
    "a dtype as spec": (lambda: hl.host_op(int, spec=jnp.float32), TypeError, "spec must be a pytree of arrays"),
    "a scope that climbs": (lambda: hl.name_scope("../../").__enter__(), ValueError, r"'\.\./\.\.' is not a name"),
    "a number as scope": (lambda: hl.name_scope(3).__enter__(), TypeError, "A name is a string, got 3"),
    "text as rate": (lambda: hl.train.Optimizer(optax.sgd, learning_rate="a"), TypeError, "learning_rate is a number"),
    "a large number added": (lambda: hl.constant(1) + 2**40, ValueError, "add 'add' .* a number"),
    "a large number from the host": (
        lambda: from_host(2**40, np.int32(0)), errors.InvalidArgumentError, "returned a value that holds 1099511627776",
    ),
    "a summary in a finalized graph": (
        lambda: finalized(lambda x: hl.summary.scalar("loss", x)), RuntimeError, "Summary 'loss' was to be added",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_named_with_its_remedy(name):
    mistake, kind, message = MISTAKES[name]
    with pytest.raises(kind, match=message) as caught:
        mistake()
    assert len(str(caught.value).splitlines()) == 1


def test_valid_values_that_look_like_mistakes_are_accepted():
    assert run(hl.constant("a")) == "a"
    assert run(hl.constant(["a", "b"])) == ["a", "b"]
    assert fed("a", str) == "a"
    assert fed([], "int32").dtype == jnp.int32
    assert np.isinf(fed(np.inf))
    assert hl.placeholder("float32", np.array([2, 3])).shape == (2, 3)
    assert (jnp.ones(2) * hl.constant(3.0)).shape == (2,)
    assert hl.Variable(lambda: jnp.ones(2) * weight().initialized_value()).shape == (2,)


def test_arithmetic_of_constants_equals_that_of_arrays():
    results = run(
        [
            hl.constant(1.0) / hl.constant(0.0),
            ~hl.constant(True),
            hl.constant(-8.0) ** (1 / 3),
            hl.constant(2**31 - 1) + 1,
            hl.constant([1.0, 2.0]) / hl.constant([0.0, 1.0]),
        ]
    )
    assert np.isinf(results[0])
    assert results[1] == np.False_
    assert np.isnan(results[2])
    assert results[3] == -(2**31)
    assert np.isinf(results[4][0])
    assert run(hl.constant(1.5)).dtype == jnp.float32


def test_lists_are_arrays_beside_arrays():
    v = hl.Variable(np.zeros(2, "float32"), name="v")
    changes = [v.assign([1.0, 2.0]), v.assign_add((1, 2)), v.assign([hl.constant(5.0), 6.0])]
    ones = [1.0, 2.0]
    sums = [v + ones, ones - v, v * [hl.constant(2.0), 3.0], v > ones]
    with hl.Session() as sess:
        sess.run(v.initializer)
        assert [sess.run(change).tolist() for change in changes] == [[1, 2], [2, 4], [5, 6]]
        assert [value.tolist() for value in sess.run(sums)] == [[6, 8], [-4, -4], [10, 18], [True, True]]
    tree = hl.Variable({"a": [np.float32(1.0), np.float32(2.0)]}, name="tree")
    with pytest.raises(ValueError, match="holds the structure"):
        tree.assign([1.0, 2.0])


def test_groups_take_lists_and_dicts():
    v = hl.Variable(0.0, name="v")
    all_of_them = hl.group([v.assign_add(1.0), [v.assign_add(2.0)]], {"more": v.assign_add(4.0)})
    with hl.Session() as sess:
        sess.run(v.initializer)
        sess.run(all_of_them)
        assert sess.run(v) == 7.0


def test_host_op_without_arguments_is_called_in_each_run():
    batches = iter(range(10))
    number = hl.host_op(lambda: next(batches), spec=np.int32(0))()
    assert isinstance(number, hl.Tensor)
    with hl.Session() as sess:
        assert [int(sess.run(number * 2)) for _ in range(3)] == [0, 2, 4]


def test_views_are_found_by_their_names():
    x = hl.placeholder("float32", [2], name="x")
    pair = hl.op(lambda x: {"sum": x.sum(), "all": (x, -x)}, name="pair")(x)
    (grad,) = hl.gradients(pair["sum"], x)
    names = [grad.name, x[0].name, x[:1].name, pair["all"][1].name]
    assert names == ["gradients:0[0]", "x:0[0]", "x:0[slice(None, 1, None)]", "pair:0['all'][1]"]
    results = [np.asarray(value).tolist() for value in run(names, {x: [3.0, 4.0]})]
    assert results == [[1.0, 1.0], 3.0, [3.0], [-3.0, -4.0]]
    for name in ("x:1", "x:0[", "x:0[__import__('os')]", "x:00"):
        with pytest.raises(ValueError, match="is not the name of a tensor"):
            hl.get_default_graph().get_tensor_by_name(name)


def test_constants_have_the_given_dtype_and_shape():
    made = [hl.constant(1, "float32"), hl.constant(0, shape=[2, 3]), hl.constant([1, 2, 3, 4], "int32", [2, 2])]
    assert [(t.dtype, t.shape) for t in made] == [("float32", ()), ("int32", (2, 3)), ("int32", (2, 2))]
    assert run(made[2]).tolist() == [[1, 2], [3, 4]]


def test_names_that_differ_in_case_are_numbered():
    assert [hl.constant(0.0, name=name).op.name for name in ("W", "w", "w", "W")] == ["W", "w_1", "w_2", "W_3"]


def test_operations_on_a_variable_are_named_after_it_in_the_current_scope():
    with hl.name_scope("layer"):
        v = hl.Variable(0.0, name="v")
        names = [v.assign(1.0).op.name, v.assign_add(1.0).op.name, v.read_value().op.name]
    assert names == ["layer/v/assign", "layer/v/assign_add", "layer/v/read"]
    with hl.name_scope("tower"):
        hl.add_to_collection(hl.GraphKeys.UPDATE_OPS, v.assign_sub(1.0))
    hl.add_to_collection(hl.GraphKeys.UPDATE_OPS, v.assign_sub(2.0))
    # Scripts with several towers look for their own updates.
    (found,) = hl.get_collection(hl.GraphKeys.UPDATE_OPS, scope="tower")
    assert found.name == "tower/layer/v/assign_sub:0"
    assert len(hl.get_collection(hl.GraphKeys.UPDATE_OPS, scope="layer")) == 1


def test_only_jax_gets_the_error_that_a_tensor_has_no_value():
    x = hl.constant([1.0, 2.0])
    assert not hasattr(x, "__jax_array__")
    assert dict(inspect.getmembers(x))["name"] == "Const:0"
    assert len(x) == 2


def test_leaves_of_a_fed_tree_are_checked_like_arrays():
    v = hl.Variable({"a": 1.0, "n": 1}, name="v", trainable=False)
    read = hl.op(lambda v: v["a"] + v["n"])(v)
    assert run(read, {v: {"a": np.float64(2.0), "n": 3}}) == 5.0
    for value, problem in (({"a": 1e300, "n": 1}, "holds 1e.300"), ({"a": 1.0, "n": 2**40}, "holds 1099511627776"),
                           ({"a": "x", "n": 1}, "has dtype"), ({"a": 1.0, "n": 1.5}, "has dtype")):  # fmt: skip
        with pytest.raises(errors.InvalidArgumentError, match=rf"'v:0' at \[.*{problem}"):
            run(read, {v: value})
