"""Latches: nodes that remember, on the device, the first run in which a condition held."""

from __future__ import annotations

from typing import Any

from hookline.graph.graph import Operation
from hookline.graph.guard import Condition


class Latch(Condition):
    """The node behind `latch`. The latched value belongs to the session that runs it."""

    type = "Latch"


def latch(condition: Any, name: str = "latch") -> Operation:
    """Returns an operation that remembers the first run in which a condition held.

    A run that needs the operation returns no value for it, and nothing waits. The device keeps the number of that run
    beside the variables, and `Session.latched(operation)` reads it at any convenient time. A hook for a rare event
    declares `trigger = train.latched(...)`; then it adds almost nothing to the time of a step.

    The latched value belongs to one session. It is not a variable and not in checkpoints, and is forgotten when the
    trained variables are loaded or restored.

    Args:
        condition: A bool, or a tensor of one. It may be computed from anything in the run.
        name: Name of the operation.

    Raises:
        ValueError: The condition has more than one value.

    Example:
        >>> import hookline as hl
        >>> step, norm = hl.train.create_global_step(), hl.placeholder("float32", ())
        >>> too_large = hl.latch(norm > 10.0)
        >>> train_op = hl.group(step.assign_add(1), too_large)
        >>> with hl.Session() as sess:
        ...     sess.run(hl.global_variables_initializer())
        ...     for value in (3.0, 30.0, 300.0, 3.0):
        ...         sess.run(train_op, {norm: value})
        ...     sess.latched(too_large, wait=True)
        2
    """
    return Latch(condition, name)
