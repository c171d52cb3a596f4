"""`tf.dtypes`."""

from __future__ import annotations

from hookline.compat.v1 import math
from hookline.compat.v1._machinery import dtypes
from hookline.compat.v1._machinery.dtypes import float16_ref, float32_ref, int32_ref, int64_ref  # noqa: F401
from hookline.compat.v1._machinery.namespaces import offered

PUBLIC = {**dtypes.PUBLIC, "cast": math.cast, "saturate_cast": math.saturate_cast}
globals().update(PUBLIC)
__getattr__, __dir__ = offered("tf.dtypes", lambda: PUBLIC)
