"""`tf.strings`."""

from __future__ import annotations

from hookline_tf1._machinery.namespaces import offered
from hookline_tf1._tf.sparse_ops import strings_split as split
from hookline_tf1._tf.string_ops import as_string, reduce_join, regex_full_match, regex_replace, substr
from hookline_tf1._tf.string_ops import string_join as join
from hookline_tf1._tf.string_ops import string_length as length
from hookline_tf1._tf.string_ops import string_lower as lower
from hookline_tf1._tf.string_ops import string_strip as strip
from hookline_tf1._tf.string_ops import string_to_number as to_number
from hookline_tf1._tf.string_ops import string_upper as upper

__all__ = [
    "as_string",
    "join",
    "length",
    "lower",
    "reduce_join",
    "regex_full_match",
    "regex_replace",
    "split",
    "strip",
    "substr",
    "to_number",
    "upper",
]
__getattr__, __dir__ = offered("tf.strings", lambda: __all__)
