"""Numbers that a graph holds as constants, and the same ones fed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.parts import raised
from conformance.scenario import Record, scenario
from conformance.system import System

WHOLE = ["int8", "int16", "int32", "uint8", "uint16", "uint32"]


def _both(s: System, cases: dict[str, tuple[Callable[[Any], Any], Any, str]]) -> Record:
    """Returns what functions make of values, constant and fed, with the dtypes: all in one run, which is compiled."""
    tf, feeds, made = s.tf, {}, {}
    for name, (make, value, dtype) in cases.items():
        fed = tf.placeholder(dtype, np.shape(value))
        feeds[fed] = np.asarray(value, dtype)
        made[name] = [make(tf.constant(value, dtype)), make(fed)]
    with tf.Session() as sess:
        found = sess.run(made, feeds)
    return {name: [[each.dtype.name, np.asarray(each).tolist()] for each in got] for name, got in found.items()}


def _values(dtype: str) -> list[int]:
    limits = np.iinfo(dtype)
    return [int(limits.min), int(limits.max), 0, 44, 127, *([-1] if limits.min else [])]


@scenario("v1.numbers.casts")
def _(s: System) -> Record:
    """Whole numbers wrap in a cast to a narrower dtype."""
    casts = {to: (lambda x, to=to: s.tf.cast(x, to)) for to in WHOLE}
    return _both(s, {f"{of} {to}": (cast, _values(of), of) for of in WHOLE for to, cast in casts.items()})


@scenario("v1.numbers.saturating_casts")
def _(s: System) -> Record:
    """Whole numbers end at the limits in a saturating cast."""
    # TensorFlow has no such cast of other dtypes on a CPU.
    given, tf = ("int8", "int16", "int32", "uint8"), s.tf
    casts = {to: (lambda x, to=to: tf.saturate_cast(x, tf.as_dtype(to))) for to in WHOLE}
    return _both(s, {f"{of} {to}": (cast, _values(of), of) for of in given for to, cast in casts.items()})


@scenario("v1.numbers.casts_of_floats")
def _(s: System) -> Record:
    """A float that an integer does not hold is wrapped, or its lowest number."""
    values = [255.0, 256.0, 300.5, -1.0, -0.5, -129.5, -40000.5, 70000.0]
    return _both(s, {to: (lambda x, to=to: s.tf.cast(x, to), values, "float32") for to in WHOLE})


@scenario("v1.numbers.sums_and_means")
def _(s: System) -> Record:
    """Sums wrap in their dtype, and means do not."""
    found = {}
    for dtype in WHOLE:
        highest = int(np.iinfo(dtype).max)
        for name in ("reduce_sum", "reduce_prod", "reduce_max", "reduce_mean"):
            found[f"{dtype} {name}"] = (getattr(s.tf, name), [highest, 3, highest - 1], dtype)
    return _both(s, found)


@scenario("v1.numbers.places")
def _(s: System) -> Record:
    """A place in a constant may be fed."""
    tf = s.tf
    place = tf.placeholder(tf.int32, [])
    with tf.Session() as sess:
        found = [sess.run(tf.constant([1, 2, 3], dtype)[place], {place: 1}) for dtype in WHOLE]
    return {"found": [int(each) for each in found], "dtypes": [each.dtype.name for each in found]}


@scenario("v1.numbers.slice_past_the_end")
def _(s: System) -> Record:
    """A slice past the end is an error."""
    tf = s.tf
    fed = tf.placeholder(tf.int32, [5])

    def of(x: Any, feeds: Any) -> None:
        with tf.Session() as sess:
            sess.run(tf.slice(x, [2], [5]), feeds)

    constant = raised(of, tf.constant([1, 2, 3, 4, 5]), {})
    return {"constant": constant, "fed": raised(of, fed, {fed: [1, 2, 3, 4, 5]})}


@scenario("v1.numbers.slice_past_the_end_of_an_open_dimension")
def _(s: System) -> Record:
    """A slice past the end of what is fed fails the run."""
    tf = s.tf
    fed = tf.placeholder(tf.int32, [None])
    part = tf.slice(fed, [2], [2])
    with tf.Session() as sess:
        return {
            "there": sess.run(part, {fed: [1, 2, 3, 4]}),
            "error": raised(sess.run, part, {fed: [1, 2, 3]}),
        }


@scenario("v1.numbers.constants_of_64_bits")
def _(s: System) -> Record:
    """A constant that 32 bits do not hold."""
    tf = s.tf
    return {
        "integer": raised(tf.constant, 2**40, tf.int64),
        "plain": raised(tf.constant, 2**40),
        "float": raised(tf.constant, 1e300, tf.float64),
        "variable": raised(tf.Variable, 2**40, dtype=tf.int64),
    }


@scenario("v1.numbers.constants_of_a_narrow_dtype")
def _(s: System) -> Record:
    """A constant wraps in a narrower dtype than it needs."""
    tf = s.tf
    with tf.Session() as sess:
        return {"values": sess.run([tf.constant(300, tf.uint8), tf.constant(np.array([70000]), tf.int16)])}


@scenario("v1.numbers.initial_values")
def _(s: System) -> Record:
    """A variable whose initializer is a value has its dtype, and no other may be asked for."""
    tf = s.tf
    values = [0, 0.5, True, [1, 2], np.float16(0.5), np.uint8(3), range(3)]
    made = [tf.get_variable(f"v{i}", initializer=value) for i, value in enumerate(values)]
    with tf.variable_scope("scope", dtype=tf.float16):
        made.append(tf.get_variable("w", initializer=3))
    return {
        "dtypes": [variable.dtype.base_dtype.name for variable in made],
        "other": raised(tf.get_variable, "other", initializer=0, dtype=tf.float32),
    }


@scenario("v1.numbers.initializer_called_constant")
def _(s: System) -> Record:
    """`tf.initializers.constant` is an initializer."""
    with s.tf.Session() as sess:
        return {"value": sess.run(s.tf.initializers.constant(3)([2]))}
