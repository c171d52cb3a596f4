"""TensorFlow 1.x's names over hookline: `import hookline.compat.v1 as tf`, and a script trains on JAX.

In each import line of a script `tensorflow` becomes `hookline.compat.v1`, whatever follows it;
`_tf/module_aliases.py` holds the modules that such lines find.

The folder has three floors, and imports go down only. At the top each namespace is a file or a folder: `tf.losses` is
`losses`, and the names in `tf` itself are in `_tf`. Below is the `_machinery`, and below that are the `_rules` of
shapes and constants.

Example:
    >>> import hookline.compat.v1 as tf
    >>> x = tf.placeholder(tf.float32, [None, 2], name="x")
    >>> total = tf.reduce_sum(tf.square(x), axis=1)
    >>> with tf.Session() as sess:
    ...     print(sess.run(total, feed_dict={x: [[3, 4]]}))
    [25.]
"""

import sys as _sys
from typing import Any as _Any

from hookline.interrupts import held_back as _held_back

with _held_back():
    from hookline.compat.v1 import (
        app,
        compat,
        config,
        contrib,
        data,
        distributions,
        dtypes,
        errors,
        estimator,
        flags,
        gfile,
        image,
        initializers,
        io,
        layers,
        linalg,
        logging,
        losses,
        math,
        metrics,
        nn,
        python_io,
        random,
        sparse,
        strings,
        summary,
        test,
        train,
    )
    from hookline.compat.v1._machinery import graphs as _graphs
    from hookline.compat.v1._machinery import nodes as _nodes
    from hookline.compat.v1._tf import array_ops as _array_ops
    from hookline.compat.v1._tf import before_1_0 as _before_1_0
    from hookline.compat.v1._tf import check_ops as _check_ops
    from hookline.compat.v1._tf import clip_ops as _clip_ops
    from hookline.compat.v1._tf import cond as _cond
    from hookline.compat.v1._tf import control_flow_ops as _control_flow_ops
    from hookline.compat.v1._tf import csv_ops as _csv_ops
    from hookline.compat.v1._tf import dialect as _dialect
    from hookline.compat.v1._tf import io_ops as _io_ops
    from hookline.compat.v1._tf import math_ops as _math_ops
    from hookline.compat.v1._tf import module_aliases as _module_aliases
    from hookline.compat.v1._tf import reader_ops as _reader_ops
    from hookline.compat.v1._tf import sparse_ops as _sparse_ops
    from hookline.compat.v1._tf import state_ops as _state_ops
    from hookline.compat.v1._tf import string_ops as _string_ops
    from hookline.compat.v1._tf import variable_scopes as _variable_scopes
    from hookline.compat.v1._tf import variables as _variables
from hookline.compat.v1._machinery.default_session import get_default_session
from hookline.compat.v1._machinery.namespaces import missing as _missing
from hookline.compat.v1._machinery.namespaces import public as _public
from hookline.compat.v1._machinery.tensors import Operation, Tensor, is_tensor
from hookline.compat.v1._rules.tensor_shape import Dimension, TensorShape
from hookline.compat.v1._tf.py_func import py_func
from hookline.compat.v1._tf.run_options import RunOptions
from hookline.compat.v1._tf.session import InteractiveSession, Session
from hookline.session import RunMetadata

# The files whose names stand in `tf` itself; where two have one, that of the later file.
_PARTS = [
    dtypes,
    _clip_ops,
    math,
    _math_ops,
    linalg,
    _array_ops,
    _nodes,
    _graphs,
    _variables,
    _state_ops,
    _variable_scopes,
    random,
    initializers,
    _control_flow_ops,
    _cond,
    _check_ops,
    _string_ops,
    _sparse_ops,
    _csv_ops,
    _io_ops,
    _reader_ops,
    compat,
    _before_1_0,
]
globals().update(_public(*_PARTS))

VERSION = __version__ = "1.15.0"
GIT_VERSION, COMPILER_VERSION = "hookline", "XLA"
NotDifferentiable = NoGradient = lambda op_type: None
device = config.device
_graphs.Graph.dialect = _dialect.ScriptDialect()  # Here, for it knows all that graphs make.

# Made when they are asked for: their messages take a while to import.
_MESSAGES: dict[str, _Any] = {
    **dict.fromkeys(("ConfigProto", "GPUOptions", "GraphOptions", "OptimizerOptions"), config),
    **dict.fromkeys(("Event", "SessionLog", "Summary"), summary),
}
_NAMES = sorted(name for name in {*globals(), *_MESSAGES} if not name.startswith("_"))
_module_aliases.register(_sys.modules[__name__])


def __dir__() -> list[str]:
    return _NAMES


def __getattr__(name: str) -> _Any:
    return getattr(_MESSAGES[name], name) if name in _MESSAGES else _missing("tf", __dir__)(name)
