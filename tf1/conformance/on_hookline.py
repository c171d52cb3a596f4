"""hookline, with TensorFlow's names as `tf`."""

from __future__ import annotations

import hookline_tf1
from conformance.on_hookline import LOGGER, Hookline

__all__ = ["LOGGER", "system"]


class _Hookline(Hookline):
    tf, Graph = hookline_tf1, hookline_tf1.Graph


system = _Hookline()
