"""`tf.io`."""

from __future__ import annotations

from hookline_tf1 import gfile
from hookline_tf1._machinery.namespaces import offered
from hookline_tf1._tf.csv_ops import decode_csv
from hookline_tf1._tf.io_ops import matching_files, read_file, write_file
from hookline_tf1._tf.string_ops import decode_base64, decode_raw, encode_base64
from hookline_tf1.python_io import tf_record_iterator
from hookline_tf1.train import write_graph

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
