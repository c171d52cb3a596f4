"""Requests: the fetches of a run, by its caller and by hooks, and its feeds."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from hookline.graph.graph import Graph, Operation, Tensor
from hookline.session.plan.feeds import flatten_feeds, resolve_feeds
from hookline.session.plan.fetches import Assembler, fetch_key, flatten_fetches


class HookFetches:
    """The fetches of the hooks of a run; made once for many runs, so that its key is computed once.

    Attributes:
        fetches: For each hook a fetch structure, or None.
        deferred: The indices in `fetches` whose results come as `DeferredResults`.
        stacked: The indices whose results have a row for each step, if a run has several.
        is_single_use: Whether it was made for a single run, so that nothing need be cached for it.
        key: Its cache key: objects with equal keys share one plan.

    Example:
        >>> HookFetches(("loss:0", None)).key == HookFetches(("loss:0", None)).key
        True
    """

    __slots__ = ("deferred", "fetches", "is_single_use", "key", "stacked")
    key: Hashable

    def __init__(
        self,
        fetches: tuple[Any, ...],
        deferred: frozenset[int] = frozenset(),
        stacked: frozenset[int] = frozenset(),
        *,
        is_single_use: bool = False,
    ) -> None:
        self.fetches, self.deferred, self.stacked, self.is_single_use = fetches, deferred, stacked, is_single_use

    def __getattr__(self, name: str) -> Any:
        # Not in the constructor: a fetch that is invalid is reported by the run.
        if name != "key":
            raise AttributeError(name)
        self.key = (self.deferred, self.stacked, *[None if item is None else fetch_key(item) for item in self.fetches])
        return self.key


_NOTHING = HookFetches(())


class HookRequest(NamedTuple):
    """The fetches of one hook.

    Args:
        hook_index: The index of the hook.
        elements: Its tensors and operations.
        assemble: Puts their values into the structure of its fetches.
        is_deferred: Whether its results are deferred.
        is_stacked: Whether its results have a row for each of several steps; else they are from the last step.
    """

    hook_index: int
    elements: Sequence[Tensor | Operation]
    assemble: Assembler
    is_deferred: bool
    is_stacked: bool


class Request:
    """The tensors and operations that a run computes for its caller and for hooks.

    Args:
        graph: Their graph.
        fetches: The caller's fetches.
        hook_fetches: The fetches of hooks.
        feed_dict: The feeds; their values do not matter.
        max_steps: The largest number of steps of the run.

    Attributes:
        max_steps: As above.
        fetched: The caller's tensors and operations.
        assemble: Puts their values into the structure of the caller's fetches.
        hooks: The hooks that fetch something.
        hook_count: The number of all hooks.
        fed: The fed tensors.
        has_structures: Whether a key of the feeds is a structure of tensors.
        is_constant: Whether the results are the same in each run, and immutable.
    """

    def __init__(
        self,
        graph: Graph,
        fetches: Any,
        hook_fetches: HookFetches | None,
        feed_dict: Mapping[Any, Any] | None,
        max_steps: int,
    ) -> None:
        self.max_steps = max_steps
        self.fetched, self.assemble = flatten_fetches(graph, fetches)
        of_hooks = hook_fetches or _NOTHING
        requested = [(index, each) for index, each in enumerate(of_hooks.fetches) if each is not None]
        self.hooks = [
            HookRequest(
                index,
                *flatten_fetches(graph, each),
                index in of_hooks.deferred,
                max_steps > 1 and index in of_hooks.stacked,
            )
            for index, each in requested
        ]
        self.hook_count = len(of_hooks.fetches)
        flat = flatten_feeds(feed_dict)
        self.fed = resolve_feeds(graph, flat or {})
        self.has_structures = flat is not feed_dict
        are_constant = not of_hooks.deferred and all(_is_constant(each) for _, each in requested)
        self.is_constant = isinstance(fetches, Operation) and are_constant

    def hook_elements(
        self, *, is_deferred: bool | None = None, is_stacked: bool | None = None
    ) -> list[Tensor | Operation]:
        """Returns the elements of some hooks; None selects both kinds."""
        return [
            element
            for part in self.hooks
            if is_deferred in (None, part.is_deferred) and is_stacked in (None, part.is_stacked)
            for element in part.elements
        ]


def _is_constant(fetches: Any) -> bool:
    """Returns whether the results never change and are immutable: of operations, or tuples of them."""
    return isinstance(fetches, Operation) or (type(fetches) is tuple and all(map(_is_constant, fetches)))
