"""TensorFlow 1.x's names over hookline: `import hookline.compat.v1 as tf`, and a script trains on JAX.

Example:
    >>> import hookline.compat.v1 as tf
    >>> x = tf.placeholder(tf.float32, [None, 2], name="x")
    >>> total = tf.reduce_sum(tf.square(x), axis=1)
    >>> with tf.Session() as sess:
    ...     print(sess.run(total, feed_dict={x: [[3, 4]]}))
    [25.]
"""

import sys as _sys

from hookline import errors
from hookline.compat.v1 import (
    arrays,
    dtypes,
    graphs,
    initializers,
    math,
    nn,
    nodes,
    random,
    sessions,
    tensors,
    variables,
)
from hookline.compat.v1 import (
    variable_scope as _scopes,
)
from hookline.compat.v1.default_session import get_default_session
from hookline.compat.v1.dtypes import DType, as_dtype
from hookline.compat.v1.namespace import Namespace as _Namespace
from hookline.compat.v1.namespace import missing as _missing
from hookline.compat.v1.namespace import public as _public
from hookline.compat.v1.sessions import InteractiveSession, Session
from hookline.compat.v1.shapes import Dimension, TensorShape
from hookline.compat.v1.tensors import Operation, Tensor, is_tensor
from hookline.session import RunMetadata, RunOptions

# Every file whose `__all__` stands in `tf` itself; the order decides where two have a name.
_PARTS = [dtypes, math, arrays, nodes, graphs, variables, _scopes, random, initializers]
globals().update(_public(*_PARTS))

VERSION = __version__ = "1.15.0"

compat = _Namespace("tf.compat", {"v1": _sys.modules[__name__]})


def __dir__() -> list[str]:
    return sorted(name for name in globals() if not name.startswith("_"))


__getattr__ = _missing("tf", __dir__)
