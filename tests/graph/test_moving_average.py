"""Moving averages: names, numbers and restored variables, as TensorFlow gives them (measured with 2.21)."""

from __future__ import annotations

import numpy as np
import pytest

import hookline as hl
import hookline.numpy as hnp

A = "ExponentialMovingAverage"


def variables():
    v = hl.Variable(10.0, name="v")
    w = hl.Variable(1.0, name="w", trainable=False)
    return v, w


def shown(restored):
    return {name: variable.op.name for name, variable in restored.items()}


def after(averages, x, values, **others):
    """Returns the averages and their sources, read after the update of each run with that value."""
    step = averages.apply([x])
    with hl.control_dependencies([step]):
        kept = [hl.global_variables()[i].read_value() for i in range(len(hl.global_variables()))]
    names = [v.op.name for v in hl.global_variables()]
    with hl.Session() as sess:
        sess.run(hl.global_variables_initializer())
        rows = [[float(value) for value in sess.run(kept, {"x:0": value, **others})] for value in values]
    return {name: [row[i] for row in rows] for i, name in enumerate(names)}


def test_evaluation_restores_averages_without_creating_any():
    v, w = variables()
    averages = hl.train.ExponentialMovingAverage(0.9)
    assert averages.variables_to_restore() == {f"v/{A}": v, "w": w}
    assert averages.variables_to_restore([v]) == {f"v/{A}": v, "w": w}
    assert averages.variables_to_restore([w]) == {f"w/{A}": w, "v": v}
    assert averages.variables_to_restore([v, w]) == {f"v/{A}": v, f"w/{A}": w}
    assert averages.variables_to_restore([]) == {"v": v, "w": w}
    assert averages.average(v) is None


def test_variables_to_restore_includes_averages_after_apply():
    v, w = variables()
    averages = hl.train.ExponentialMovingAverage(0.9, name="E")
    averages.apply([w])
    assert averages.variables_to_restore() == {"v/E": v, "w/E": w}
    assert shown(averages.variables_to_restore([v])) == {"v/E": "v", "w": "w", "w/E": "w/E"}
    assert hl.get_collection(hl.GraphKeys.MOVING_AVERAGE_VARIABLES) == [w]


def test_tensors_restore_their_averages_under_their_own_names():
    v, _ = variables()
    product = hl.op(lambda v: v * 2, name="product")(v)
    averages = hl.train.ExponentialMovingAverage(0.9, zero_debias=True)
    averages.apply([product, v])
    assert shown(averages.variables_to_restore()) == {
        f"v/{A}": "v",
        "w": "w",
        f"product/{A}": f"product/{A}",
        f"product/{A}/biased": f"product/{A}/biased",
        f"product/{A}/local_step": f"product/{A}/local_step",
    }
    assert hl.get_collection(hl.GraphKeys.MOVING_AVERAGE_VARIABLES) == [v]
    assert averages.average(product).trainable is False


def test_evaluation_uses_the_averages_of_a_training(tmp_path):
    def model():
        v, w = variables()
        return v, w, hl.train.ExponentialMovingAverage(0.5)

    with hl.Graph().as_default(), hl.Session() as sess:
        v, w, averages = model()
        with hl.control_dependencies([v.assign(20.0), w.assign(7.0)]):
            step = averages.apply()
        sess.run(hl.global_variables_initializer())
        sess.run(step)
        path = hl.train.Saver().save(sess, str(tmp_path / "model"))
    with hl.Graph().as_default(), hl.Session() as sess:
        v, w, averages = model()
        hl.train.Saver(averages.variables_to_restore()).restore(sess, path)
        assert sess.run([v, w]) == [15.0, 7.0]


@pytest.mark.parametrize("scope", [None, "outer"])
def test_average_name_is_the_same_before_and_after_apply(scope):
    with hl.name_scope("layer"):
        v = hl.Variable(1.0, name="v")
        t = hl.op(lambda v: {"loss": v}, name="out")(v)["loss"]
    averages = hl.train.ExponentialMovingAverage(0.9)
    before = averages.average_name(v), averages.average_name(t)
    with hl.name_scope(scope):
        averages.apply([v, t])
    assert before == (averages.average_name(v), averages.average_name(t)) == (f"layer/v/{A}", f"layer/out/loss/{A}")
    assert averages.average(v).op.name == before[0]
    second = hl.train.ExponentialMovingAverage(0.9)
    before = second.average_name(v)
    second.apply([v])
    assert before == second.average_name(v) == second.average(v).op.name == f"layer/v/{A}_1"


def test_second_apply_creates_nothing():
    v, _ = variables()
    averages = hl.train.ExponentialMovingAverage(0.9)
    first = averages.apply([v])
    count = len(hl.global_variables())
    second = averages.apply([v])
    assert len(hl.global_variables()) == count
    assert (first.name, second.name) == (A, f"{A}_1")


def test_the_average_of_a_tensor_starts_at_zero():
    x = hl.placeholder("float32", [], name="x")
    values = after(hl.train.ExponentialMovingAverage(0.5), x, [6.0, 6.0, 0.0, 0.0])
    assert values == {f"x/{A}": [3.0, 4.5, 2.25, 1.125]}


def test_the_number_of_updates_bounds_the_decay():
    x = hl.placeholder("float32", [], name="x")
    values = after(hl.train.ExponentialMovingAverage(0.9, num_updates=0), x, [10.0, 10.0, 0.0])
    np.testing.assert_allclose(values[f"x/{A}"], [9.0, 9.899999618530273, 0.9899997711181641], rtol=1e-6)


def test_zero_debias_divides_by_the_accumulated_weight():
    x = hl.placeholder("float32", [], name="x")
    values = after(hl.train.ExponentialMovingAverage(0.5, zero_debias=True), x, [10.0, 10.0, 0.0, 4.0])
    assert values[f"x/{A}/biased"] == [5.0, 7.5, 3.75, 3.875]
    assert values[f"x/{A}/local_step"] == [1.0, 2.0, 3.0, 4.0]
    np.testing.assert_allclose(values[f"x/{A}"], [10.0, 10.0, 4.285714149475098, 4.133333206176758], rtol=1e-6)


def test_zero_debias_with_a_number_of_updates():
    x = hl.placeholder("float32", [], name="x")
    n = hl.Variable(-1.0, name="n", trainable=False)
    with hl.control_dependencies([n.assign_add(1.0)]):
        number = n.read_value()
    values = after(hl.train.ExponentialMovingAverage(0.9, number, True), x, [10.0, 10.0, 0.0, 4.0])
    np.testing.assert_allclose(
        values[f"x/{A}/biased"], [9.0, 9.818181991577148, 2.454545497894287, 3.524475574493408], rtol=1e-6
    )
    np.testing.assert_allclose(
        values[f"x/{A}"], [10.0, 10.153846740722656, 2.49350643157959, 3.556352138519287], rtol=1e-6
    )


def test_zero_debias_changes_nothing_for_a_variable():
    v, _ = variables()
    averages = hl.train.ExponentialMovingAverage(0.5, zero_debias=True)
    with hl.control_dependencies([v.assign(0.0)]):
        step = averages.apply([v])
    with hl.Session() as sess:
        sess.run(hl.global_variables_initializer())
        assert len(hl.global_variables()) == 3
        sess.run(step)
        assert sess.run(averages.average(v)) == 5.0


def test_a_decay_may_be_a_tensor():
    x = hl.placeholder("float32", [], name="x")
    decay = hl.placeholder("float32", [], name="decay")
    values = after(hl.train.ExponentialMovingAverage(decay), x, [8.0, 8.0], **{"decay:0": 0.5})
    assert values == {f"x/{A}": [4.0, 6.0]}


def test_average_moves_only_where_the_decay_is_below_one():
    x = hl.placeholder("float32", [], name="x")
    training = hl.placeholder("bool", [], name="training")
    averages = hl.train.ExponentialMovingAverage(hnp.where(training, 0.5, 1.0))
    step = averages.apply([x])
    with hl.Session() as sess:
        sess.run(hl.global_variables_initializer())
        seen = []
        for on in (True, False, True):
            sess.run(step, {x: 8.0, training: on})
            seen.append(float(sess.run(averages.average(x))))
    assert seen == [4.0, 4.0, 6.0]


def test_value_without_average_is_refused():
    x = hl.placeholder("float32", [None], name="x")
    averages = hl.train.ExponentialMovingAverage(0.5)
    with pytest.raises(TypeError, match=r"the shape of 'x' is open.*Reduce it first"):
        averages.apply([x])
    with pytest.raises(TypeError, match="'count' holds int32"):
        averages.apply([hl.placeholder("int32", [], name="count")])
    with pytest.raises(TypeError, match="only variables and tensors have averages, got 3"):
        averages.apply([3])
    with pytest.raises(TypeError, match="zero_debias is True or False, got 'name'"):
        hl.train.ExponentialMovingAverage(0.5, None, "name")
    for wrong in ("high", True):
        with pytest.raises(TypeError, match="decay must be a number or a tensor, got"):
            hl.train.ExponentialMovingAverage(wrong)
    with pytest.raises(ValueError, match=r"decay must lie between 0 and 1, got 1\.5"):
        hl.train.ExponentialMovingAverage(np.float32(1.5))
    assert hl.global_variables() == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_slow_average_moves_in_narrow_floats_too(dtype):
    v = hl.Variable(np.zeros((), dtype), name="v", dtype=dtype)
    averages = hl.train.ExponentialMovingAverage(np.float32(0.9999) if dtype == "float32" else 0.9999)
    with hl.control_dependencies([v.assign(np.asarray(4.0, dtype))]):
        step = averages.apply(v)
    with hl.Session() as sess:
        sess.run(hl.global_variables_initializer())
        sess.run(step)
        np.testing.assert_allclose(np.asarray(sess.run(averages.average(v)), "float32"), 4e-4, rtol=1e-2)
