"""Scaffold: operations to initialise, check, summarise and save a model: given, from collections, or defaults."""

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
from hookline.session.plan.fetches import check_fetches

T = TypeVar("T")

InitFn = Callable[["Scaffold", Session], Any]
"""A user's function that initialises a model: `init_fn(scaffold, session)`."""

_DEFAULTS = "hookline/scaffold_defaults"


class Scaffold:
    """Holds the operations of a monitored session beside the training step, and its saver.

    All arguments are optional, and become attributes. `finalize` sets missing ones, from the graph's collections or to
    defaults; until then they are None. The attribute `init_fn` takes just the session.

    Args:
        init_op: Initialises a model that was not restored; by default all global variables.
        init_feed_dict: The feeds of `init_op`.
        init_fn: Called as `init_fn(scaffold, session)` after `init_op`; not after a restore.
        ready_op: A tensor of the names of uninitialised variables; empty when the model is ready.
        ready_for_local_init_op: Likewise, for the variables that `local_init_op` needs.
        local_init_op: Initialises everything that is not in checkpoints; also runs after a restore.
        summary_op: The summaries to write; by default all of them, merged; None if there are none.
        saver: Saves and restores.
        copy_from_scaffold: A scaffold that provides the missing arguments.
        local_init_feed_dict: The feeds of `local_init_op`.

    Raises:
        TypeError: An argument has the wrong type: an operation cannot be fetched, or `saver` is not a `Saver`.

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
        `tf.train.Scaffold`. Difference: defaults that an earlier session left in the collections are created again if
        variables or summaries were added since.
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
        arguments.check_optional("Scaffold", "init_feed_dict", init_feed_dict, Mapping)
        arguments.check_optional("Scaffold", "local_init_feed_dict", local_init_feed_dict, Mapping)
        arguments.check_optional("Scaffold", "saver", saver, Saver)
        if init_fn is not None and not callable(init_fn):
            raise TypeError(f"Scaffold requires a function init_fn(scaffold, session) (or None), got {init_fn!r}.")
        before = arguments.check_optional("Scaffold", "copy_from_scaffold", copy_from_scaffold, Scaffold)
        self.init_op = _first_given(init_op, before and before.init_op)
        self.init_feed_dict = _first_given(init_feed_dict, before and before.init_feed_dict)
        self._init_fn = _first_given(init_fn, before and before._init_fn)
        self.ready_op = _first_given(ready_op, before and before.ready_op)
        self.ready_for_local_init_op = _first_given(ready_for_local_init_op, before and before.ready_for_local_init_op)
        self.local_init_op = _first_given(local_init_op, before and before.local_init_op)
        self.local_init_feed_dict = _first_given(local_init_feed_dict, before and before.local_init_feed_dict)
        self.summary_op = _first_given(summary_op, before and before.summary_op)
        self.saver = _first_given(saver, before and before.saver)

    def finalize(self) -> Scaffold:
        """Sets missing attributes, then finalizes the default graph. A second call changes nothing.

        Returns:
            This scaffold.

        Raises:
            RuntimeError: A collection has several items, so the choice is ambiguous; or a default must be created, but
                the graph is already finalized.
        """
        parts: list[tuple[str, str, Callable[[], Any]]] = [
            ("init_op", GraphKeys.INIT_OP, global_variables_initializer),
            ("ready_op", GraphKeys.READY_OP, report_uninitialized_variables),
            (
                "ready_for_local_init_op",
                GraphKeys.READY_FOR_LOCAL_INIT_OP,
                lambda: report_uninitialized_variables(global_variables()),
            ),
            ("local_init_op", GraphKeys.LOCAL_INIT_OP, self.default_local_init_op),
            ("summary_op", GraphKeys.SUMMARY_OP, summary.merge_all),
            ("saver", GraphKeys.SAVERS, Saver),
        ]
        for name, key, default in parts:
            if getattr(self, name) is None:
                setattr(self, name, self.get_or_default(name, key, default))
        get_default_graph().finalize()
        return self

    @staticmethod
    def default_local_init_op() -> Operation:
        """Returns a new operation that initialises local variables, the default `local_init_op`.

        Use it in your own `local_init_op`: `group(Scaffold.default_local_init_op(), more)`.
        """
        return local_variables_initializer()

    @staticmethod
    def get_or_default(arg_name: str, collection_key: str, default_constructor: Callable[[], T]) -> T:
        """Returns the only item in a collection of the default graph; or a default, which it stores there.

        Args:
            arg_name: The argument of `Scaffold` that would replace the item, for the message.
            collection_key: The key of the collection.
            default_constructor: Creates the default; a result of None is not stored.

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
        covered = _covered_names(graph)
        defaults = graph.get_collection_ref(_DEFAULTS)
        if items:
            outdated = [(item, names) for item, names in defaults if item is items[0] and names != covered]
            if not outdated or graph.finalized:
                return items[0]
            # An earlier session left this default; variables or summaries were added since.
            items.clear()
        default = default_constructor()
        if default is not None:
            graph.add_to_collection(collection_key, default)
            defaults.append((default, covered))
        return default

    @property
    def init_fn(self) -> Callable[[Session], Any] | None:
        """The given function, bound to this scaffold: it takes the session."""
        return None if self._init_fn is None else functools.partial(self._init_fn, self)


def _first_given(first: T | None, second: T | None) -> T | None:
    return first if first is not None else second


def _covered_names(graph: Graph) -> tuple[str, ...]:
    """Returns the names of the variables and summaries that defaults cover."""
    keys = (GraphKeys.GLOBAL_VARIABLES, GraphKeys.LOCAL_VARIABLES, GraphKeys.SUMMARIES)
    return tuple(item.name for key in keys for item in graph.get_collection(key))
