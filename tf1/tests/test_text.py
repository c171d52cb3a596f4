"""Text: `bytes` in and out, functions of it, and unsupported operations."""

from __future__ import annotations

import base64

import numpy as np
import pytest

import hookline_tf1 as tf


@pytest.fixture(autouse=True)
def sess():
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


def plain(value):
    return value.tolist() if hasattr(value, "tolist") else value


def test_text_is_returned_as_bytes(sess):
    name, names, fed = tf.constant("é"), tf.constant([["a"], ["b"]]), tf.placeholder(tf.string, [None])

    assert (fed.dtype, fed.shape.as_list(), names.shape.as_list()) == (tf.string, [None], [2, 1])
    assert sess.run(name).decode() == "é"
    assert plain(sess.run(names)) == [[b"a"], [b"b"]]
    assert sess.run(names).dtype == object
    assert plain(sess.run(fed, {fed: ["x", b"y"]})) == [b"x", b"y"]
    assert plain(sess.run(tf.identity(fed), {fed: np.array(["x"])})) == [b"x"]
    with pytest.raises(tf.errors.InvalidArgumentError, match="is not text"):
        sess.run(fed, {fed: [1]})


def test_changes_of_returned_text_do_not_reach_the_graph(sess):
    names = tf.constant(["a", "b"])

    sess.run(names)[0] = b"z"

    assert plain(sess.run(names)) == [b"a", b"b"]


def test_names_of_uninitialised_variables_are_bytes(sess):
    tf.get_variable("w", [], tf.float32)
    missing = tf.report_uninitialized_variables()

    assert b"w" in set(sess.run(missing))
    sess.run(tf.global_variables_initializer())
    assert sess.run(missing).shape == (0,)


def test_python_function_gets_bytes_and_numpy_numbers(sess):
    given = []

    def look(*values):
        given.extend(values)
        return len(values), "né"

    count, word = tf.py_func(look, [tf.constant("a"), ["b", "c"], tf.constant(1.5), 2, [3.0]], [tf.int64, tf.string])

    assert sess.run([count, word]) == [5, "né".encode()]
    assert given[0] == b"a"
    assert plain(given[1]) == [b"b", b"c"]
    assert [(type(value), value) for value in given[2:4]] == [(np.float32, 1.5), (np.int32, 2)]
    assert given[4].dtype == np.float32
    assert word.dtype == tf.string


@pytest.mark.parametrize(
    ("made", "shape", "value"),
    [
        (lambda: tf.equal(["a", "b"], "a"), [2], [True, False]),
        (lambda: tf.not_equal("a", "b"), [], True),
        (lambda: tf.constant("a") + "b", [], b"ab"),
        (lambda: tf.concat([["a"], ["b"]], 0), [2], [b"a", b"b"]),
        (lambda: tf.stack([tf.constant("a"), "b"]), [2], [b"a", b"b"]),
        (lambda: tf.reshape(["a", "b"], [2, 1]), [2, 1], [[b"a"], [b"b"]]),
        (lambda: tf.gather(["a", "b"], [1, 0]), [2], [b"b", b"a"]),
        (lambda: tf.where([True, False], ["a", "b"], ["c", "d"]), [2], [b"a", b"d"]),
        (lambda: tf.constant(["a", "b", "c"])[1:], [2], [b"b", b"c"]),
        (lambda: tf.split(["a", "b"], 2)[1], [1], [b"b"]),
        (lambda: tf.unstack(["a", "b"])[1], [], b"b"),
        (lambda: tf.tile(["a"], [2]), [2], [b"a", b"a"]),
        (lambda: tf.fill([2], "x"), [2], [b"x", b"x"]),
        (lambda: tf.transpose([["a", "b"]]), [2, 1], [[b"a"], [b"b"]]),
        (lambda: tf.constant("a", shape=[2]), [2], [b"a", b"a"]),
        (lambda: tf.shape(["a", "b"]), [1], [2]),
        (lambda: tf.size(["a", "b"]), [], 2),
        (lambda: tf.cond(tf.constant(True), lambda: tf.constant("a"), lambda: tf.constant("b")), [], b"a"),
        (lambda: tf.string_join(["a", ["b", "c"]], "-"), [2], [b"a-b", b"a-c"]),
        (lambda: tf.strings.length(["ab", "é"]), [2], [2, 2]),
        (lambda: tf.strings.length("é", unit="UTF8_CHAR"), [], 1),
        (lambda: tf.strings.lower("AbÉ"), [], "abÉ".encode()),
        (lambda: tf.strings.upper(["aé"], encoding="utf-8"), [1], ["AÉ".encode()]),
        (lambda: tf.string_strip([" a "]), [1], [b"a"]),
        (lambda: tf.substr(["hello", "world"], [1, -3], [2, 9]), [2], [b"el", b"rld"]),
        (lambda: tf.regex_replace("a1b2", "([0-9])", r"<\1>", replace_global=False), [], b"a<1>b2"),
        (lambda: tf.strings.regex_full_match(["ab", "abc"], "a."), [2], [True, False]),
        (lambda: tf.as_string([1, -2]), [2], [b"1", b"-2"]),
        (lambda: tf.as_string([3.14159, 2.0], precision=2), [2], [b"3.14", b"2.00"]),
        (lambda: tf.as_string(5, width=4, fill="0"), [], b"0005"),
        (lambda: tf.as_string(True), [], b"true"),
        (lambda: tf.reduce_join([["a", "b"], ["c", "d"]], 0, separator=" "), [2], [b"a c", b"b d"]),
        (lambda: tf.reduce_join([["a", "b"], ["c", "d"]]), [], b"abcd"),
        (lambda: tf.reduce_join([["a", "b"], ["c", "d"]], [0, 1]), [], b"acbd"),
        (lambda: tf.reduce_join([["a", "b"]], [1], keep_dims=True), [1, 1], [[b"ab"]]),
        (lambda: tf.decode_raw(["abcd", "efgh"], tf.int16), [2, None], [[25185, 25699], [26213, 26727]]),
        (lambda: tf.decode_raw("ab", tf.int16, little_endian=False), [None], [24930]),
        (lambda: tf.decode_base64(tf.encode_base64("a?~")), [], b"a?~"),
    ],
)
def test_text_functions_give_their_values(sess, made, shape, value):
    tensor = made()

    assert tensor.shape.as_list() == shape
    assert plain(sess.run(tensor)) == value


def test_base64_uses_the_url_alphabet(sess):
    assert sess.run(tf.encode_base64(b"\xfb\xff")) == base64.urlsafe_b64encode(b"\xfb\xff").rstrip(b"=")


def test_text_shapes_are_known_as_far_as_the_dimensions(sess):
    lines = tf.placeholder(tf.string, [None, 3])

    assert tf.strings.lower(lines).shape.as_list() == [None, 3]
    assert lines[0].shape.as_list() == [3]
    assert lines[:2].shape.as_list() == [None, 3]
    assert tf.concat([lines, lines], 1).shape.as_list() == [None, 6]
    assert tf.identity(tf.placeholder(tf.string)).shape.ndims is None
    made = tf.py_func(lambda: "a", [], tf.string)
    made.set_shape([])
    assert made.shape.as_list() == []
    with pytest.raises(ValueError, match="reshape"):
        tf.reshape(["a", "b", "c"], [2, 2])


@pytest.mark.parametrize(
    ("text", "dtype", "value"),
    [("1.5", tf.float32, 1.5), (" 3 ", tf.float32, 3.0), ("0x1f", tf.float32, 31.0), ("inf", tf.float32, np.inf),
     (["1", "-2"], tf.int32, [1, -2])],
)  # fmt: skip
def test_numbers_are_parsed_from_text_for_the_device(sess, text, dtype, value):
    found = tf.string_to_number(text, dtype)

    assert found.dtype == dtype
    assert plain(sess.run(found)) == value
    assert plain(sess.run(found * 2)) == plain(np.asarray(value) * 2)


@pytest.mark.parametrize(
    ("text", "dtype"), [("1.5", tf.int32), ("", tf.float32), ("1_0", tf.int32), ("3e9x", tf.float32)]
)
def test_text_that_is_no_number_is_refused(sess, text, dtype):
    with pytest.raises(tf.errors.InvalidArgumentError, match="could not correctly convert string"):
        sess.run(tf.string_to_number(text, dtype))


def test_parsed_number_beyond_32_bits_is_refused(sess):
    with pytest.raises(tf.errors.InvalidArgumentError, match="jax_enable_x64"):
        sess.run(tf.string_to_number("12345678901", tf.int64))


@pytest.mark.parametrize(
    ("line", "defaults", "how", "value"),
    [
        ('1.5,,"a, b"', [[0.0], [7], ["z"]], {}, [1.5, 7, b"a, b"]),
        ("1|2", [[0], [0]], {"field_delim": "|"}, [1, 2]),
        ("NA,2", [[1.0], [0]], {"na_value": "NA"}, [1.0, 2]),
        ("1,2,3", [[1], [1]], {"select_cols": [0, 2]}, [1, 3]),
        ('"a""b",2', [[""], [0]], {}, [b'a"b', 2]),
        ("a'b,2", [[""], tf.int32], {}, [b"a'b", 2]),
    ],
)
def test_lines_are_parsed_to_columns(sess, line, defaults, how, value):
    assert sess.run(tf.decode_csv(line, defaults, **how)) == value


def test_columns_have_the_shape_of_the_lines(sess):
    numbers, words = tf.decode_csv(tf.placeholder(tf.string, [None]), [[0.0], [""]])

    assert (numbers.dtype, numbers.shape.as_list()) == (tf.float32, [None])
    assert (words.dtype, words.shape.as_list()) == (tf.string, [None])


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("1,2,3", "Expect 2 fields but have 3 in record 0"),
        ("1,x", "Field 1 in record 0 is not a valid float32: x"),
        (",1", "Field 0 is required but missing in record 0!"),
        ('1,2"', "Unquoted fields cannot have quotes/CRLFs inside"),
        ('"1,2', "Quoted field has to end with quote"),
        ('"1"2,2', "Quoted field has to end with quote"),
    ],
)
def test_malformed_lines_are_refused(sess, line, what):
    with pytest.raises(tf.errors.InvalidArgumentError, match=what):
        sess.run(tf.decode_csv(line, [tf.int32, [0.0]]))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({}, [[b"a,b;;c", b"d"], [b"e", b""]]),
        ({"delimiter": ",;"}, [[b"a", b"b", b"c d"], [b"e", b"", b""]]),
        ({"delimiter": ";", "skip_empty": False}, [[b"a,b", b"", b"c d"], [b"e", b"", b""]]),
    ],
)
def test_lines_are_split_into_words(sess, how, words):
    parts = tf.string_split(["a,b;;c d", "e"], **how)

    assert parts.values.shape.as_list() == [None]
    assert plain(sess.run(tf.sparse_tensor_to_dense(parts, default_value=""))) == words
    found = sess.run(parts)
    assert plain(found.dense_shape) == list(np.shape(words))
    assert isinstance(found, tf.SparseTensorValue)


def test_text_is_split_into_characters_and_words(sess):
    assert plain(sess.run(tf.string_split(["ab"], "").values)) == [b"a", b"b"]
    assert plain(sess.run(tf.strings.split(["a  b "]).values)) == [b"a", b"b"]
    with pytest.raises(ValueError, match="a vector of texts is required"):
        tf.string_split("a b")


def test_sparse_array_of_numbers_is_converted_on_the_device(sess):
    labels = tf.placeholder(tf.int32, [2])
    places = tf.stack([tf.range(2), labels], 1)

    assert plain(sess.run(tf.sparse_to_dense(places, [2, 3], 1.0, 0.0), {labels: [2, 0]})) == [[0, 0, 1], [1, 0, 0]]
    assert plain(sess.run(tf.sparse_to_dense([0, 2], [4], [5, 6], -1))) == [5, -1, 6, -1]
    assert plain(sess.run(tf.sparse.to_dense(tf.SparseTensor([[1, 0]], [2.5], [2, 2])))) == [[0, 0], [2.5, 0]]


def test_unsupported_text_operations_are_refused():
    with pytest.raises(TypeError, match="Cast: 'Const.*:0' is text, which stays on the host: use tf.py_func"):
        tf.cast(tf.constant("1"), tf.float32)
    with pytest.raises(TypeError, match="variables are on the device, which holds none"):
        tf.Variable("text")
    with pytest.raises(TypeError, match="Expected float32, got .1."):
        tf.constant("1", tf.float32)
    with pytest.raises(ValueError, match="field_delim is one character"):
        tf.decode_csv("a", [[""]], field_delim="")


def test_ones_like_and_zeros_like_of_text_give_numbers(sess):
    words = tf.constant([[b"a"], [b"b"]])

    assert plain(sess.run(tf.ones_like(words, tf.float32))) == [[1.0], [1.0]]
    assert plain(sess.run(tf.zeros_like(words, dtype=tf.int32))) == [[0], [0]]
    assert tf.ones_like(words, tf.int32).dtype == tf.int32
    with pytest.raises(ValueError, match="Say which dtype the ones are of"):
        tf.ones_like(words)


def test_assertions_compare_text(sess):
    word = tf.placeholder(tf.string, [])
    with tf.control_dependencies([tf.assert_equal(word, "yes")]):
        checked = tf.constant(1.0) + 1

    assert sess.run(checked, {word: "yes"}) == 2
    with pytest.raises(tf.errors.InvalidArgumentError, match="Condition x == y did not hold"):
        sess.run(checked, {word: "no"})


@pytest.mark.parametrize("make", [tf.constant, tf.convert_to_tensor])
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a", b"a"), (b"a", b"a"), ("ä\0", b"\xc3\xa4\0"), (["a", b"b"], [b"a", b"b"]),
        ([["a"], ["b"]], [[b"a"], [b"b"]]), (np.array(["a"]), [b"a"]),
        (np.array(["a", b"b"], object), [b"a", b"b"]), ([], []), ([[]], [[]]),
    ],
)  # fmt: skip
def test_dtype_string_is_accepted_for_text(sess, make, value, expected):
    for text in (make(value, tf.string), make(value, dtype="string")):
        assert text.dtype == tf.string
        assert plain(sess.run(text)) == expected


def test_text_fills_a_shape(sess):
    assert plain(sess.run(tf.constant("a", tf.string, [2]))) == [b"a", b"a"]
    assert plain(sess.run(tf.constant(["a", "b"], tf.string, shape=[3]))) == [b"a", b"b", b"b"]


@pytest.mark.parametrize("value", [1, True, None, [1.0], ["a", 1], np.array([1.5]), np.array([1, "b"], object)])
def test_value_that_is_no_text_is_refused_as_text(value):
    with pytest.raises(TypeError, match="string"):
        tf.constant(value, tf.string)
    with pytest.raises(TypeError):
        tf.constant(["a", 1])
