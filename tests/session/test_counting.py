"""The host counts the steps that no operation on the device reads, without a visible difference."""

from __future__ import annotations

import numpy as np
import pytest

import hookline as hl
from hookline import train
from hookline.train import Saver


@pytest.fixture
def step():
    return train.get_or_create_global_step()


@pytest.fixture
def train_op(step):
    weights = hl.Variable(np.zeros(2, "float32"), name="weights")
    return hl.group(weights.assign_add(np.ones(2, "float32")), step.assign_add(1))


def program_text(session, fetches):
    metadata = hl.RunMetadata()
    session.run(fetches, options=hl.RunOptions(output_partition_graphs=True), run_metadata=metadata)
    return metadata.partition_graphs[0]


def test_program_does_not_contain_the_step(step, train_op):
    rate = hl.op(lambda n: 1.0 / n, name="rate")(step + 1)
    with hl.Session() as session:
        session.run(hl.global_variables_initializer())
        assert "s32" not in program_text(session, train_op)
        assert "s32" in program_text(session, hl.group(train_op, rate.op))


def test_readers_of_the_step_get_its_value(step, train_op, tmp_path):
    doubled = step * 2
    saver = Saver()
    with hl.Session() as session:
        session.run(hl.global_variables_initializer())
        for number in range(1, 6):
            session.run(train_op)
            assert session.run([step, doubled]) == [number, 2 * number]
            assert session.run([train_op, doubled])[1] == 2 * number
            session.run(step.assign(number))
        assert session.snapshot()["global_step"] == 5
        assert session.snapshot()["global_step"].dtype == step.dtype
        session.run(train_op)
        path = saver.save(session, str(tmp_path / "model"), global_step=step)
    with hl.Session() as session:
        saver.restore(session, path)
        session.run(train_op)
        assert session.run(step) == 7
        np.testing.assert_array_equal(session.run("weights:0"), [12, 12])


def test_step_known_only_to_the_device_is_counted_from_there(step, train_op):
    leap = hl.placeholder("int32", [], name="leap")
    jump = step.assign_add(leap)
    with hl.Session() as session:
        session.run(hl.global_variables_initializer())
        session.run(train_op)
        session.run(jump, {leap: 10})
        session.run(train_op)
        session.run(train_op)
        assert session.run(step) == 13


def test_refused_run_is_not_counted(step, train_op):
    with hl.Session() as session:
        session.run(hl.global_variables_initializer())
        for _ in range(5):
            session.run(train_op, options=hl.RunOptions(last_step=3))
        assert session.run(step) == 3
        np.testing.assert_array_equal(session.run("weights:0"), [3, 3])


def test_step_without_a_value_is_an_error(step, train_op):
    with hl.Session() as session:
        session.run(hl.get_default_graph().get_operation_by_name("weights/initializer"))
        with pytest.raises(hl.errors.FailedPreconditionError, match="global_step"):
            session.run(train_op)


def test_step_that_would_overflow_is_an_error_before_the_run(step, train_op):
    with hl.Session() as session:
        session.run(hl.global_variables_initializer())
        session.load({"global_step": np.iinfo(np.int32).max - 1})
        session.run(train_op)
        with pytest.raises(hl.errors.FailedPreconditionError, match="cannot count"):
            session.run(train_op)
        np.testing.assert_array_equal(session.run("weights:0"), [1, 1])


def test_host_counts_any_counter_from_its_device_value():
    calls = hl.Variable(np.int32(5), name="calls", trainable=False)
    weights = hl.Variable(np.zeros(2, "float32"), name="weights")
    train_op = hl.group(weights.assign_add(np.ones(2, "float32")), calls.assign_add(2))
    with hl.Session() as session:
        session.run(hl.global_variables_initializer())
        for _ in range(3):
            session.run(train_op)
        assert session.run(calls) == 11
        session.run(calls.assign(calls * 2))
        session.run(train_op)
        assert session.run(calls) == 24


def test_operation_after_the_step_update_may_be_fetched(step, train_op):
    with hl.control_dependencies([train_op]):
        after = hl.op(lambda: 1.0, name="after").node()
    with hl.Session() as session:
        session.run(hl.global_variables_initializer())
        for number in range(3):
            session.backend.run_with_hook_fetches(train_op, (None,) if number else (after,))
            session.backend.run_with_hook_fetches(train_op, (after, step))
        assert session.run(step) == 6
