"""Restricts a hook to the runs with certain fetches."""

from __future__ import annotations

from typing import Any

from hookline.graph import Graph, Operation, Tensor
from hookline.graph.nodes.nodes import Group
from hookline.session.plan.fetches import iter_fetches


def only_for(fetches: Any, hook: Any) -> BoundHook:
    """Restricts a hook to the runs that fetch one of `fetches`.

    Use it for several training operations under one session, such as the two steps of a GAN. All hooks share one
    global step; a hook that becomes due in another run fires in the next of its own runs.

    Args:
        fetches: An operation, tensor, variable or name, or any nesting of them. A run that fetches a group counts as
            fetching its members.
        hook: The hook. Pass only the result to the session, and only to one session.

    Raises:
        TypeError: `hook` is a class, not a hook, or already bound; or `fetches` has an item that cannot be fetched.
        ValueError: `fetches` is empty.

    Example:
        >>> import hookline as hl
        >>> from hookline import train
        >>> class Count(train.SessionRunHook):
        ...     runs = 0
        ...     def after_run(self, run_context, run_values):
        ...         self.runs += 1
        >>> with hl.Graph().as_default():
        ...     step = train.get_or_create_global_step()
        ...     discriminate, generate = hl.no_op(), step.assign_add(1)
        ...     generated = Count()
        ...     with train.MonitoredSession(hooks=[only_for(generate, generated)]) as sess:
        ...         for _ in range(3):
        ...             _ = sess.run(discriminate), sess.run(generate)
        >>> generated.runs
        3

    References:
        None in `tf.train`, where every hook sees every run.
    """
    callbacks = ("before_run", "after_run", "on_trigger")
    if isinstance(hook, type) or not any(callable(getattr(hook, name, None)) for name in callbacks):
        raise TypeError(f"only_for requires a hook, an object with {', '.join(callbacks)}, got {hook!r}.")
    if isinstance(hook, BoundHook):
        raise TypeError(f"only_for requires a hook that is not bound yet, got {hook!r}. Give all fetches at once.")
    wanted = list(iter_fetches(fetches))
    if not wanted:
        raise ValueError(f"only_for requires one operation or tensor, or more, got {fetches!r}.")
    for leaf in wanted:
        if not isinstance(leaf, Operation | Tensor | str):
            raise TypeError(f"only_for requires operations, tensors or names of them, got {leaf!r}.")
    return BoundHook(fetches, hook)


class BoundHook:
    """The result of `only_for`: a hook, with all its callbacks, and its fetches, which the session reads.

    The session counts the hook's runs in `runs`.
    """

    def __init__(self, fetches: Any, hook: Any) -> None:
        self.hook = hook
        self.bound_to = fetches
        self.runs = 0

    def __getattr__(self, name: str) -> Any:
        if name == "hook":  # While the object is unpickled.
            raise AttributeError(name)
        return getattr(self.hook, name)

    def operations(self, graph: Graph) -> set[Operation]:
        """Returns the operations that the hook is bound to.

        Raises:
            KeyError, ValueError: One is not in the graph.
        """
        try:
            return fetched_operations(self.bound_to, graph)
        except (KeyError, ValueError) as exc:
            raise type(exc)(
                f"train.only_for of {type(self.hook).__name__}: {exc.args[0] if exc.args else exc}"
            ) from exc


def unwrap(hook: Any) -> Any:
    """Returns the hook itself, whether it is bound to fetches or not."""
    return hook.hook if isinstance(hook, BoundHook) else hook


def fetched_operations(fetches: Any, graph: Graph) -> set[Operation]:
    """Returns the operations of fetches, including the members of groups."""
    found: set[Operation] = set()
    pending = []
    for leaf in iter_fetches(fetches):
        element = graph.as_graph_element(leaf)
        pending.append(element if isinstance(element, Operation) else element.op)
    while pending:
        operation = pending.pop()
        if operation not in found:
            found.add(operation)
            if isinstance(operation, Group):
                pending.extend((*operation.control_inputs, *(tensor.op for tensor in operation.inputs)))
    return found
