"""TensorFlow, with its names as `tf`."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from conformance.on_tensorflow import LOGGER, TensorFlow

__all__ = ["LOGGER", "system"]


class _TensorFlow(TensorFlow):
    tf = tf


system = _TensorFlow()
