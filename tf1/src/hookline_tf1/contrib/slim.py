"""`tf.contrib.slim`: the layers of `tf.contrib.layers`, the scopes of `tf.contrib.framework`, and a training loop."""

from __future__ import annotations

from hookline_tf1._machinery.namespaces import offered
from hookline_tf1.contrib import _layer_collections as utils
from hookline_tf1.contrib import _slim_learning as learning
from hookline_tf1.contrib import _slim_model_analyzer as model_analyzer
from hookline_tf1.contrib import framework, layers, losses
from hookline_tf1.contrib.framework import *  # noqa: F403
from hookline_tf1.contrib.layers import *  # noqa: F403

__all__ = ["learning", "losses", "model_analyzer", "utils"]
__all__ += framework.__all__
__all__ += layers.__all__

__getattr__, __dir__ = offered("tf.contrib.slim", lambda: __all__)
