"""What a session of `hookline_tf1` returns and takes, and what scripts ask of tensors and shapes."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.scenario import Record, scenario
from conformance.system import System


def _raised(call: Any) -> str | None:
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return None


def _kind(value: Any) -> Any:
    writable = bool(value.flags.writeable) if isinstance(value, np.ndarray) else None
    return [type(value).__name__, str(value.dtype).replace("64", "32"), writable]


@scenario("v1.session.results")
def _(s: System) -> Record:
    """Results are NumPy's: scalars that can be hashed, arrays that can be written to."""
    tf = s.tf
    x = tf.placeholder("float32", [None, 2], name="x")
    total, half, right = tf.reduce_sum(x), x / 2, tf.equal(x, x)
    with tf.Session() as sess:
        got = sess.run([total, half, right, tf.shape(x), tf.constant(3)], {x: [[1, 2]]})
        got[1][0, 0] = 7.0
        nested = sess.run({"a": total, "b": [half, (total, tf.no_op())]}, {"x:0": np.ones((1, 2))})
        variable = tf.Variable(2.0)
        sess.run(variable.initializer)
        kinds = [_kind(sess.run(variable)), _kind(variable.eval())]
    return {
        "kinds": [_kind(value) for value in got],
        "hashed": len({got[0], got[4]}),
        "written": got[1],
        "nested": nested,
        "variables": kinds,
    }


@scenario("v1.session.feeds")
def _(s: System) -> Record:
    """What is fed is cast to the tensor's dtype, floats to integers included; a wrong shape is a `ValueError`."""
    tf = s.tf
    i, x = tf.placeholder(tf.int32, [None]), tf.placeholder(tf.float32, [2])
    flag, rate = tf.placeholder(tf.bool, []), tf.placeholder(tf.float32)
    with tf.Session() as sess:
        return {
            "integers": sess.run(i + 1, {i: [1.9, -1.9, 3]}),
            "doubles": sess.run(i + 1, {i: np.asarray([2.7, 3.0])}),
            "truths": sess.run(x * 2, {x: [True, False]}),
            "flag": sess.run(tf.logical_not(flag), {flag: 1}),
            "any_rank": [sess.run(rate * 2, {rate: 0.5}), sess.run(rate * 2, {rate: [1, 2]})],
            "tuple": sess.run(x + 1, {x: (1, 2)}),
            "computed": sess.run((x + 1) * 2, {x + 1: [5, 6], x: [0, 0]}),
            "shape": _raised(lambda: sess.run(x, {x: [1, 2, 3]})),
            "text": _raised(lambda: sess.run(x, {x: ["a", "b"]})),
            "unfed": _raised(lambda: sess.run(x * 2)),
            "none": _raised(lambda: sess.run(None)),
            "number": _raised(lambda: sess.run(3.0)),
        }


@scenario("v1.session.default")
def _(s: System) -> Record:
    """A session in a `with` block, or an interactive one, is what `eval` and `run` use."""
    tf = s.tf
    v = tf.Variable(1.0)
    more = v.assign_add(1.0)
    outside = _raised(lambda: v.eval())
    with tf.Session() as sess:
        tf.global_variables_initializer().run()
        more.op.run()
        inside = [v.eval(), tf.get_default_session() is sess, (v * 2).eval()]
        with tf.Session() as other:
            v.initializer.run()
            inside += [v.eval(), v.eval(session=sess), tf.get_default_session() is other]
    kept = tf.Session()
    with kept.as_default():
        v.initializer.run(session=kept)
    after = [kept.run(v), tf.get_default_session() is None]
    kept.close()
    shell = tf.InteractiveSession()
    v.initializer.run()
    interactive = [v.eval(), tf.get_default_session() is shell]
    shell.close()
    closed = _raised(lambda: shell.run(v))
    return {"outside": outside, "inside": inside, "after": after, "interactive": interactive, "closed": closed}


@scenario("v1.tensor.shapes")
def _(s: System) -> Record:
    """`get_shape`, `as_list`, `Dimension`, `set_shape`, and shapes that are used as numbers."""
    tf = s.tf
    tf.disable_v2_tensorshape()
    x, any_ = tf.placeholder(tf.float32, [None, 3]), tf.placeholder(tf.float32)
    shape, dim = x.get_shape(), x.get_shape()[1]
    before = [any_.get_shape().ndims, str(any_.get_shape())]
    any_.set_shape([None, 4])
    return {
        "list": shape.as_list(),
        "values": [d.value for d in shape],
        "sizes": [len(shape), shape.ndims, shape.num_elements(), shape[1:].as_list(), x.shape[-1].value],
        "texts": [str(shape), str(dim), repr(dim), str(x.get_shape()[0])],
        "numbers": [int(dim), int(dim * 2), (dim * 5).value, (dim + 1).value, (10 // dim).value, [0] * dim, dim == 3],
        "unknown": [(shape[0] * 2).value, shape[0] == 3, shape.is_fully_defined()],
        "compatible": [shape.is_compatible_with([5, 3]), shape.is_compatible_with([5, 4]), shape == [None, 3]],
        "merged": [any_.get_shape().as_list(), before],
        "contradiction": _raised(lambda: x.set_shape([2, 4])),
        "made": tf.TensorShape([2, None]).concatenate([3]).as_list(),
        "fed": tf.reshape(x, [-1, dim * 1]).get_shape().as_list(),
        "variable": tf.Variable(tf.zeros([x.get_shape()[1], 2])).get_shape().as_list(),
    }


@scenario("v1.tensor.dtypes")
def _(s: System) -> Record:
    """Dtypes compare with NumPy's and with names, and say what they are."""
    tf = s.tf
    x = tf.placeholder(tf.float32, [2])
    return {
        "name": [x.dtype.name, x.dtype.base_dtype.name, tf.as_dtype("int32").name, tf.as_dtype(np.float32).name],
        "same": [x.dtype == tf.float32, x.dtype == np.float32, x.dtype == "float32", x.dtype == tf.int32],
        "kind": [x.dtype.is_floating, tf.int32.is_integer, tf.float32.is_bool, tf.float32.size],
        "numpy": [np.zeros(2, x.dtype.as_numpy_dtype).dtype.name, tf.uint8.max, tf.int32.min],
        "text": [repr(tf.float32), str(tf.int32)],
        "made": [tf.constant(v).dtype.name for v in (1, 1.0, True, [1.0])],
        "cast": tf.cast(x, tf.float16).dtype.name,
    }


@scenario("v1.graph.methods")
def _(s: System) -> Record:
    """What scripts ask of a graph, beside what every graph has."""
    tf = s.tf
    graph = tf.get_default_graph()
    with tf.name_scope("outer"), graph.name_scope("inner") as scope:
        name = graph.get_name_scope()
    with graph.device("/gpu:0"), tf.device("/cpu:0"):
        x = tf.placeholder(tf.float32, [1], name="x")
    tf.add_to_collections(["a", "b"], x)
    tf.get_collection_ref("a").append(1)
    graph.clear_collection("b")
    return {
        "scopes": [scope, name],
        "collections": [len(tf.get_collection("a")), len(tf.get_collection("b"))],
        "found": graph.get_tensor_by_name("x:0") is x and x.op.values()[0] is x,
        "same": x.graph is graph,
    }
