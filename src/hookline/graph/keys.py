"""Standard names of graph collections."""

from __future__ import annotations


class GraphKeys:
    """Names of the collections that the library itself reads and writes.

    Any other hashable value may name a collection of one's own.

    Example:
        >>> import hookline as hl
        >>> with hl.Graph().as_default() as graph:
        ...     weights = hl.Variable(0.0, name="weights")
        >>> graph.get_collection(hl.GraphKeys.TRAINABLE_VARIABLES) == [weights]
        True

    References:
        `tf.GraphKeys`.
    """

    GLOBAL_VARIABLES = "variables"
    LOCAL_VARIABLES = "local_variables"
    TRAINABLE_VARIABLES = "trainable_variables"
    SUMMARIES = "summaries"
    SUMMARY_OP = "summary_op"
    GLOBAL_STEP = "global_step"
    SAVERS = "savers"
    INIT_OP = "init_op"
    LOCAL_INIT_OP = "local_init_op"
    READY_OP = "ready_op"
    READY_FOR_LOCAL_INIT_OP = "ready_for_local_init_op"
