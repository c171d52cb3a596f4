"""`tf.io`."""

from __future__ import annotations

from hookline.compat.v1 import gfile
from hookline.compat.v1._machinery.namespaces import offered
from hookline.compat.v1._tf.csv_ops import decode_csv
from hookline.compat.v1._tf.io_ops import matching_files, read_file, write_file
from hookline.compat.v1._tf.string_ops import decode_base64, decode_raw, encode_base64
from hookline.compat.v1.python_io import tf_record_iterator
from hookline.compat.v1.train import write_graph

__all__ = [
    "decode_base64",
    "decode_csv",
    "decode_raw",
    "encode_base64",
    "gfile",
    "matching_files",
    "read_file",
    "tf_record_iterator",
    "write_file",
    "write_graph",
]
__getattr__, __dir__ = offered("tf.io", lambda: __all__)
