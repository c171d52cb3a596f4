"""The parts of `tf.contrib` that most training scripts use. TF 1.15 was the last version with it."""

from __future__ import annotations

from hookline_tf1._machinery.namespaces import offered
from hookline_tf1.contrib import distributions, framework, layers, losses, metrics, opt, seq2seq, slim

__all__ = ["distributions", "framework", "layers", "losses", "metrics", "opt", "seq2seq", "slim"]

__getattr__, __dir__ = offered("tf.contrib", lambda: __all__)
