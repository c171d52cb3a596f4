"""MergedRequests: the fetches, feeds and options that the hooks of a run request, merged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hookline.graph import Graph, Operation
from hookline.hooks.base import SessionRunArgs, SessionRunContext
from hookline.monitored.callbacks import describe
from hookline.monitored.hook_record import HookRecord
from hookline.monitored.rows import rows_of_one
from hookline.session import HookFetches, RunOptions, Session, merge_options
from hookline.session.feeds import flat_feeds
from hookline.session.fetches import leaves


class MergedRequests:
    """The merged requests of the hooks that take part in a run.

    Requests are merged again only when a hook returns another object than the last time.

    Args:
        records: The hooks.
        ask: Returns the request of a hook that has no `before_run`.
        standing: The operations of every run.

    Attributes:
        records: As above.
        has_hooks: Whether any hook takes part.
        may_request: Whether any hook may have a request.
        stacked: Whether any hook takes rows.
        after: The hooks, each with its index in `hook_fetches`.
        has_requests: Whether any hook had a request at the last `ask`.
        has_fetches: Whether `hook_fetches` has any fetch.
        hook_fetches: The fetches of each hook, or None; the operations of every run come after them.
        feeders: The hooks that feed, each with its feeds.
        options: The requested options.
        of_each_step: As `hook_fetches`, without the fetches that only the last of several steps computes.
        stale: Whether the requests must be merged again.
    """

    def __init__(
        self,
        records: Sequence[HookRecord],
        ask: Callable[[HookRecord, SessionRunContext], SessionRunArgs | None],
        standing: tuple[Operation, ...] = (),
    ) -> None:
        self.standing = standing
        self.records = records
        self.after = list(enumerate(records))
        self._asking = [(place, record) for place, record in self.after if record.before is not None or record.asks]
        self.has_hooks, self.may_request = bool(records), bool(self._asking)
        self.stacked = any(record.stacked for record in records)
        self._ask = ask
        self._asked: list[SessionRunArgs | None] = [None] * len(records)
        self._merge()
        self.stale = self.may_request  # The requests are not known yet.

    def ask(self, context: SessionRunContext) -> None:
        """Calls every `before_run`, asks the hooks that fire, and merges the requests.

        Raises:
            TypeError: A hook returned something other than None or a `SessionRunArgs`, or one whose feeds are not a
                dict or whose options are not `RunOptions`.
        """
        asked = self._asked
        for place, record in self._asking:
            args = self._ask(record, context) if record.before is None else record.before(context)
            if args is not asked[place]:
                asked[place] = args
                self.stale = True
        if self.stale:
            self._merge()

    def in_rows(self, results: Sequence[Any]) -> Sequence[Any]:
        """Returns the results of one step, as rows for the hooks that take rows."""
        found = [
            rows_of_one(values) if record.stacked else values
            for record, values in zip(self.records, results, strict=False)  # The operations of every run come last.
        ]
        return [*found, *results[len(found) :]]

    def forget_feeds(self) -> None:
        """Forgets the values that hooks fed, because a batch must not outlive its run; keeps the fed tensors."""
        self.feeders = [(hook, dict.fromkeys(feeds)) for hook, feeds in self.feeders]
        self._asked = [None if getattr(args, "feed_dict", None) else args for args in self._asked]
        self.stale = True

    def merged_options(self, options: RunOptions | None) -> RunOptions | None:
        """Returns the caller's options merged with those of the hooks; call it only if hooks have options."""
        if self._merged_options is None or options is not self._caller_options:
            self._caller_options = options
            self._merged_options = merge_options([options, *self.options])
        return self._merged_options

    def merged_feeds(self, feed_dict: Mapping[Any, Any] | None, graph: Graph) -> dict[Any, Any]:
        """Returns the merged feeds of the caller and the hooks.

        Raises:
            RuntimeError: A tensor is fed twice.
        """
        merged: dict[Any, Any] = {}
        fed_by: dict[Any, Any] = {}
        for hook, feeds in self.feeders:
            by_tensor = {_element(graph, key): value for key, value in feeds.items()}
            conflicts = [tensor for tensor in by_tensor if tensor in merged]
            if conflicts:
                others = " and ".join(sorted({f"the {describe(fed_by[tensor])}" for tensor in conflicts}))
                raise RuntimeError(
                    f"Same tensor is fed by two hooks. Conflict(s): {_names(conflicts)}, "
                    f"fed by the {describe(hook)} and by {others}."
                )
            merged.update(by_tensor)
            fed_by.update(dict.fromkeys(by_tensor, hook))
        for key, value in (flat_feeds(feed_dict) or {}).items():
            tensor = _element(graph, key)
            if tensor in fed_by:
                raise RuntimeError(
                    f"Same tensor is fed by a SessionRunHook and user. Conflict(s): {_names([tensor])}, "
                    f"fed by the {describe(fed_by[tensor])}."
                )
            merged[tensor] = value
        return merged

    @property
    def asking(self) -> str:
        """The hooks with fetches, in words."""
        pairs = zip(self.records, self.hook_fetches.fetches, strict=False)
        return " and ".join(f"the {describe(record.hook)}" for record, fetches in pairs if fetches is not None)

    def blame(self, exc: Exception, graph: Graph) -> None:
        """Raises the error of a run again, with the name of the hook, if a hook's fetch has caused it."""
        # The operations of every run come last.
        for record, fetches in zip(self.records, self.hook_fetches.fetches, strict=False):
            check_in_graph(record.hook, fetches, graph, exc)

    def _merge(self) -> None:
        for record, args in zip(self.records, self._asked, strict=True):
            if args is not None:
                _check(record.hook, "before_trigger" if record.before is None else "before_run", args)
        asked = [None if args is None else args.fetches for args in self._asked]
        late = frozenset(place for place, args in enumerate(self._asked) if args and self.records[place].late)
        # The operations of every run, after the hooks' fetches, are run in each step.
        rows = frozenset([*(place for place, record in enumerate(self.records) if record.stacked), len(asked)])
        self.hook_fetches = HookFetches((*asked, self.standing) if self.standing else tuple(asked), late, rows)
        only_rows = [fetches if record.stacked else None for record, fetches in zip(self.records, asked, strict=True)]
        self.of_each_step = HookFetches((*only_rows, self.standing) if self.standing else tuple(only_rows), late, rows)
        self.has_fetches: bool = any(fetches is not None for fetches in self.hook_fetches.fetches)
        given = [
            (record.hook, args) for record, args in zip(self.records, self._asked, strict=True) if args is not None
        ]
        self.feeders: list[tuple[Any, Mapping[Any, Any]]] = [
            (hook, flat_feeds(args.feed_dict) or {}) for hook, args in given if args.feed_dict
        ]
        self.options: list[RunOptions] = [args.options for _, args in given if args.options is not None]
        self._caller_options: RunOptions | None = None
        self._merged_options: RunOptions | None = None
        self.has_requests: bool = self.has_fetches or bool(self.feeders) or bool(self.options)
        self.stale = False


def announce(records: Sequence[HookRecord], session: Session) -> None:
    """Announces the declared fetches of hooks to the session, and refuses those that are not in the graph.

    Raises:
        KeyError, TypeError, ValueError: A fetch is not in the graph; the error names the hook.
    """
    for place in session.lowlevel.expect([record.fetches for record in records]):
        if records[place].before_trigger is None:
            check_in_graph(records[place].hook, records[place].fetches, session.graph)


def check_in_graph(hook: Any, fetches: Any, graph: Graph, cause: Exception | None = None) -> None:
    """Checks that a hook's fetches are in the graph.

    Raises:
        KeyError, TypeError, ValueError: A fetch is not; the error names the hook.
    """
    try:
        for leaf in leaves(fetches):
            graph.as_graph_element(leaf)
    except (KeyError, TypeError, ValueError) as reason:
        text = reason.args[0] if reason.args else reason  # str() of a KeyError is the repr of its text.
        raise type(reason)(f"The {describe(hook)} asked for something that is not in the graph: {text}") from cause


def _check(hook: Any, callback: str, args: Any) -> None:
    if not isinstance(args, SessionRunArgs):
        raise TypeError(f"The {describe(hook)} must return None or a SessionRunArgs from {callback}, got {args!r}.")
    for name, kind in (("feed_dict", Mapping), ("options", RunOptions)):
        value = getattr(args, name)
        if value is not None and not isinstance(value, kind):
            raise TypeError(
                f"The {describe(hook)} must give None or a {kind.__name__} as {name} of its SessionRunArgs, "
                f"got {value!r}."
            )


def _element(graph: Graph, key: Any) -> Any:
    """Returns the tensor for the key of a feed, or the key itself if only the session can resolve it."""
    try:
        return graph.as_graph_element(key)
    except (KeyError, TypeError, ValueError):
        return key


def _names(tensors: Sequence[Any]) -> str:
    return ", ".join(sorted(str(getattr(tensor, "name", tensor)) for tensor in tensors))
