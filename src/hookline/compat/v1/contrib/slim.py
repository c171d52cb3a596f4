"""`tf.contrib.slim`: the layers of `tf.contrib.layers`, the scopes of `tf.contrib.framework`, and a training loop."""

from __future__ import annotations

from hookline.compat.v1._machinery.namespaces import offered
from hookline.compat.v1.contrib import _layer_collections as utils
from hookline.compat.v1.contrib import _slim_learning, _slim_model_analyzer, framework, layers, losses

PUBLIC = {name: getattr(place, name) for place in (framework, layers) for name in place.__all__ if name != "losses"}
PUBLIC |= {"learning": _slim_learning, "losses": losses, "model_analyzer": _slim_model_analyzer, "utils": utils}
globals().update(PUBLIC)

__getattr__, __dir__ = offered("tf.contrib.slim", lambda: PUBLIC)
