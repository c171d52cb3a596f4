"""A check of an operation, declared by a front end: a condition that only the device can evaluate."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from tests.stand_ins import Servers

import hookline as hl
from hookline import errors, train
from hookline.extend import Check, FrontEnd, Function


def below(limit):
    """Returns a check of a number."""

    def failed(bound):
        (x,), _ = bound
        return x >= limit, x

    return Check(failed, lambda x, *_: f"{x} is not below {limit}")


def doubled(x, limit, name="doubled"):
    node = Function(lambda x: 2 * x, name, (x,))
    node.check = below(limit)
    return node.output


@pytest.fixture
def x():
    with hl.Graph().as_default():
        yield hl.placeholder("int32", (), "x")


def test_first_failure_is_kept_and_raised_at_the_delivery(x):
    y = doubled(x, 10)
    with hl.Session() as session:
        assert [int(session.run(y, {x: value})) for value in (1, 12, 13)] == [2, 24, 26]
        with pytest.raises(errors.InvalidArgumentError, match=r"'doubled' .*: 12 is not below 10\."):
            session.deliver_pending()
        session.deliver_pending()
        assert session.run(y, {x: 3}) == 6


def test_closing_session_raises_the_failure(x):
    y = doubled(x, 10)
    session = hl.Session()
    session.run(y, {x: 12})
    with pytest.raises(errors.InvalidArgumentError, match="12 is not below 10"):
        session.close()


def test_check_runs_only_if_a_run_computes_the_operation(x):
    doubled(x, 10)
    other = x + 1
    with hl.Session() as session:
        assert session.run(other, {x: 12}) == 13
        session.deliver_pending()


def test_failing_one_of_two_operations_is_named(x):
    pair = (doubled(x, 10, "large"), doubled(x, 5, "small"))
    with hl.Session() as session:
        session.run(pair, {x: 7})
        with pytest.raises(errors.InvalidArgumentError, match="'small' .*: 7 is not below 5"):
            session.deliver_pending()


@pytest.fixture(params=[False, True], ids=["32 bits", "64 bits"])
def bits(request):
    jax.config.update("jax_enable_x64", request.param)
    yield
    jax.config.update("jax_enable_x64", False)


def test_failure_in_a_run_of_several_steps_names_its_step(bits, tmp_path):
    with hl.Graph().as_default():
        step = train.create_global_step()
        checked = doubled(hl.Variable(0, name="count").assign_add(1), 6)
        train_op = hl.group(checked, step.assign_add(1))
        session = train.MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path), hooks=[train.StopAtStepHook(last_step=12)], steps_per_run=4
        )

        def run():
            with session:
                while not session.should_stop():
                    session.run(train_op)

        with pytest.raises(errors.InvalidArgumentError, match="6 is not below 6, in the run that led to global step 6"):
            run()
    assert train.latest_checkpoint(str(tmp_path)).endswith("-0")


def test_worker_checks_an_update_on_a_parameter_server():
    with hl.Graph().as_default():
        weight = hl.Variable(1, name="weight")
        by = hl.placeholder("int32", (), "by")
        add = hl.update(weight, lambda old, by: old + by, by)
        add.op.check = Check(lambda bound: (bound[0] >= 3, bound[0]), lambda by, *_: f"adds {by}")
        with hl.Session(Servers()) as session:
            session.run(hl.global_variables_initializer())
            session.backend.publish()
            session.run(add.op, {by: 3})
            with pytest.raises(errors.InvalidArgumentError, match="adds 3"):
                session.deliver_pending()


@pytest.mark.parametrize("make", [lambda: hl.constant(1), lambda: hl.host_op(lambda: 1, name="host")()])
def test_only_functions_and_updates_have_a_check(make):
    with hl.Graph().as_default():
        node = make().op
        with pytest.raises(TypeError, match=f"{node.name}.* cannot have a check"):
            node.check = below(1)


@pytest.mark.parametrize("found", [None, jnp.zeros(3), (), (True, jnp.zeros(2)), (True, 1, 2, 3, 4, 5)])
def test_check_that_returns_no_tuple_of_integers_is_refused(found, x):
    node = Function(lambda x: x, "odd", (x,))
    node.check = Check(lambda bound: found, lambda *numbers: "")
    with hl.Session() as session, pytest.raises(TypeError, match="at most 4 integers") as error:
        session.run(node.output, {x: 1})
    assert "'odd'" in "".join(error.value.__notes__)


def test_failing_message_does_not_hide_the_failure(x):
    node = Function(lambda x: x, "odd", (x,))
    node.check = Check(lambda bound: (True,), lambda: "takes none")
    with hl.Session() as session:
        session.run(node.output, {x: 1})
        with pytest.raises(errors.InvalidArgumentError, match=r"'odd' .*its check has failed, .*TypeError"):
            session.deliver_pending()


def test_front_end_that_waits_for_values_raises_in_the_same_run():
    class Waits(FrontEnd):
        def convert_results(self, values):
            return jax.device_get(values)

    class Graph(hl.Graph):
        front_end = Waits()

    with Graph().as_default():
        x = hl.placeholder("int32", (), "x")
        y = doubled(x, 10)
        with hl.Session() as session, pytest.raises(errors.InvalidArgumentError, match="12 is not below 10"):
            session.run(y, {x: 12})
