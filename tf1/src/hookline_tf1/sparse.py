"""`tf.sparse`."""

from __future__ import annotations

from hookline_tf1._machinery.namespaces import offered
from hookline_tf1._tf.sparse_ops import SparseTensor
from hookline_tf1._tf.sparse_ops import sparse_tensor_to_dense as to_dense

__all__ = ["SparseTensor", "to_dense"]
__getattr__, __dir__ = offered("tf.sparse", lambda: __all__)
