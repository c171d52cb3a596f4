"""skip_updates_if: a run that changes nothing, decided on the device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hookline as hl
from hookline import errors, train


@pytest.fixture
def norm():
    return hl.placeholder("float32", (), name="norm")


def test_skipped_run_changes_nothing_but_run_counters(norm):
    step = train.create_global_step()
    weight = hl.Variable({"w": jnp.ones(3), "b": 0.5}, name="weight")
    average = train.ExponentialMovingAverage(0.9)
    mean = hl.Variable(0.0, name="mean")
    key = hl.random_key()
    noise = hl.op(jax.random.normal)(key)
    double = hl.update(weight, lambda w: jax.tree.map(lambda leaf: leaf * 2, w))
    with hl.control_dependencies([double]):
        averaged = average.apply([mean])
    train_op = hl.group(averaged, mean.assign(norm), step.assign_add(1), noise)
    guarded = hl.group(train_op, hl.skip_updates_if(norm > 10.0))
    with hl.Session() as session:
        session.run(hl.global_variables_initializer())
        session.run(guarded, {norm: 1.0})
        before = session.snapshot()
        session.run(guarded, {norm: 11.0})
        after = session.snapshot()
    went_on = {name for name in before if not same(before[name], after[name])}
    assert went_on == {"global_step", "random_key/draws"}
    assert before["weight"]["w"].tolist() == [2.0] * 3
    assert after["global_step"] == 2


def same(one, other):
    return all(map(np.array_equal, jax.tree.leaves(one), jax.tree.leaves(other)))


def test_fetches_of_a_skipped_run_have_the_computed_values(norm):
    weight = hl.Variable(1.0, name="weight")
    new = weight.assign_add(norm)
    with hl.Session() as session:
        session.run(hl.global_variables_initializer())
        assert session.run((new, weight, hl.skip_updates_if(norm > 10.0)), {norm: 11.0}) == (12.0, 1.0, True)
        assert session.run(weight) == 1.0


def test_one_of_several_conditions_is_enough(norm):
    weight = hl.Variable(1.0, name="weight")
    guards = [hl.skip_updates_if(norm > 10.0), hl.skip_updates_if(norm < 0.0)]
    with hl.Session() as session:
        session.run(hl.global_variables_initializer())
        for value in (11.0, 5.0, -1.0):
            session.run((weight.assign_add(1.0), guards), {norm: value})
        assert session.run(weight) == 2.0


def test_user_counter_is_not_updated_in_a_skipped_run_on_host_and_device(norm):
    seen = hl.Variable(0, name="seen", trainable=False)
    run = (seen.assign_add(1), hl.skip_updates_if(norm > 10.0))
    with hl.Session() as session:
        session.run(hl.global_variables_initializer())
        assert session.run(seen) == 0  # From here on the host counts along.
        for value in (1.0, 11.0, 1.0):
            session.run(run, {norm: value})
        assert session.run(seen) == 2


def test_keys_are_not_updated_in_a_skipped_run(norm):
    key = hl.Variable(lambda: jax.random.key(0), name="key")
    split = hl.update(key, lambda key: jax.random.split(key, 1)[0])
    with hl.Session() as session:
        session.run(hl.global_variables_initializer())
        first = session.run(key)
        session.run((split, hl.skip_updates_if(norm > 10.0)), {norm: 11.0})
        assert session.run(key) == first


def test_initializers_run_in_a_skipped_run(norm):
    weight = hl.Variable(1.0, name="weight")
    with hl.Session() as session:
        session.run((weight.initializer, hl.skip_updates_if(norm > 10.0)), {norm: 11.0})
        assert session.run(weight) == 1.0


def test_condition_of_several_values_is_refused_at_its_definition():
    with pytest.raises(ValueError, match=r"must be one bool, got an array of shape \(2,\): reduce it"):
        hl.skip_updates_if(hl.constant([True, False]))


@pytest.mark.parametrize("condition", [0.5, np.nan, 1])
def test_condition_that_is_no_bool_is_refused_at_its_definition(condition):
    with pytest.raises(TypeError, match=r"The condition must be one bool, got (float|int)32: compare it"):
        hl.skip_updates_if(hl.constant(condition))


def test_guard_cannot_be_fed(norm):
    weight = hl.Variable(1.0, name="weight")
    guard = hl.skip_updates_if(norm > 10.0)
    with hl.Session() as session:
        session.run(hl.global_variables_initializer())
        with pytest.raises(errors.InvalidArgumentError, match=r"cannot be fed: it skips updates\. Feed its cond"):
            session.run((weight.assign_add(1.0), guard), {guard: True, norm: 1.0})


def test_update_to_another_shape_cannot_be_skipped(norm):
    grows = hl.Variable(hl.host_op(lambda: np.ones(1, np.float32))(), name="grows")
    longer = grows.assign(hl.op(lambda v: jnp.concatenate([v, v]))(grows))
    with hl.Session() as session:
        session.run(hl.global_variables_initializer())
        with pytest.raises(errors.InvalidArgumentError, match="cannot skip an update of 'grows' that gives it"):
            session.run((longer, hl.skip_updates_if(norm > 10.0)), {norm: 1.0})
        assert session.run(grows).shape == (1,)


@pytest.mark.rounding
@pytest.mark.parametrize("optimizer", [optax.sgd(0.1, momentum=0.9), optax.adam(0.01)])
def test_guarded_runs_that_are_not_skipped_equal_unguarded_ones(optimizer):
    def weights(guarded):
        with hl.Graph(seed=3).as_default():
            rng = np.random.default_rng(0)
            x, y = rng.normal(size=(32, 64)).astype("f"), rng.normal(size=(32, 1)).astype("f")
            layers = [hl.Variable(rng.normal(size=shape).astype("f"), name="w") for shape in ((64, 64), (64, 1))]
            loss = hl.op(lambda a, b: jnp.mean((jnp.tanh(x @ a) @ b - y) ** 2))(*layers)
            train_op = train.Optimizer(optimizer).minimize(loss, train.create_global_step())
            guard = hl.skip_updates_if(hl.op(jnp.isnan)(loss))
            with hl.Session() as session:
                session.run(hl.global_variables_initializer())
                for _ in range(20):
                    session.backend.run_with_hook_fetches(train_op, (guard,) if guarded else (loss,))
                return session.snapshot()

    # XLA may round values differently that are not written in place.
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5), weights(True), weights(False))
