"""What many scenarios of scripts are made of."""

from __future__ import annotations

from typing import Any

from conformance.system import System


def counted_training(s: System) -> tuple[Any, Any]:
    """Returns, of `tf.compat.v1`, a training step that counts after hooks have read, and its loss: 64, 16, 4, ..."""
    tf = s.tf
    weight = tf.Variable(8.0, name="weight")
    loss = tf.multiply(weight, weight, name="loss")
    step = tf.train.get_or_create_global_step()
    return tf.group(tf.train.GradientDescentOptimizer(0.25).minimize(loss), s.counted(step, 1)), loss


def train_with(tf: Any, train_op: Any, hooks: list[Any], runs: int, **how: Any) -> int:
    """Makes so many runs of a training session with hooks, unless it should stop; returns how many those were."""
    made = 0
    with tf.train.MonitoredTrainingSession(hooks=hooks, **how) as sess:
        while made < runs and not sess.should_stop():
            sess.run(train_op)
            made += 1
    return made


def steps_saved(s: System) -> list[int]:
    """Returns the steps of the checkpoints in the folder of the scenario."""
    state = s.tf.train.get_checkpoint_state(s.folder)
    return [] if state is None else [int(path.rpartition("-")[2]) for path in state.all_model_checkpoint_paths]
