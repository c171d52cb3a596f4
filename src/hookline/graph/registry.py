"""A graph without its operations: names and scopes, collections, and whether it is open."""

from __future__ import annotations

import re
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from hookline import arguments
from hookline.signals import notebooks

FINALIZED = "Graph is finalized and cannot be modified."
"""The beginning of the error for an addition to a finalized graph."""
_IN_A_NOTEBOOK = (
    " If an earlier cell opened a session on it, call the session's close(). Let a cell that you run again make a "
    "graph of its own, `with hookline.Graph().as_default():`."
)


class GraphKeys:
    """The standard names of collections.

    The library itself reads or writes the collections down to `TRAIN_OP`, and `EVAL_STEP`. The others are a convention
    for models and their authors. Any other hashable value may name a collection of your own.

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


class Registry:
    """Names, collections, and a lock on both: the part of a `Graph` without operations.

    Attributes:
        finalized: Whether additions are refused.
    """

    def __init__(self) -> None:
        self._collections: dict[Hashable, list[Any]] = {}
        self.finalized = False
        self._lock = threading.RLock()
        # By the name in lower case: a checkpoint's folders may be on a file system that ignores case.
        self._counts: dict[str, int] = {}
        self._local = threading.local()

    def finalize(self) -> None:
        """Refuses every later addition with a `RuntimeError`; harmless when repeated."""
        self.finalized = True

    def reopen(self) -> None:
        """Allows additions again; a monitored session calls this at its end if it found the graph open."""
        self.finalized = False

    def check_not_finalized(self, addition: str) -> None:
        """Raises `RuntimeError` if the graph is finalized; `addition` names the addition."""
        if self.finalized:
            of_cell = "" if notebooks.ipython_shell() is None else _IN_A_NOTEBOOK
            raise RuntimeError(
                f"{FINALIZED} {addition} was to be added: make it before the graph is finalized (in a hook: in begin)."
                f"{of_cell}"
            )

    def unique_name(self, name: str) -> str:
        """Returns `name` inside the current name scope, numbered (`loss_1`) if it is taken, and takes it.

        Names that differ only in case count as the same.

        Raises:
            ValueError: It has characters other than letters, digits, `_`, `.`, `-` and `/`, or leads out of a folder.
        """
        self.check_not_finalized(f"{name!r}")
        check_name(name)
        wanted = self.current_scope + name
        with self._lock:
            unique = self._find_free_name(wanted)
            self._counts[wanted.lower()] = self._counts.get(wanted.lower(), 0) + 1
            self._counts.setdefault(unique.lower(), 1)
        return unique

    def free_name(self, name: str) -> str:
        """Returns the unique name that an operation called `name` would get now, outside of all name scopes."""
        check_name(name)
        with self._lock:
            return self._find_free_name(name)

    def _find_free_name(self, wanted: str) -> str:
        unique, count = wanted, self._counts.get(wanted.lower(), 0)
        while count and unique.lower() in self._counts:
            unique = f"{wanted}_{count}"
            count += 1
        return unique

    @property
    def current_scope(self) -> str:
        """The name scope of the calling thread: empty, or ending in a slash."""
        return getattr(self._local, "scope", "")

    @contextmanager
    def name_scope(self, name: str | None) -> Iterator[str]:
        """Prefixes the names of operations made inside with `name/`, and yields the prefix.

        `None` leaves all scopes; a name that ends in a slash (a prefix yielded earlier) enters that scope again.
        """
        if name is not None and name != "":
            check_name(name.removesuffix("/") if isinstance(name, str) else name)
        if name and not name.endswith("/"):
            name = f"{self.unique_name(name)}/"
        outer, self._local.scope = self.current_scope, name or ""
        try:
            yield self.current_scope
        finally:
            self._local.scope = outer

    def add_to_collection(self, name: Hashable, value: Any) -> None:
        """Appends `value` to the collection `name`."""
        _check_hashable(name)
        with self._lock:
            self.check_not_finalized(f"An item of the collection {name!r}")
            self._collections.setdefault(name, []).append(value)

    def get_collection(self, name: Hashable, scope: str | None = None) -> list[Any]:
        """Returns a copy of the collection `name`; with `scope`, the items whose names match it, as `re.match` does."""
        _check_hashable(name)
        arguments.check_str("get_collection", "scope", scope, optional=True)
        items = list(self._collections.get(name, ()))
        return [item for item in items if re.match(scope, getattr(item, "name", ""))] if scope else items

    def get_all_collection_keys(self) -> list[Hashable]:
        """Returns the names of the collections that hold something."""
        return [name for name, items in self._collections.items() if items]

    def get_collection_ref(self, name: Hashable) -> list[Any]:
        """Returns the collection itself: changing the list changes the graph."""
        with self._lock:
            return self._collections.setdefault(name, [])


def _check_hashable(name: Any) -> None:
    if not isinstance(name, Hashable):
        raise TypeError(f"The name of a collection must be hashable, such as text, got {name!r}.")


def check_name(name: str) -> None:
    """Raises `ValueError` unless `name` can be a name in a graph.

    Names become parts of paths, in checkpoints and in TensorBoard, so none may lead out of its folder.
    """
    if not isinstance(name, str):
        raise TypeError(f"A name is a string, got {name!r} of type {type(name).__name__}.")
    if not name or not all(c.isascii() and (c.isalnum() or c in "_.-/") for c in name):
        raise ValueError(f"{name!r} is not a name: use letters, digits and '_', '.', '-', '/'.")
    if not name[0].isalnum() and name[0] not in "._":
        raise ValueError(f"{name!r} is not a name: begin it with a letter, a digit, '.' or '_'.")
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise ValueError(f"{name!r} is not a name: a part between two slashes may not be empty, '.' or '..'.")
