"""Operations and tensors: inference, views, operators, errors where they are built."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hookline as hl


def evaluate(tensor, feed_dict=None):
    with hl.Session() as sess:
        return sess.run(tensor, feed_dict)


def test_shapes_and_dtypes_are_inferred_with_an_open_batch_size():
    x = hl.placeholder("float32", [None, 8, 8], name="x")
    flat = hl.op(lambda x: x.reshape(x.shape[0], -1))(x)
    logits = hl.op(jnp.dot)(flat, np.ones((64, 10), "float32"))
    labels = hl.placeholder("int32", [None])
    loss = hl.op(lambda z, y: -jnp.mean(jnp.take_along_axis(z, y[:, None], 1)))(logits, labels)

    assert flat.shape == (None, 64)
    assert logits.shape == (None, 10)
    assert loss.shape == ()
    assert loss.dtype == jnp.float32
    assert x.dtype == jnp.float32


def test_unknown_shape_still_runs():
    x = hl.placeholder("float32", [None], name="x")
    rows = hl.op(lambda x: jnp.stack([x[0]] * int(x.shape[0])))(x)
    anything = hl.placeholder("float32", name="any")
    assert rows.shape is None
    assert (anything * 2).shape is None
    assert evaluate(rows, {x: [1.0, 2.0]}).shape == (2,)
    assert evaluate(anything * 2, {anything: [[1.0]]}).shape == (1, 1)


def test_error_in_a_function_is_raised_at_its_node_with_its_name():
    with pytest.raises(TypeError, match="dot_general") as caught:
        hl.op(jnp.dot, name="project")(hl.constant(np.ones((2, 3))), hl.constant(np.ones((2, 3))))
    assert any("dot 'project'" in note or "'project'" in note for note in caught.value.__notes__)


def test_decorated_function_still_runs_on_plain_values():
    @hl.op
    def double(x):
        """Doubles."""
        return 2 * x

    assert double(4) == 8
    assert double.__doc__ == "Doubles."
    assert double.__name__ == "double"
    assert isinstance(double(hl.constant(4.0)), hl.Tensor)
    assert isinstance(double.node(4.0), hl.Tensor)
    with pytest.raises(TypeError, match="A function is required"):
        hl.op(3)


class Pair(NamedTuple):
    left: jax.Array
    right: dict


def test_views_index_any_pytree_and_add_nothing_to_the_graph():
    made = hl.op(lambda x: Pair(x, {"deep": [x + 1, jnp.stack([x, x + 2])]}), name="made")(hl.constant(3.0))
    graph = hl.get_default_graph()
    graph.finalize()
    left, right = made

    assert evaluate([left, made.left, right["deep"][1][-1]]) == [3.0, 3.0, 5.0]
    assert evaluate(made.right["deep"][1][:1]).tolist() == [3.0]
    assert made.right["deep"][1].shape == (2,)
    assert made.right["deep"][1][0].shape == ()
    with pytest.raises(AttributeError, match=r"made:0\.middle: the value has no such part"):
        _ = made.middle
    with pytest.raises(KeyError, match="no such part"):
        _ = made.right["shallow"]


def test_arrays_of_known_length_unpack_and_others_give_the_reason():
    a, b = hl.constant([1.0, 2.0])
    assert evaluate([a, b]) == [1.0, 2.0]
    with pytest.raises(TypeError, match="cannot be unpacked"):
        _, _ = hl.placeholder("float32", [None], name="x")


def test_a_tensor_has_no_truth_value_and_no_array():
    x = hl.constant(1.0, name="x")
    with pytest.raises(TypeError, match=r"x:0 has no truth value before it is run.*jax\.lax\.cond"):
        bool(x)
    with pytest.raises(TypeError, match="x:0 has no value before it is run"):
        np.asarray(x)
    with pytest.raises(AttributeError):
        _ = x.numpy


def test_tensors_compare_by_identity():
    x = hl.constant(1.0)
    assert x == x
    assert x != hl.constant(1.0)
    assert len({x, x}) == 1


OPERATORS = [
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    lambda a, b: a / b,
    lambda a, b: a // b,
    lambda a, b: a % b,
    lambda a, b: a**b,
    lambda a, b: -a + abs(b),
    lambda a, b: a < b,
    lambda a, b: a <= b,
    lambda a, b: a > b,
    lambda a, b: a >= b,
]


@pytest.mark.parametrize("operate", OPERATORS)
def test_operators_give_the_results_of_arrays(operate):
    a, b = jnp.array([5.0, -2.0]), jnp.array([2.0, 3.0])
    for left, right in ((hl.constant(a), hl.constant(b)), (hl.constant(a), 3.0), (2.0, hl.constant(b))):
        values = [a if isinstance(left, hl.Tensor) else left, b if isinstance(right, hl.Tensor) else right]
        np.testing.assert_allclose(evaluate(operate(left, right)), operate(*values), rtol=1e-6)


def test_matmul_logic_and_indexing_work_with_tensors():
    a = hl.constant(np.arange(6.0).reshape(2, 3))
    assert evaluate(a @ np.ones(3)).tolist() == [3.0, 12.0]
    assert evaluate(np.ones(2) @ a).tolist() == [3.0, 5.0, 7.0]
    assert evaluate(a[hl.constant(1), 2]) == 5.0
    mask = (a > 1.0) & (a < 4.0) | ~(a >= 0.0)
    assert evaluate(mask).sum() == 2


def test_arguments_without_tensors_stay_static():
    x = hl.constant(np.ones((2, 3)))
    summed = hl.op(jnp.sum)(x, axis=1)
    nested = hl.op(lambda items, scale: scale * (items["a"] + items["b"][0]))({"a": x, "b": [2.0, "text"]}, 3)
    assert evaluate(summed).tolist() == [3.0, 3.0]
    assert evaluate(nested)[0, 0] == 9.0


def test_index_arrays_select_elements():
    x = hl.constant([1.0, 2.0, 3.0])
    assert evaluate(x[np.array([0, 2])]).tolist() == [1.0, 3.0]
    assert evaluate(x[np.array([True, False, True])]).tolist() == [1.0, 3.0]
