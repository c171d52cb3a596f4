from __future__ import annotations

import logging

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import constant, host_op
from hookline.errors import AbortedError, OutOfRangeError
from hookline.testing import FakeClock, RecordingHook
from hookline.train import LoggingTensorHook, only_for


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "hookline")

    def read():
        return [r.getMessage() for r in caplog.records if r.name.endswith("logging_tensor")]

    return read


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({}, "requires every_n_iter, every_n_secs, trigger or at_end=True, got none"),
        (
            {"every_n_iter": 1, "every_n_secs": 1.0},
            "every_n_secs or trigger, got every_n_iter, every_n_secs",
        ),
        ({"every_n_iter": 0}, "every_n_iter >= 1, got 0"),
        ({"every_n_iter": -5}, "every_n_iter >= 1, got -5"),
        ({"every_n_iter": 0, "at_end": True}, "every_n_iter >= 1, got 0"),
    ],
)
def test_invalid_cadence_is_refused(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        LoggingTensorHook(["loss"], **arguments)


def test_hook_logs_the_first_run_and_every_n_runs_with_the_elapsed_time(model, lines):
    with FakeClock() as clock, model.session(LoggingTensorHook({"loss": "loss"}, every_n_iter=3)) as session:
        for _ in range(7):
            session.run(model.train)
            clock.advance(0.5)
    assert lines() == ["loss = 0.5", "loss = 4.0 (1.500 sec)", "loss = 32.0 (1.500 sec)"]


def test_hook_logs_by_the_clock(model, lines):
    with FakeClock() as clock, model.session(LoggingTensorHook(["loss:0"], every_n_secs=10)) as session:
        for _ in range(5):
            session.run(model.train)
            clock.advance(5)
    assert lines() == ["loss:0 = 0.5", "loss:0 = 2.0 (10.000 sec)", "loss:0 = 8.0 (10.000 sec)"]


def test_failed_and_repeated_run_counts_once(model, lines):
    lose_once = RecordingHook(failures={"before_run": [None, AbortedError(None, None, "lost")]})
    with FakeClock(), model.session(LoggingTensorHook(["loss"], every_n_iter=2), lose_once) as session:
        for _ in range(3):
            session.run(model.train)
    assert len(lines()) == 2


def test_tags_of_a_dict_are_sorted(model, lines):
    model.train_until_stop(LoggingTensorHook({"b": model.loss, "a": "weight"}, every_n_iter=1), at_most=1)
    assert lines() == ["a = 1.0, b = 0.5"]


def test_an_iterable_keeps_its_order(model, lines):
    tensors = iter([model.weight, "loss", "global_step:0"])
    model.train_until_stop(LoggingTensorHook(tensors, every_n_iter=1), at_most=1)
    assert lines() == ["weight:0 = 1.0, loss = 0.5, global_step:0 = 0"]


def test_values_are_fetched_only_in_logged_runs(model, lines):
    calls = []
    value = host_op(lambda loss: calls.append(1) or "text", name="value")(model.loss)
    model.train_until_stop(LoggingTensorHook([value], every_n_iter=4), at_most=7)
    assert len(calls) == 2
    assert lines()[0] == "value:0 = text"


def test_at_end_alone_logs_once(model, lines):
    model.train_until_stop(LoggingTensorHook(["loss"], at_end=True), at_most=3)
    assert lines() == ["loss = 4.0"]


def test_at_end_is_added_to_a_cadence(model, lines):
    with FakeClock():
        model.train_until_stop(LoggingTensorHook(["loss"], every_n_iter=10, at_end=True), at_most=3)
    assert lines() == ["loss = 0.5", "loss = 4.0 (0.000 sec)"]


def test_formatter_makes_the_line(model, lines):
    def formatter(values):
        return f"half the weight is {float(values['loss'])}, of {sorted(values)}"

    with FakeClock():
        hook = LoggingTensorHook(["weight", "loss"], every_n_iter=1, formatter=formatter)
        model.train_until_stop(hook, at_most=1)
    assert lines() == ["half the weight is 0.5, of ['loss', 'weight']"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e-10, "0.0000000001"),
        (1e12, "1000000000000.0"),
        (1.5e-17, "1.5e-17"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (np.array([1e-5, 1.0], np.float32), "[0.00001 1.0]"),
        (np.array([1e-10, 1.0, 1e7], np.float32), "[0.0000000001 1.0 10000000.0]"),
        (jnp.array([[1e-3, 2e5]], jnp.bfloat16), "[[0.0009994507 199680.0]]"),
        (jnp.bfloat16(0.5), "0.5"),
        (7, "7"),
        (True, "True"),
        ({"a": np.float32(2e-9), "b": np.array([1, 2])}, "{'a': 0.000000002, 'b': [1 2]}"),
    ],
)
def test_numbers_print_without_scientific_notation(model, lines, value, text):
    constant(value, name="value")
    model.train_until_stop(LoggingTensorHook(["value"], every_n_iter=1), at_most=1)
    assert lines() == [f"value = {text}"]


def test_format_line_set_on_the_hook_has_no_scientific_notation(model, lines):
    constant(np.array([1e-6, 2.0]), name="value")
    hook = LoggingTensorHook(["value"], every_n_iter=1)
    hook.format_line = lambda values, elapsed_secs: str(np.asarray(values["value"]))
    model.train_until_stop(hook, at_most=1)
    assert lines() == ["[0.000001 2.      ]"]


@pytest.mark.parametrize("failure", [None, ValueError("formatter")])
def test_print_options_of_numpy_are_restored(model, failure):
    def formatter(values):
        assert np.get_printoptions()["suppress"]
        np.set_printoptions(precision=2)
        if failure is not None:
            raise failure
        return ""

    before = np.get_printoptions()
    hook = LoggingTensorHook(["loss"], every_n_iter=1, formatter=formatter)
    if failure is None:
        model.train_until_stop(hook, at_most=1)
    else:
        with pytest.raises(ValueError, match="formatter"):
            model.train_until_stop(hook, at_most=1)
    assert np.get_printoptions() == before


def test_tensor_of_another_graph_is_refused_at_begin(model):
    with pytest.raises(KeyError, match="nowhere"):
        model.session(LoggingTensorHook(["nowhere"], every_n_iter=1))


def test_operation_without_a_value_is_refused_at_begin(model):
    class Named:
        name = "train"

    with pytest.raises(TypeError):
        model.session(LoggingTensorHook([model.train], every_n_iter=1))


def test_end_of_input_gives_a_warning_in_place_of_the_last_line(model, caplog):
    def batch():
        raise OutOfRangeError(None, None, "no batch left")

    host_op(batch, name="batch").node()
    with model.session(LoggingTensorHook(["batch"], at_end=True)):
        pass
    assert "cannot log batch at the end" in caplog.text


def test_runs_without_the_hook_count(model):
    runs = []

    class Seen(LoggingTensorHook):
        def log(self, values, elapsed_secs):
            runs.append(int(values["global_step"]))

    evaluated = model.loss
    with model.session(Seen(["global_step"], every_n_iter=7)) as session:
        for number in range(30):
            session.run(evaluated if number % 3 == 2 else model.train)
    assert runs == [0, 5, 10, 14, 19]


def test_only_for_counts_the_selected_runs(model, lines):
    other = model.global_step.assign_add(0)
    with model.session(only_for(model.train, LoggingTensorHook(["loss"], every_n_iter=3))) as session:
        for _ in range(7):
            session.run(other)
            session.run(model.train)
    assert len(lines()) == 3


@given(st.floats(allow_nan=True, allow_infinity=True, width=32))
def test_number_is_printed_like_numpy_with_all_digits_and_no_exponent(value):
    for number in (np.float32(value), np.float64(value), jnp.asarray(value, "float32")):
        array = np.asarray(number)[()]
        is_extreme = array != 0 and np.isfinite(array) and not 1e-10 <= abs(array) < 1e16
        expected = str(array) if is_extreme else np.format_float_positional(array, trim="0")
        line = LoggingTensorHook(["x"], every_n_iter=1).format_line({"x": number}, None)
        assert line == f"x = {expected}"
