"""`tf.nn`."""

from __future__ import annotations

import jax

from hookline.compat.v1.namespace import missing
from hookline.compat.v1.table import functions, row

TABLE = [
    row("relu", "features, name=None", jax.nn.relu),
]

FUNCTIONS = functions(TABLE)
globals().update(FUNCTIONS)
PUBLIC = [*FUNCTIONS]
__getattr__ = missing("tf.nn", lambda: PUBLIC)
