"""Scaffold: the operations around training, taken from the user, the graph's collections, and defaults."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hookline import arguments, summary
from hookline.checkpoint import Saver
from hookline.graph import (
    Graph,
    GraphKeys,
    Operation,
    Tensor,
    get_default_graph,
    global_variables,
    global_variables_initializer,
    local_variables_initializer,
    report_uninitialized_variables,
)
from hookline.session import Session
from hookline.session.fetches import check_fetches

T = TypeVar("T")

InitFn = Callable[["Scaffold", Session], Any]
"""A user's function that initialises: `init_fn(scaffold, session)`."""

_DEFAULTS = "hookline/scaffold_defaults"


class Scaffold:
    """The parts of a monitored session beside the training step: initialisation, readiness checks, saving.

    Everything is optional. `finalize` fills missing parts from the graph's collections or with defaults. Until then
    their properties are None.

    Args:
        init_op: Initialises a model that was not restored; by default all global variables.
        init_feed_dict: Feed of `init_op`.
        init_fn: Called as `init_fn(scaffold, session)` after `init_op`; not after a restore.
        ready_op: A tensor of the names that are not initialised yet, empty when the model is ready.
        ready_for_local_init_op: Likewise, for the variables that `local_init_op` needs.
        local_init_op: Initialises everything that no checkpoint holds; also runs after a restore.
        summary_op: The summaries to write; by default all of them, merged.
        saver: Saves and restores.
        copy_from_scaffold: A scaffold that provides the missing arguments.
        local_init_feed_dict: Feed of `local_init_op`.

    Raises:
        TypeError: An argument has the wrong type: an operation that cannot be fetched, a saver that is not a `Saver`.

    Example:
        >>> import hookline as hl
        >>> with hl.Graph().as_default():
        ...     weight = hl.Variable(1.0, name="weight")
        ...     scaffold = Scaffold()
        ...     print(scaffold.init_op)
        ...     print(scaffold.finalize().init_op.type)
        None
        Group

    References:
        `tf.train.Scaffold`. Difference: defaults that an earlier session left in the collections are made again if
        variables or summaries were added since then.
    """

    def __init__(
        self,
        init_op: Operation | Tensor | None = None,
        init_feed_dict: Mapping[Any, Any] | None = None,
        init_fn: InitFn | None = None,
        ready_op: Tensor | None = None,
        ready_for_local_init_op: Tensor | None = None,
        local_init_op: Operation | Tensor | None = None,
        summary_op: Tensor | None = None,
        saver: Saver | None = None,
        copy_from_scaffold: Scaffold | None = None,
        local_init_feed_dict: Mapping[Any, Any] | None = None,
    ) -> None:
        check_fetches("Scaffold", init_op=init_op, local_init_op=local_init_op, summary_op=summary_op)
        check_fetches("Scaffold", ready_op=ready_op, ready_for_local_init_op=ready_for_local_init_op)
        arguments.instance("Scaffold", "init_feed_dict", init_feed_dict, Mapping)
        arguments.instance("Scaffold", "local_init_feed_dict", local_init_feed_dict, Mapping)
        arguments.instance("Scaffold", "saver", saver, Saver)
        if init_fn is not None and not callable(init_fn):
            raise TypeError(f"Scaffold requires a function init_fn(scaffold, session) (or None), got {init_fn!r}.")
        source = arguments.instance("Scaffold", "copy_from_scaffold", copy_from_scaffold, Scaffold)
        self._init_op = _either(init_op, source and source._init_op)
        self._init_feed_dict = _either(init_feed_dict, source and source._init_feed_dict)
        self._init_fn = _either(init_fn, source and source._init_fn)
        self._ready_op = _either(ready_op, source and source._ready_op)
        self._ready_for_local_init_op = _either(ready_for_local_init_op, source and source._ready_for_local_init_op)
        self._local_init_op = _either(local_init_op, source and source._local_init_op)
        self._local_init_feed_dict = _either(local_init_feed_dict, source and source._local_init_feed_dict)
        self._summary_op = _either(summary_op, source and source._summary_op)
        self._saver = _either(saver, source and source._saver)

    def finalize(self) -> Scaffold:
        """Fills missing parts, then finalizes the default graph. Calling it again changes nothing.

        Returns:
            This scaffold.

        Raises:
            RuntimeError: A collection has several items, so none can be chosen; or a default must be made, but the
                graph is already finalized.
        """
        self._init_op = self._filled(self._init_op, "init_op", GraphKeys.INIT_OP, global_variables_initializer)
        self._ready_op = self._filled(self._ready_op, "ready_op", GraphKeys.READY_OP, report_uninitialized_variables)
        self._ready_for_local_init_op = self._filled(
            self._ready_for_local_init_op,
            "ready_for_local_init_op",
            GraphKeys.READY_FOR_LOCAL_INIT_OP,
            lambda: report_uninitialized_variables(global_variables()),
        )
        self._local_init_op = self._filled(
            self._local_init_op, "local_init_op", GraphKeys.LOCAL_INIT_OP, self.default_local_init_op
        )
        self._summary_op = self._filled(self._summary_op, "summary_op", GraphKeys.SUMMARY_OP, summary.merge_all)
        self._saver = self._filled(self._saver, "saver", GraphKeys.SAVERS, Saver)
        get_default_graph().finalize()
        return self

    @staticmethod
    def default_local_init_op() -> Operation:
        """Returns a new operation that does a session's default initialisation after each restore.

        Use it in your own `local_init_op` that does more: `group(Scaffold.default_local_init_op(), more)`.
        """
        return local_variables_initializer()

    @staticmethod
    def get_or_default(arg_name: str, collection_key: str, default_constructor: Callable[[], T]) -> T:
        """Returns the only item of a collection of the default graph, or a default, which is then stored there.

        Args:
            arg_name: The argument of `Scaffold` that would replace the item; for the message.
            collection_key: The collection.
            default_constructor: Makes the default; a result of None is not stored.

        Raises:
            RuntimeError: The collection has several items.
        """
        graph = get_default_graph()
        items = graph.get_collection_ref(collection_key)
        if len(items) > 1:
            raise RuntimeError(
                f"Collection {collection_key!r} holds {len(items)} items, and a Scaffold needs one: pass the right one "
                f"as {arg_name}=..., or leave one in the collection."
            )
        covered = _covered(graph)
        defaults = graph.get_collection_ref(_DEFAULTS)
        if items:
            outdated = [(item, names) for item, names in defaults if item is items[0] and names != covered]
            if not outdated or graph.finalized:
                return items[0]
            # An earlier session left this default, before the graph got its present variables or summaries.
            items.clear()
        default = default_constructor()
        if default is not None:
            graph.add_to_collection(collection_key, default)
            defaults.append((default, covered))
        return default

    @property
    def init_op(self) -> Operation | Tensor | None:
        """Initialises a model that was not restored."""
        return self._init_op

    @property
    def init_feed_dict(self) -> Mapping[Any, Any] | None:
        """Feed of `init_op`."""
        return self._init_feed_dict

    @property
    def init_fn(self) -> Callable[[Session], Any] | None:
        """The given function, bound to this scaffold: it takes the session."""
        return None if self._init_fn is None else functools.partial(self._init_fn, self)

    @property
    def ready_op(self) -> Tensor | None:
        """The names of the variables that are not initialised yet."""
        return self._ready_op

    @property
    def ready_for_local_init_op(self) -> Tensor | None:
        """The names of the variables that `local_init_op` needs and that are not initialised yet."""
        return self._ready_for_local_init_op

    @property
    def local_init_op(self) -> Operation | Tensor | None:
        """Initialises everything that no checkpoint holds."""
        return self._local_init_op

    @property
    def local_init_feed_dict(self) -> Mapping[Any, Any] | None:
        """Feed of `local_init_op`."""
        return self._local_init_feed_dict

    @property
    def summary_op(self) -> Tensor | None:
        """The summaries to write; None if there are none, even after `finalize`."""
        return self._summary_op

    @property
    def saver(self) -> Saver | None:
        """Saves and restores."""
        return self._saver

    def _filled(self, given: T | None, arg_name: str, key: str, default: Callable[[], T | None]) -> T | None:
        return given if given is not None else self.get_or_default(arg_name, key, default)


def _either(first: T | None, second: T | None) -> T | None:
    return first if first is not None else second


def _covered(graph: Graph) -> tuple[str, ...]:
    """Returns the names of everything that a default covers."""
    keys = (GraphKeys.GLOBAL_VARIABLES, GraphKeys.LOCAL_VARIABLES, GraphKeys.SUMMARIES)
    return tuple(item.name for key in keys for item in graph.get_collection(key))
