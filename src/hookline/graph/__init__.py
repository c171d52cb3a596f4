"""The computation: graphs, operations, tensors, variables and their updates."""

from hookline.graph.conditions import latch, skip_updates_if
from hookline.graph.global_step import (
    assert_global_step,
    create_global_step,
    get_global_step,
    get_or_create_eval_step,
    get_or_create_global_step,
    global_step,
)
from hookline.graph.gradient import gradients
from hookline.graph.graph import (
    Graph,
    Operation,
    Tensor,
    get_default_graph,
    reset_default_graph,
)
from hookline.graph.initializers import (
    global_variables,
    global_variables_initializer,
    local_variables,
    local_variables_initializer,
    report_uninitialized_variables,
    trainable_variables,
    variables,
    variables_initializer,
)
from hookline.graph.moving_average import ExponentialMovingAverage
from hookline.graph.nodes.ops import (
    add_to_collection,
    constant,
    control_dependencies,
    get_collection,
    group,
    host_op,
    name_scope,
    no_op,
    op,
    placeholder,
)
from hookline.graph.nodes.random import random_key
from hookline.graph.optimizer import Optimizer
from hookline.graph.registry import GraphKeys
from hookline.graph.variable import Variable, update
