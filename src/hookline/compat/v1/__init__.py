"""TensorFlow 1.x's names over hookline: `import hookline.compat.v1 as tf`, and a script trains on JAX.

In each import line of a script `tensorflow` becomes `hookline.compat.v1`, whatever stands behind it (see `places`).

Example:
    >>> import hookline.compat.v1 as tf
    >>> x = tf.placeholder(tf.float32, [None, 2], name="x")
    >>> total = tf.reduce_sum(tf.square(x), axis=1)
    >>> with tf.Session() as sess:
    ...     print(sess.run(total, feed_dict={x: [[3, 4]]}))
    [25.]
"""

import sys as _sys
from types import ModuleType as _ModuleType
from typing import Any as _Any

from hookline import errors as _errors
from hookline.interrupts import held_back as _held_back

with _held_back():
    from hookline.compat.v1 import (
        app,
        arrays,
        assigning,
        before_1_0,
        branches,
        checks,
        clipping,
        config,
        contrib,
        control,
        csv_lines,
        data,
        dialect,
        distributions,
        dtypes,
        estimator,
        files,
        flags,
        gfile,
        image,
        initializers,
        layers,
        linalg,
        logging,
        losses,
        machine,
        math,
        metrics,
        nn,
        places,
        python_io,
        queue_readers,
        random,
        sparse_tensors,
        special,
        summary,
        switches,
        text_functions,
        train,
        variable_scopes,
        variables,
    )
    from hookline.compat.v1._machinery import graphs, nodes
from hookline.compat.v1._machinery.default_session import get_default_session
from hookline.compat.v1._machinery.namespaces import Namespace as _Namespace
from hookline.compat.v1._machinery.namespaces import missing as _missing
from hookline.compat.v1._machinery.namespaces import public as _public
from hookline.compat.v1._machinery.tensors import Operation, Tensor, is_tensor
from hookline.compat.v1._rules.tensor_shape import Dimension, TensorShape
from hookline.compat.v1.python_functions import py_func
from hookline.compat.v1.run_options import RunOptions
from hookline.compat.v1.sessions import InteractiveSession, Session
from hookline.session import RunMetadata

# The files whose names stand in `tf` itself; where two have one, that of the later file.
_PARTS = [
    dtypes,
    clipping,
    math,
    special,
    linalg,
    arrays,
    nodes,
    graphs,
    variables,
    assigning,
    variable_scopes,
    random,
    initializers,
    control,
    branches,
    checks,
    text_functions,
    sparse_tensors,
    csv_lines,
    files,
    queue_readers,
    switches,
    before_1_0,
]
globals().update(_public(*_PARTS))

VERSION = __version__ = "1.15.0"
GIT_VERSION, COMPILER_VERSION = "hookline", "XLA"
NotDifferentiable = NoGradient = lambda op_type: None
graphs.Graph.dialect = dialect.ScriptDialect()  # Here, for it knows all that graphs make.
compat = _Namespace("tf.compat", {"v1": _sys.modules[__name__], **_public(switches)})
device = config.device

# Namespaces that are no files.
errors = _Namespace("tf.errors", {name: value for name, value in vars(_errors).items() if name.endswith("Error")})
strings = _Namespace("tf.strings", text_functions.STRINGS | {"split": sparse_tensors.strings_split})
sparse = _Namespace("tf.sparse", sparse_tensors.SPARSE)
test = _Namespace("tf.test", machine.PUBLIC)
io = _Namespace(
    "tf.io",
    {
        **_public(csv_lines, files),
        "decode_base64": text_functions.decode_base64,
        "decode_raw": text_functions.decode_raw,
        "encode_base64": text_functions.encode_base64,
        "gfile": gfile,
        "tf_record_iterator": python_io.tf_record_iterator,
        "write_graph": train.write_graph,
    },
)
places.register(_sys.modules[__name__])
# All of them; the other files of this folder are no names of TensorFlow's.
_NAMESPACES = {
    *(
        "app",
        "compat",
        "config",
        "contrib",
        "data",
        "distributions",
        "dtypes",
        "errors",
        "estimator",
        "flags",
        "gfile",
        "image",
        "io",
    ),
    *(
        "initializers",
        "layers",
        "linalg",
        "logging",
        "losses",
        "math",
        "metrics",
        "nn",
        "python_io",
        "random",
        "sparse",
    ),
    *("strings", "summary", "test", "train"),
}

# Made when they are asked for: their messages take a while to import.
_MESSAGES: dict[str, _Any] = {
    **dict.fromkeys(("ConfigProto", "GPUOptions", "GraphOptions", "OptimizerOptions"), config),
    **dict.fromkeys(("Event", "SessionLog", "Summary"), summary),
}


def __dir__() -> list[str]:
    found = {name for name, value in globals().items() if name in _NAMESPACES or not isinstance(value, _ModuleType)}
    return sorted(name for name in {*found, *_MESSAGES} if not name.startswith("_"))


def __getattr__(name: str) -> _Any:
    return getattr(_MESSAGES[name], name) if name in _MESSAGES else _missing("tf", __dir__)(name)
