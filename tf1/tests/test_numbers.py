"""Numbers computed by a graph equal TensorFlow 2.21's on CPU, for constant and for fed inputs.

What TensorFlow gives stands here as literals.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

import hookline_tf1 as tf
from hookline.errors import InvalidArgumentError


def made_of(how, *cases):
    """Returns the results of one run: of values that are constants, or fed where `how` has an F."""
    feeds, made = {}, []
    for make, values, dtypes in cases:
        inputs = []
        for value, dtype, is_fed in zip(values, dtypes, how, strict=True):
            array = np.asarray(value, dtype)
            inputs.append(tf.placeholder(dtype, array.shape) if is_fed == "F" else tf.constant(value, dtype))
            if is_fed == "F":
                feeds[inputs[-1]] = array
        made.append(make(*inputs))
    with tf.Session() as session:
        found = session.run(made, feeds)
    # The shape known before the run is that of the result.
    assert [each.dtype for each in made] == [each.dtype for each in found]
    return found


def check(how, *cases):
    """Takes for each case its function, values and dtypes of its inputs, and the expected dtype and values."""
    found = made_of(how, *(case[:3] for case in cases))
    assert [(each.dtype.name, each.tolist()) for each in found] == [case[3:] for case in cases]


either = pytest.mark.parametrize("how", ["C", "F"])
every = pytest.mark.parametrize("how", ["CC", "CF", "FC", "FF"])


# Casts ----------------------------------------------------------------------------------------------------------------


@either
def test_cast_wraps_like_tensorflows(how):
    cases = [
        ([300, -1], "int32", "uint8", [44, 255]),
        ([300, -129, 128], "int32", "int8", [44, 127, -128]),
        ([65535, 40000, -32769], "int32", "int16", [-1, -25536, 32767]),
        ([-1, 300], "int16", "uint16", [65535, 300]),
        ([-1, 127], "int8", "uint32", [4294967295, 127]),
        ([-1, 127], "int8", "int32", [-1, 127]),
        ([200, 255], "uint8", "int8", [-56, -1]),
        ([4294967295, 3], "uint32", "int32", [-1, 3]),
        ([0, 2, -1], "int32", "bool", [False, True, True]),
        ([3, -7], "int16", "float32", [3.0, -7.0]),
        # A float that is too large goes through int32, and through its lowest number where that is too small as well.
        ([255.0, 256.0, 300.5, -1.0, -0.5, -300.0], "float32", "uint8", [255, 0, 44, 255, 0, 212]),
        ([127.0, 128.0, -129.5, 1000.0], "float32", "int8", [127, -128, 127, -24]),
        ([40000.0, -40000.5], "float32", "int16", [-25536, 25536]),
        ([3e9, -1.0, 7.5], "float32", "uint32", [3000000000, 4294967295, 7]),
        ([3e9, -3e9, float("nan"), float("inf")], "float32", "int32", [-(2**31)] * 4),
        ([float("nan"), float("-inf"), 1.9], "float32", "uint8", [0, 0, 1]),
        ([60000.0, -1.5], "float16", "int16", [-5536, -1]),
    ]

    def cast(to):
        return lambda x: tf.cast(x, to)

    check(how, *((cast(to), [values], [dtype], to, found) for values, dtype, to, found in cases))


@either
def test_saturating_cast_ends_at_the_limits_of_both_dtypes(how):
    cases = [
        ([-128, -1, 127], "int8", "int16", [-128, -1, 127]),
        ([-128, -1, 127], "int8", "uint8", [0, 0, 127]),
        ([-128, -1, 127], "int8", "uint32", [0, 0, 127]),
        ([-300, 300], "int16", "int8", [-128, 127]),
        ([0, 4294967295], "uint32", "int32", [0, 2147483647]),
        ([-5, 70000], "int32", "uint16", [0, 65535]),
        ([200, 5], "uint8", "float32", [200.0, 5.0]),
        ([300.5, -2.5, 255.4], "float32", "uint8", [255, 0, 255]),
        # The largest float that fits.
        ([3e9, -3e9, 5.5], "float32", "int32", [2147483520, -2147483648, 5]),
        ([60000.0, -2.5], "float16", "int16", [32752, -2]),
        ([3e9, -3e9], "float32", "float16", [65504.0, -65504.0]),
    ]

    def cast(to):
        return lambda x: tf.saturate_cast(x, tf.as_dtype(to))

    check(how, *((cast(to), [values], [dtype], to, found) for values, dtype, to, found in cases))


def test_too_bright_images_wrap_unless_saturated(sess):
    image = tf.constant([-0.1, 1.2])
    assert sess.run(tf.image.convert_image_dtype(image, tf.uint8)).tolist() == [231, 50]
    assert sess.run(tf.image.convert_image_dtype(image, tf.uint8, saturate=True)).tolist() == [0, 255]


@pytest.mark.parametrize(
    ("make", "dtype", "expected"),
    [
        (lambda: tf.cast([300, -1], tf.uint8), "uint8", [44, 255]),
        (lambda: tf.cast(2**31, tf.float32), "float32", 2147483648.0),
        (lambda: tf.cast(2**40 + 300, tf.uint8), "uint8", 44),
        (lambda: tf.cast(np.array([300], "int16"), tf.uint8), "uint8", [44]),
        (lambda: tf.cast(1e39, tf.int32), "int32", -(2**31)),
        (lambda: tf.to_int32(np.int8(3)), "int32", 3),
        (lambda: tf.to_int32(tf.constant(3, tf.int8)), "int32", 3),
    ],
)
def test_plain_numbers_are_cast_like_tensors(make, dtype, expected, sess):
    made = make()
    found = sess.run(made)
    assert (made.dtype, found.dtype.name, found.tolist()) == (dtype, dtype, expected)


def test_cast_shape_stays_a_shape(sess):
    x = tf.placeholder(tf.float32, [None, 3])
    size = tf.cast(tf.to_int64(tf.shape(x))[0], tf.int32) * 2
    assert sess.run(tf.zeros([size]), {x: np.ones((2, 3))}).tolist() == [0, 0, 0, 0]


# Sums, means, products ------------------------------------------------------------------------------------------------


@either
def test_integers_are_summed_in_their_own_dtype(how):
    cases = [
        (lambda x: tf.reduce_sum(x), [127, -128, 126], "int8", 125),
        (lambda x: tf.reduce_sum(x, 0), [[127, -128], [127, -1]], "int8", [-2, 127]),
        (lambda x: tf.reduce_prod(x), [[1, 2, 3], [4, 5, 100]], "int8", -32),
        (lambda x: tf.reduce_prod(x) // 10, [100000, 100000], "int32", 141006540),
        (lambda x: tf.reduce_sum(x) // 10, [2**31 - 1, 5], "int32", -214748365),
        (lambda x: tf.reduce_max(x), [3, 100], "int8", 100),
        (lambda x: tf.add(x, x), [100, -100], "int8", [-56, 56]),
        (lambda x: x + x, [2**31 - 1, -(2**31)], "int32", [-2, 0]),
        (lambda x: x * -1, [1, 5], "uint8", [255, 251]),
        (lambda x: x + 300, [1], "int8", [45]),
        (lambda x: tf.reduce_mean(x), [127, 127, 127], "int8", 127),
        (lambda x: tf.reduce_mean(x), [255, 0, 254], "uint8", 169),
        (lambda x: tf.reduce_mean(x), [32767, 32767, 32766], "int16", 32766),
        (lambda x: tf.reduce_mean(x), [4294967295, 4294967295, 0], "uint32", 2863311530),
        (lambda x: tf.reduce_mean(x), [2**31 - 1, 2**31 - 1, 2**31 - 4], "int32", 2**31 - 2),
        (lambda x: tf.reduce_mean(x), [-(2**31), -(2**31), -(2**31)], "int32", -(2**31)),
        (lambda x: tf.reduce_mean(x), [7, -8, 0], "int32", 0),
        (lambda x: tf.reduce_mean(x), [-7, -8, 1], "int32", -4),
        (lambda x: tf.reduce_mean(x, 0), [[2**31 - 1, 1], [2**31 - 1, 2]], "int32", [2**31 - 1, 1]),
    ]
    check(how, *((make, [values], [dtype], dtype, found) for make, values, dtype, found in cases))


# Indices --------------------------------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize(
    "dtype", ["int8", "float32", *[pytest.param(dtype, marks=pytest.mark.campaign) for dtype in ("int32", "uint8")]]
)
def test_index_into_a_constant_may_be_fed(dtype, how):
    places = [
        (lambda x, p: x[p], [3, 4]),
        (lambda x, p: x[:, p], [2, 4]),
        (lambda x, p: x[..., p], [2, 4]),
        (lambda x, p: x[p, 0], 3),
        (lambda x, p: x[0, p], 2),
        (lambda x, p: x[-p], [3, 4]),
        (lambda x, p: x[p, tf.newaxis], [[3, 4]]),
    ]
    check(how, *((place, [[[1, 2], [3, 4]], 1], [dtype, "int32"], dtype, found) for place, found in places))


@every
def test_slice_of_a_constant_equals_that_of_a_fed_value(how):
    def part(size):
        return lambda x, begin: tf.slice(x, begin, [size])

    parts = [(2, 3, [3, 4, 5]), (4, 1, [5]), (5, 0, []), (0, 5, [1, 2, 3, 4, 5])]
    whole, dtypes = [1, 2, 3, 4, 5], ["int32", "int32"]
    check(how, *((part(size), [whole, [begin]], dtypes, "int32", found) for begin, size, found in parts))


@either
@pytest.mark.parametrize(
    ("begin", "size"), [(2, 4), (4, 3), (5, 1), (6, 0), (6, -1), (-1, 1), (-1, 0), (0, 6), (-6, 3), (0, -2)]
)
@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_slice_past_the_end_is_refused_for_constants(begin, size, dtype, how):
    with pytest.raises(ValueError, match=r"Slice 'Slice' \(made at .*begin\[0\] = .*has 5\."):
        made_of(how, (lambda x: tf.slice(x, [begin], [size]), [[1, 2, 3, 4, 5]], [dtype]))


def test_slice_past_the_end_of_a_fed_value_fails_the_run(sess):
    x = tf.placeholder(tf.float32, [None])
    part = tf.slice(x, [1], [3])
    assert sess.run(part, {x: [1, 2, 3, 4]}).tolist() == [2, 3, 4]
    text = r"^Slice 'Slice' \(made at .*\): begin\[0\] = 1 and size\[0\] = 3 end past dimension 0, which has 3\.$"
    with pytest.raises(InvalidArgumentError) as raised:
        sess.run(part, {x: [1, 2, 3]})
    assert re.match(text, raised.value.message)
    assert raised.value.op is part.op


# Division ------------------------------------------------------------------------------------------------------------


QUOTIENTS = [lambda x, y: x // y, tf.div, tf.floordiv, tf.truncatediv]
REMAINDERS = [lambda x, y: x % y, tf.mod]
DIVISIONS = [*QUOTIENTS, *REMAINDERS]


@every
@pytest.mark.parametrize("divide", DIVISIONS)
@pytest.mark.parametrize("dtype", ["int32", pytest.param("uint8", marks=pytest.mark.campaign)])
def test_integer_division_by_zero_fails_the_run(divide, dtype, how):
    with pytest.raises(InvalidArgumentError, match="division by zero"):
        made_of(how, (divide, [[5, 0, 3], [1, 0, 2]], [dtype, dtype]))


@pytest.mark.parametrize("divide", [lambda x: x // 0, lambda x: x % 0, lambda x: tf.div(x, [1, 0, 2])])
def test_constant_zero_divisor_is_refused(divide):
    with pytest.raises(InvalidArgumentError, match="division by zero"):
        divide(tf.placeholder(tf.int32, [3]))


def test_untaken_branch_may_divide_by_zero(sess):
    n, x = tf.placeholder(tf.int32, []), tf.constant([6, 7])
    share = tf.cond(n > 0, lambda: x // n, lambda: x)
    nones = [tf.cond(n > 0, lambda d=divide: d(x, tf.constant(0)), lambda: x) for divide in DIVISIONS]
    of_rows = tf.placeholder(tf.float32, [None])
    rows = tf.shape(of_rows)[0]
    mean = tf.cond(rows > 0, lambda: x // rows, lambda: x)
    assert sess.run(share, {n: 2}).tolist() == [3, 3]
    assert sess.run([share, *nones], {n: 0})[0].tolist() == [6, 7]
    assert sess.run(mean, {of_rows: []}).tolist() == [6, 7]
    assert sess.run(mean, {of_rows: [1.0, 2.0]}).tolist() == [3, 3]
    for none in nones:
        with pytest.raises(InvalidArgumentError, match="division by zero"):
            sess.run(none, {n: 1})


@pytest.mark.parametrize("make", [lambda x: x // 100, lambda x: x % [1, 2, 3], lambda x: tf.mod(tf.to_float(x), 0.0)])
def test_division_by_nonzero_adds_no_check(make):
    assert make(tf.placeholder(tf.int32, [3])).op.check is None


@pytest.mark.parametrize("begin", [3, 5, -1])
def test_slice_with_a_computed_begin_is_checked_in_the_run(begin, sess):
    x, where = tf.constant([1, 2, 3, 4, 5]), tf.placeholder(tf.int32, [1])
    part = tf.slice(x, where, [3])
    assert sess.run(part, {where: [2]}).tolist() == [3, 4, 5]
    with pytest.raises(InvalidArgumentError, match=rf"begin\[0\] = {begin} is not in \[0, 3\)"):
        sess.run(part, {where: [begin]})


@every
@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8"])
def test_integer_division_gives_the_expected_results(dtype, how):
    ways = [*((divide, [3, 1, 2]) for divide in QUOTIENTS), *((divide, [1, 0, 1]) for divide in REMAINDERS)]
    check(how, *((divide, [[7, 5, 5], [2, 5, 2]], [dtype, dtype], dtype, expected) for divide, expected in ways))


@either
def test_float_division_by_zero_is_allowed(how):
    check(how, (lambda x: x / 0.0, [[1.0, -1.0]], ["float32"], "float32", [float("inf"), -float("inf")]))


# Constants that do not fit --------------------------------------------------------------------------------------------

TOO_LARGE = [
    lambda: tf.constant(2**40),
    lambda: tf.constant(2**40, tf.int64),
    lambda: tf.constant(2**31),
    lambda: tf.constant([1, 2**31]),
    lambda: tf.constant(-(2**40), tf.int64),
    lambda: tf.constant(-1, tf.uint64),
    lambda: tf.constant(np.array([2**40])),
    lambda: tf.constant(np.int64(2**40)),
    lambda: tf.constant(np.array([2**40], "uint64")),
    lambda: tf.constant(np.array([2**31], "uint32"), tf.int64),
    lambda: tf.constant(1e300, tf.float64),
    lambda: tf.constant(np.array([1e300])),
    lambda: tf.convert_to_tensor([2**40]),
    lambda: tf.cast(2**40, tf.int64),
    lambda: tf.to_int64(np.array([2**40])),
    lambda: tf.placeholder_with_default(2**40, []),
    lambda: tf.identity(np.array([2**40])),
    lambda: tf.identity([2**40]),
    lambda: tf.stack([[2**40], [1]]),
    lambda: tf.reshape(np.int64(2**40), [1]),
    lambda: tf.ones([1], tf.int64) * [2**40],
    lambda: tf.ones([1], tf.int64) * np.int64(2**40),
    lambda: tf.fill([1], 2**40),
    lambda: tf.fill([1], np.int64(2**40)),
    lambda: tf.range(2**40, 2**40 + 2),
    lambda: tf.range(2**31 - 1, 2**31 + 1),
    lambda: tf.one_hot([0], 2, on_value=np.int64(2**40)),
    lambda: tf.Variable(2**40),
    lambda: tf.Variable(2**40, dtype=tf.int64),
    lambda: tf.Variable([1e300], dtype=tf.float64),
    lambda: tf.get_variable("v", initializer=2**40),
    lambda: tf.get_variable("v", [1], tf.int64, tf.constant_initializer(2**40)),
    lambda: tf.get_variable("v", [1], tf.int64, tf.constant_initializer([2**40])),
    lambda: tf.get_variable("v", [1], tf.float64, tf.constant_initializer(1e300)),
    lambda: tf.assign(tf.Variable([1], dtype=tf.int64), [2**40]),
    lambda: tf.assign_add(tf.Variable(1, dtype=tf.int64), 2**40),
    lambda: tf.assign_add(tf.Variable(1, dtype=tf.int64), np.int64(2**40)),
]


@pytest.mark.parametrize("make", TOO_LARGE)
def test_constant_beyond_32_bits_is_refused(make, sess):
    with pytest.raises(ValueError, match=r"jax_enable_x64|Python int|holds 1099511627776"):
        sess.run(make())


def test_fed_number_beyond_32_bits_is_refused(sess):
    x = tf.placeholder(tf.int64, None)
    for _ in range(2):
        assert sess.run(x, {x: np.array([2**31 - 1])}).tolist() == [2**31 - 1]
        for value in (2**40, [2**40], np.array([2**40]), np.int64(2**40), np.array([2**31], "uint32")):
            with pytest.raises(InvalidArgumentError, match="2147483647"):
                sess.run(x, {x: value})


def test_fed_array_wraps_in_a_narrower_dtype_like_a_constant(sess):
    x = tf.placeholder(tf.uint8, [None])
    assert sess.run(x, {x: np.array([300, -1])}).tolist() == [44, 255]
    with pytest.raises(InvalidArgumentError, match="255"):
        sess.run(x, {x: [300]})


@pytest.mark.parametrize(
    ("make", "dtype", "expected"),
    [
        # TensorFlow wraps values for a narrower dtype.
        (lambda: tf.constant(300, tf.uint8), "uint8", 44),
        (lambda: tf.constant([-1, 256], tf.uint8), "uint8", [255, 0]),
        (lambda: tf.constant(np.array([70000]), tf.int16), "int16", [4464]),
        (lambda: tf.constant(2**40, tf.float32), "float32", 1099511627776.0),
        (lambda: tf.constant(1e39), "float32", float("inf")),
        (lambda: tf.constant(70000.0, tf.float16), "float16", float("inf")),
        (lambda: tf.constant(np.array([0.1, float("inf")])), "float32", [np.float32(0.1), float("inf")]),
        (lambda: tf.constant(2**32 - 1, tf.uint32), "uint32", 4294967295),
        (lambda: tf.constant(np.array([3], "uint64")), "uint32", [3]),
    ],
)
def test_constant_has_the_value_of_its_dtype(make, dtype, expected, sess):
    found = sess.run(make())
    assert (found.dtype.name, found.tolist()) == (dtype, expected)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda x: tf.to_float(np.array(x)), [1099511627776.0, 3.0]),
        (lambda x: tf.to_float(x), [1099511627776.0, 3.0]),
        (lambda x: tf.to_double(np.array(x)), [1099511627776.0, 3.0]),
        (lambda x: tf.to_int32(np.array(x) * 2 + 5), [5, 11]),
        (lambda x: tf.to_int32([x[0] + 5, 3]), [5, 3]),
        (lambda x: tf.cast(np.array(x) + 300, "uint8"), [44, 47]),
        (lambda x: tf.cast(np.array(x), tf.bool), [True, True]),
        (lambda x: tf.cast([x[0] + 5, 3], dtype=tf.int32), [5, 3]),
    ],
)
def test_cast_takes_64_bit_numbers(make, expected, sess):
    assert sess.run(make([2**40, 3])).tolist() == expected


@pytest.mark.parametrize("shape", [[2], [None], None])
@pytest.mark.parametrize(
    "number", [2**31, *[pytest.param(n, marks=pytest.mark.campaign) for n in (-(2**31) - 1, 2**40, 2**70)]]
)
@pytest.mark.parametrize(
    "make",
    [
        lambda x, n: x + n,
        lambda x, n: n * x,
        lambda x, n: x < n,
        lambda x, n: tf.equal(x, n),
        lambda x, n: tf.maximum(x, n),
        lambda x, n: tf.where(tf.equal(x, 1), x, n),
    ],
)
def test_number_too_large_beside_a_tensor_is_named(make, number, shape, sess):
    x = tf.placeholder(tf.int64, shape)
    with pytest.raises((ValueError, OverflowError), match=rf"{number} does not fit into int32\. Set jax_enable_x64"):
        # With an unknown shape, the run raises.
        sess.run(make(x, number), {x: [1, 2]})


def test_error_for_one_number_shows_no_range():
    with pytest.raises(ValueError, match="holds 2147483648, but int32"):
        tf.constant(2**31)
    with pytest.raises(ValueError, match="holds integers from 1 to 2147483648, but int32"):
        tf.constant([1, 2**31])


@pytest.mark.parametrize("value", [2**64, None])
def test_value_without_a_dtype_is_refused_as_a_constant(value):
    with pytest.raises((TypeError, ValueError), match=r"tf.constant"):
        tf.constant(value)


# Initial values -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (0, "int32"),
        (-1, "int32"),
        (0.5, "float32"),
        (True, "bool"),
        ([1, 2], "int32"),
        ((1.0, 2), "float32"),
        ([[True]], "bool"),
        (range(3), "int32"),
        ([], "float32"),
        (np.float16(0.5), "float16"),
        (np.uint8(3), "uint8"),
        (np.array([1, 2], "int16"), "int16"),
    ],
)
def test_variable_has_the_dtype_of_its_initial_value(value, dtype, sess):
    made = [tf.get_variable("got", initializer=value), tf.Variable(value, name="made")]
    assert [variable.dtype.base_dtype.name for variable in made] == [dtype, dtype]
    sess.run(tf.global_variables_initializer())
    assert sess.run(made[0]).tolist() == np.asarray(value).tolist()


def test_initial_value_of_the_scope_gives_its_dtype():
    with tf.variable_scope("scope", initializer=3, dtype=tf.float16):
        assert tf.get_variable("whole").dtype == tf.int32
        assert tf.get_variable("half", [1], initializer=tf.zeros_initializer()).dtype == tf.float16


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(0, tf.float32), (0.5, tf.int32), ([1.5], tf.float16), (True, tf.int32), (np.uint8(3), tf.int8)],
)
def test_initial_value_of_another_dtype_is_refused(value, dtype):
    with pytest.raises(ValueError, match=r"initializer.*dtype"):
        tf.get_variable("v", initializer=value, dtype=dtype)


@pytest.mark.parametrize(
    ("value", "dtype"), [(0, tf.int32), (0.5, tf.float32), (np.array([1.0]), tf.float64), (np.int64(3), tf.int64)]
)
def test_initial_value_of_the_same_dtype_is_accepted(value, dtype):
    assert tf.get_variable("v", initializer=value, dtype=dtype).dtype == tf.as_dtype(tf.Variable(value).dtype)


def test_constant_initializer_is_no_tensor():
    with tf.Session() as session:
        assert session.run(tf.initializers.constant(3)([2])).tolist() == [3.0, 3.0]
    weights = tf.get_variable("w", [2], initializer=tf.initializers.constant(0.5))
    with tf.Session() as session:
        session.run(weights.initializer)
        assert session.run(weights).tolist() == [0.5, 0.5]
