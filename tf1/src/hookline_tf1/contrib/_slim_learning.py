"""`slim.learning`: a training operation that runs all updates, and a training loop."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hookline import clock
from hookline.extend import log
from hookline.train import MonitoredTrainingSession, Scaffold, get_or_create_global_step
from hookline_tf1 import math
from hookline_tf1._machinery.graphs import GraphKeys, get_collection, get_default_graph, name_scope
from hookline_tf1._machinery.ignored_arguments import ignored, unknown
from hookline_tf1._machinery.namespaces import offered
from hookline_tf1._machinery.nodes import convert_to_tensor
from hookline_tf1._tf import check_ops
from hookline_tf1._tf.control_flow_ops import with_dependencies
from hookline_tf1._tf.variables import trainable_variables
from hookline_tf1.train._hooks import StopAtStepHook

__all__ = ["clip_gradient_norms", "create_train_op", "multiply_gradients", "train"]

__getattr__, __dir__ = offered("tf.contrib.slim.learning", lambda: __all__)

_logger = log.get_logger("hookline.tf1")
_OF_GRAPH = 0
"""A marker for the graph's global step, as in TensorFlow."""

Pairs = list[tuple[Any, Any]]


def clip_gradient_norms(gradients_to_variables: Pairs, max_norm: float) -> Pairs:
    """Clips the norm of each gradient."""
    clip = math.clip_by_norm
    return [(grad if grad is None else clip(grad, max_norm), var) for grad, var in gradients_to_variables]


def multiply_gradients(grads_and_vars: Pairs, gradient_multipliers: Mapping[Any, Any]) -> Pairs:
    """Multiplies the gradients of some variables, given by variable or by name."""
    given = {getattr(key, "name", key).removesuffix(":0"): factor for key, factor in gradient_multipliers.items()}

    def factor(var: Any) -> Any:
        return given.get(var.op.name)

    return [(grad if None in (grad, factor(var)) else grad * factor(var), var) for grad, var in grads_and_vars]


def create_train_op(
    total_loss: Any,
    optimizer: Any,
    global_step: Any = _OF_GRAPH,
    update_ops: Sequence[Any] | None = None,
    variables_to_train: Sequence[Any] | None = None,
    clip_gradient_norm: float = 0,
    summarize_gradients: bool = False,
    gate_gradients: Any = 1,
    aggregation_method: Any = None,
    colocate_gradients_with_ops: bool = False,
    gradient_multipliers: Mapping[Any, Any] | None = None,
    check_numerics: bool = True,
) -> Any:
    """Returns a tensor of the loss; each run of it makes a training step.

    References:
        `tf.contrib.slim.learning.create_train_op`. The default updates are the collection `UPDATE_OPS`.
    """
    ignored("slim.learning.create_train_op", summarize_gradients=summarize_gradients)
    ignored("slim.learning.create_train_op", aggregation_method=aggregation_method, gate_gradients=gate_gradients != 1)
    ignored("slim.learning.create_train_op", colocate_gradients_with_ops=colocate_gradients_with_ops)
    # Not `==`, which returns a tensor for a variable.
    step = get_or_create_global_step() if global_step is _OF_GRAPH else global_step
    updates = get_collection(GraphKeys.UPDATE_OPS) if update_ops is None else update_ops
    loss = with_dependencies(list(updates), convert_to_tensor(total_loss), "update_barrier") if updates else total_loss
    pairs = optimizer.compute_gradients(loss, variables_to_train or trainable_variables())
    if gradient_multipliers:
        pairs = multiply_gradients(pairs, gradient_multipliers)
    if clip_gradient_norm > 0:
        pairs = clip_gradient_norms(pairs, clip_gradient_norm)
    applied = optimizer.apply_gradients(pairs, global_step=step)
    with name_scope("train_op"):
        checked = check_ops.check_numerics(loss, "LossTensor is inf or nan") if check_numerics else loss
        made = with_dependencies([applied], checked, "control_dependency")
    get_default_graph().add_to_collection(GraphKeys.TRAIN_OP, made)
    return made


def train(
    train_op: Any,
    logdir: str | None,
    train_step_fn: Callable[..., Any] | None = None,
    train_step_kwargs: dict[str, Any] | None = None,
    log_every_n_steps: int = 1,
    graph: Any = None,
    master: str = "",
    is_chief: bool = True,
    global_step: Any = None,
    number_of_steps: int | None = None,
    init_op: Any = None,
    init_feed_dict: Any = None,
    local_init_op: Any = None,
    init_fn: Callable[[Any], Any] | None = None,
    ready_op: Any = None,
    summary_op: Any = None,
    save_summaries_secs: float | None = 600,
    summary_writer: Any = None,
    startup_delay_steps: int = 0,
    saver: Any = None,
    save_interval_secs: float = 600,
    **further: Any,
) -> Any:
    """Runs `train_op` in a `MonitoredTrainingSession` until the step is `number_of_steps`; returns its last value.

    References:
        `tf.contrib.slim.learning.train`. A custom `train_step_fn` is refused: write the loop.
    """
    unknown("slim.learning.train", further, "sync_optimizer", "session_config", "session_wrapper",
            "trace_every_n_steps", "ignore_live_threads")  # fmt: skip
    if train_step_fn is not None or train_step_kwargs is not None:
        raise NotImplementedError(
            "slim.learning.train has no train_step_fn: write the loop with tf.train.MonitoredTrainingSession."
        )
    ignored("slim.learning.train", summary_writer=summary_writer, startup_delay_steps=startup_delay_steps > 0)
    with (graph or get_default_graph()).as_default():
        step, loss = get_or_create_global_step() if global_step is None else global_step, None
        after = with_dependencies([train_op], step, "global_step_after")
        begin = None if init_fn is None else lambda scaffold, session: init_fn(session)
        scaffold = Scaffold(
            init_op=init_op, init_feed_dict=init_feed_dict, init_fn=begin, ready_op=ready_op,
            local_init_op=local_init_op, summary_op=summary_op, saver=saver,
        )  # fmt: skip
        hooks = [] if number_of_steps is None else [StopAtStepHook(last_step=number_of_steps)]
        with MonitoredTrainingSession(
            master, is_chief, None if logdir is None else os.fspath(logdir), scaffold, hooks,
            save_checkpoint_secs=save_interval_secs, save_summaries_secs=save_summaries_secs, save_summaries_steps=None,
            log_step_count_steps=None,
        ) as session:  # fmt: skip
            while not session.should_stop():
                began = clock.monotonic()
                loss, now = session.run([train_op, after])
                if log_every_n_steps and int(now) % log_every_n_steps == 0:
                    took = clock.monotonic() - began
                    _logger.info("global step %d: loss = %.4f (%.3f sec/step)", now, loss, took)
    return loss
