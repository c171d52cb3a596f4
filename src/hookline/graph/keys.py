"""Standard names of graph collections."""

from __future__ import annotations


class GraphKeys:
    """The standard names of collections.

    The library itself reads or writes the collections of the first block. The second block is a convention for models
    and their authors. Any other hashable value may name a collection of your own.

    Example:
        >>> import hookline as hl
        >>> with hl.Graph().as_default() as graph:
        ...     weights = hl.Variable(0.0, name="weights")
        >>> graph.get_collection(hl.GraphKeys.TRAINABLE_VARIABLES) == [weights]
        True

    References:
        `tf.GraphKeys`, with the same values.
    """

    GLOBAL_VARIABLES = VARIABLES = "variables"
    LOCAL_VARIABLES = "local_variables"
    TRAINABLE_VARIABLES = "trainable_variables"
    MOVING_AVERAGE_VARIABLES = "moving_average_variables"
    SUMMARIES = "summaries"
    SUMMARY_OP = "summary_op"
    GLOBAL_STEP = "global_step"
    SAVERS = "savers"
    INIT_OP = "init_op"
    LOCAL_INIT_OP = "local_init_op"
    READY_OP = "ready_op"
    READY_FOR_LOCAL_INIT_OP = "ready_for_local_init_op"

    TRAIN_OP = "train_op"

    UPDATE_OPS = "update_ops"
    LOSSES = "losses"
    REGULARIZATION_LOSSES = "regularization_losses"
    MODEL_VARIABLES = "model_variables"
    METRIC_VARIABLES = "metric_variables"
    WEIGHTS = "weights"
    BIASES = "biases"
    ACTIVATIONS = "activations"
    ASSET_FILEPATHS = "asset_filepaths"
    CONCATENATED_VARIABLES = "concatenated_variables"
    COND_CONTEXT = "cond_context"
    WHILE_CONTEXT = "while_context"
    EVAL_STEP = "eval_step"
    QUEUE_RUNNERS = "queue_runners"
    TABLE_INITIALIZERS = "table_initializer"
    TRAINABLE_RESOURCE_VARIABLES = "trainable_resource_variables"
    RESOURCES = "resources"
    LOCAL_RESOURCES = "local_resources"
    SAVEABLE_OBJECTS = "saveable_objects"
