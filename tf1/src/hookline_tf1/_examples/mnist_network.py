"""The small network of TF 1.x's first tutorial: `tensorflow.examples.tutorials.mnist.mnist`."""

from __future__ import annotations

import math
from typing import Any

from hookline_tf1 import nn, random
from hookline_tf1._machinery import dtypes
from hookline_tf1._machinery.graphs import name_scope
from hookline_tf1._machinery.namespaces import missing
from hookline_tf1._tf import array_ops
from hookline_tf1._tf.variables import Variable
from hookline_tf1.losses import sparse_softmax_cross_entropy
from hookline_tf1.math import cast, matmul, reduce_sum
from hookline_tf1.summary import scalar
from hookline_tf1.train._optimizers import GradientDescentOptimizer

__all__ = ["IMAGE_PIXELS", "IMAGE_SIZE", "NUM_CLASSES", "evaluation", "inference", "loss", "training"]

NUM_CLASSES = 10
IMAGE_SIZE = 28
IMAGE_PIXELS = IMAGE_SIZE * IMAGE_SIZE

__getattr__ = missing("tensorflow.examples.tutorials.mnist.mnist", lambda: __all__)


def _dense(name: str, x: Any, inputs: int, units: int) -> Any:
    with name_scope(name):
        start = random.truncated_normal([inputs, units], stddev=1 / math.sqrt(inputs))
        weights = Variable(start, name="weights")
        biases = Variable(array_ops.zeros([units]), name="biases")
        return matmul(x, weights) + biases


def inference(images: Any, hidden1_units: int, hidden2_units: int) -> Any:
    """Returns the logits of flat images, from two hidden layers."""
    relu = nn.relu
    first = relu(_dense("hidden1", images, IMAGE_PIXELS, hidden1_units))
    second = relu(_dense("hidden2", first, hidden1_units, hidden2_units))
    return _dense("softmax_linear", second, hidden2_units, NUM_CLASSES)


def loss(logits: Any, labels: Any) -> Any:
    """Returns the mean cross entropy of logits with labels."""
    return sparse_softmax_cross_entropy(cast(labels, dtypes.int64), logits)


def training(loss: Any, learning_rate: float) -> Any:
    """Returns an operation that makes one step of gradient descent; adds a summary of the loss."""
    scalar("loss", loss)
    step = Variable(0, name="global_step", trainable=False)
    return GradientDescentOptimizer(learning_rate).minimize(loss, global_step=step)


def evaluation(logits: Any, labels: Any) -> Any:
    """Counts the correct predictions of a batch."""
    right = nn.in_top_k(logits, labels, 1)
    return reduce_sum(cast(right, dtypes.int32))
