"""MergedRequests: merges the fetches, feeds and options that the hooks of a run request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hookline.graph import Graph, Operation
from hookline.hooks.base import SessionRunArgs, SessionRunContext
from hookline.monitored.hooked.callbacks import describe
from hookline.monitored.hooked.scheduled_hook import ScheduledHook, ScheduledRun
from hookline.session import CachedStep, HookFetches, RunOptions, merge_options
from hookline.session.plan.feeds import flatten_feeds


class MergedRequests:
    """Merges the requests of the hooks that take part in a run.

    Requests are merged again only if a hook returns another object than before. If a hook has no callback for its
    request, but declares `fetches`, its request is known without a call.

    Args:
        hooks: The hooks.
        every_run_ops: The operations of every run: latches.

    Attributes:
        hooks: As above.
        standing: The argument `every_run_ops`.
        may_request: Whether any hook must be called for its request.
        any_stacked: Whether any hook is `stacked`.
        indexed_hooks: The hooks, each with its index in `hook_fetches`.
        has_requests: Whether any hook had a request at the last `collect`.
        has_fetches: Whether `hook_fetches` has any fetch.
        hook_fetches: For each hook its fetches or None, and at the end the operations of every run.
        hook_feeds: The hooks that feed, each with its feeds.
        options: The requested options.
        per_step_fetches: As `hook_fetches`, without the fetches that only the last of several steps computes.
        stale: Whether the requests must be merged again.
        known_fetches: The caller's fetches for which `known_step` was found.
        known_step: The cached step for runs of `known_fetches`; None if they need more than a program.
    """

    def __init__(self, hooks: Sequence[ScheduledHook], every_run_ops: tuple[Operation, ...] = ()) -> None:
        self.hooks, self.standing = hooks, every_run_ops
        self.indexed_hooks = list(enumerate(hooks))
        self.any_stacked = any(hook.stacked for hook in hooks)
        # These hooks must be asked. The others take part because they fire, and their request is known.
        asked = [
            index for index, hook in self.indexed_hooks if hook.before_run or hook.after_run or hook.before_trigger
        ]
        self._requests = [None if index in asked else hook.request_args for index, hook in self.indexed_hooks]
        self._askers = [(index, hooks[index]) for index in asked if hooks[index].before_run or hooks[index].has_request]
        self.may_request = bool(self._askers)
        self._merge()
        self.stale = self.may_request  # The requests of `_askers` are not known yet.

    def collect(self, run: ScheduledRun, context: SessionRunContext) -> None:
        """Calls every `before_run`, gets the requests of other hooks that may fire, and merges all of them.

        Raises:
            TypeError: A hook returned neither None nor a `SessionRunArgs`; or its feeds are not a dict, or its options
                not `RunOptions`.
        """
        requests = self._requests
        for index, hook in self._askers:
            if hook.before_run is None:
                args = hook.request(run, context)
            else:
                hook.has_requested = False
                args = hook.before_run(context)
            if args is not requests[index]:
                requests[index] = args
                self.stale = True
        if self.stale:
            self._merge()

    def drop_feeds(self) -> None:
        """Drops the values of the hooks' feeds, because a batch must not outlive its run; keeps the fed tensors."""
        self.hook_feeds = [(hook, dict.fromkeys(feeds)) for hook, feeds in self.hook_feeds]
        self._requests = [None if getattr(args, "feed_dict", None) else args for args in self._requests]
        self.stale = True

    def merged_options(self, options: RunOptions | None) -> RunOptions | None:
        """Merges the caller's options with the hooks' options. There must be options of hooks."""
        if self._merged_options is None or options is not self._caller_options:
            self._caller_options = options
            self._merged_options = merge_options([options, *self.options])
        return self._merged_options

    def merged_feeds(self, feed_dict: Mapping[Any, Any] | None, graph: Graph) -> dict[Any, Any]:
        """Merges the feeds of the caller and the hooks.

        Raises:
            RuntimeError: A tensor is fed twice.
        """
        merged: dict[Any, Any] = {}
        fed_by: dict[Any, Any] = {}
        for hook, feeds in self.hook_feeds:
            by_tensor = {_graph_element(graph, key): value for key, value in feeds.items()}
            conflicts = [tensor for tensor in by_tensor if tensor in merged]
            if conflicts:
                others = " and ".join(sorted({f"the {describe(fed_by[tensor])}" for tensor in conflicts}))
                raise RuntimeError(
                    f"Same tensor is fed by two hooks. Conflict(s): {_names(conflicts)}, "
                    f"fed by the {describe(hook)} and by {others}."
                )
            merged.update(by_tensor)
            fed_by.update(dict.fromkeys(by_tensor, hook))
        for key, value in (flatten_feeds(feed_dict) or {}).items():
            tensor = _graph_element(graph, key)
            if tensor in fed_by:
                raise RuntimeError(
                    f"Same tensor is fed by a SessionRunHook and user. Conflict(s): {_names([tensor])}, "
                    f"fed by the {describe(fed_by[tensor])}."
                )
            merged[tensor] = value
        return merged

    @property
    def fetching_hooks(self) -> str:
        """A description of the hooks with fetches."""
        pairs = zip(self.hooks, self.hook_fetches.fetches, strict=False)
        return " and ".join(f"the {describe(hook.hook)}" for hook, fetches in pairs if fetches is not None)

    def attribute_error(self, exc: Exception, graph: Graph) -> None:
        """If a hook's fetch has caused the error of a run, raises it with the name of the hook; else returns."""
        # The operations of every run come last.
        for hook, fetches in zip(self.hooks, self.hook_fetches.fetches, strict=False):
            hook.check_in_graph(fetches, graph, exc)

    def _merge(self) -> None:
        given = [(hook, args) for hook, args in zip(self.hooks, self._requests, strict=True) if args is not None]
        for hook, args in given:
            _check(hook.hook, "before_trigger" if hook.before_run is None else "before_run", args)
        asked = [None if args is None else args.fetches for args in self._requests]
        deferred = frozenset(index for index, hook in self.indexed_hooks if self._requests[index] and hook.deferred)
        # The operations of every run have the last index. They are run in each of several steps, like stacked fetches.
        rows = frozenset([*(index for index, hook in self.indexed_hooks if hook.stacked), len(asked)])
        every_run_ops = (self.standing,) if self.standing else ()
        only_rows = [fetches if hook.stacked else None for hook, fetches in zip(self.hooks, asked, strict=True)]
        self.hook_fetches = HookFetches((*asked, *every_run_ops), deferred, rows)
        self.per_step_fetches = HookFetches((*only_rows, *every_run_ops), deferred, rows)
        self.has_fetches = any(fetches is not None for fetches in self.hook_fetches.fetches)
        self.hook_feeds: list[tuple[Any, Mapping[Any, Any]]] = [
            (hook.hook, flatten_feeds(args.feed_dict) or {}) for hook, args in given if args.feed_dict
        ]
        self.options: list[RunOptions] = [args.options for _, args in given if args.options is not None]
        self._caller_options: RunOptions | None = None
        self._merged_options: RunOptions | None = None
        self.has_requests = self.has_fetches or bool(self.hook_feeds) or bool(self.options)
        self.stale = False
        self.known_fetches: Any = None
        self.known_step: CachedStep | None = None


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


def _graph_element(graph: Graph, key: Any) -> Any:
    """Returns the tensor for the key of a feed, or the key itself if only the session can resolve it."""
    try:
        return graph.as_graph_element(key)
    except (KeyError, TypeError, ValueError):
        return key


def _names(tensors: Sequence[Any]) -> str:
    return ", ".join(sorted(str(getattr(tensor, "name", tensor)) for tensor in tensors))
