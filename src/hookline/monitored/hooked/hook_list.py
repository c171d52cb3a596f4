"""HookList: orders the hooks of a monitored session, claims them for it, and calls them."""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hookline import log
from hookline.coordination import Coordinator, process_group
from hookline.hooks.base import instance_trigger
from hookline.hooks.only_for import BoundHook, unwrap
from hookline.hooks.trigger import Trigger
from hookline.monitored.hooked.callbacks import (
    Callback,
    call_after_create_session,
    checked_hooks,
    declared_trigger,
    describe,
    overridden_callback,
)
from hookline.monitored.hooked.hook_states import HookStates
from hookline.session import Session
from hookline.session.plan.fetches import iter_fetches

logger = log.get_logger(__name__)


class HookList:
    """The hooks of one monitored session, in calling order (see `sort_hooks`).

    Hooks need not inherit from `SessionRunHook`. A callback that is missing or inherited from it is not called.

    Args:
        hooks: The hooks; None for none.
        wrap_callback: Wraps each callback of a run; takes the hook, the name and the callback. None wraps nothing.
        previous: If a hook is added to an open session, its list so far; else None.

    Attributes:
        hooks: The hooks, in calling order.
        states: Saves and restores the states of the hooks.

    Raises:
        TypeError: An item is a class or a function, or has no callback; or a callback is a generator or coroutine
            function.
        ValueError: Several hooks have the same identity, and one of them has a state.
        RuntimeError: The declared orders contradict each other.

    Example:
        >>> class Greeting:
        ...     def begin(self):
        ...         print("hello")
        >>> hooks = HookList([Greeting()])
        >>> hooks.begin()
        hello
        >>> HookList([Greeting])
        Traceback (most recent call last):
        ...
        TypeError: hooks[0] is the class Greeting, not an instance of it: write Greeting(...).
    """

    def __init__(
        self,
        hooks: Iterable[Any] | None,
        wrap_callback: Callable[[Any, str, Callback], Callback] | None = None,
        previous: HookList | None = None,
    ) -> None:
        self.wrap_callback = wrap_callback
        self.hooks: tuple[Any, ...] = sort_hooks(checked_hooks(hooks))
        self._bare = [unwrap(hook) for hook in self.hooks]
        self.states = HookStates(self.hooks, previous and previous.states)
        self._owner: weakref.ref[object] | None = None

    def callbacks(self, name: str) -> list[tuple[Any, Callback]]:
        """Returns the hooks that override the callback `name`, each with its bound method."""
        found = ((hook, overridden_callback(hook, name)) for hook in self.hooks)
        return [(hook, callback) for hook, callback in found if callback is not None]

    def run_callback(self, hook: Any, name: str) -> Callback | None:
        """Returns a callback of a run, wrapped by `wrap_callback`; None if the hook does not override it."""
        found = overridden_callback(hook, name)
        return found if found is None or self.wrap_callback is None else self.wrap_callback(hook, name, found)

    def begin(self) -> None:
        """Calls every `begin`."""
        for _, begin in self.callbacks("begin"):
            begin()

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Calls every `after_create_session`.

        Raises:
            RuntimeError: A hook has closed the session.
        """
        for hook in self.hooks:
            call_after_create_session(hook, session, coord)

    def end(self, session: Session) -> list[BaseException]:
        """Calls every `end`, even if one raises.

        Returns:
            The errors, in order.
        """
        failures = []
        for hook, end in self.callbacks("end"):
            try:
                end(session)
            except BaseException as exc:  # The other hooks must release their resources.
                failure = session.backend.map_error(exc)
                failure.add_note(f"Raised by end() of the {describe(hook)}.")
                failures.append(failure)
        return failures

    @property
    def save_on_failure_callbacks(self) -> list[Callback]:
        """The `save_on_failure` callbacks, which save a last checkpoint after a failure."""
        return [save_on_failure for _, save_on_failure in self.callbacks("save_on_failure")]

    def on_exception(self, session: Session, exception: BaseException) -> None:
        """Calls every `on_exception`, the last hook first; logs their errors."""
        for hook, on_exception in reversed(self.callbacks("on_exception")):
            try:
                on_exception(session, exception)
            except BaseException as failure:  # Even after a second Ctrl-C, the other hooks are still called.
                if process_group.is_job_failure(failure):  # It follows from the first error, or is the same.
                    continue
                logger.exception(
                    "The %s failed in on_exception, which was called for %s; the first error is raised.",
                    describe(hook),
                    type(exception).__name__,
                )

    def claim(self, owner: object) -> None:
        """Claims these hooks for a session, so that no other session uses them.

        Triggers of hooks that the session has claimed before keep their phase; other triggers start over. The claim
        ends with `release`, or when the owner or this list is garbage-collected.

        Raises:
            RuntimeError: A hook or its trigger belongs to another open session; a hook is listed twice; or two hooks
                share a trigger that they must not share.
        """
        with _lock:
            mine, others = _claimed_hooks(owner)
            for position, hook in enumerate(self._bare):
                if any(hook is earlier for earlier in self._bare[:position]):
                    raise RuntimeError(
                        f"The {describe(hook)} is listed twice in one session: its callbacks would run twice a step. "
                        "Check hooks and chief_only_hooks."
                    )
                if any(hook is other for other in others):
                    raise RuntimeError(
                        f"The {describe(hook)} serves another session that is still open: a hook holds the state of "
                        "one session at a time. Close that session first, or make a second hook."
                    )
            kept = [getattr(hook, "trigger", None) for hook in mine]
            for hook in self._bare:
                instance_trigger(hook)
            self._check_triggers(others)
            for trigger in map(declared_trigger, self._bare):
                if trigger is not None and not any(trigger is known for known in kept):
                    trigger.reset()
            self._owner = weakref.ref(owner)
            _claimed_lists.add(self)

    def check_triggers(self) -> None:
        """Checks the triggers again: `begin` and `after_create_session` may have set some.

        Raises:
            RuntimeError: A trigger belongs to another open session, or two hooks share one that they must not share.
        """
        with _lock:
            owner = self._owner and self._owner()
            self._check_triggers(_claimed_hooks(owner)[1] if owner is not None else [])

    def _check_triggers(self, others: list[Any]) -> None:
        elsewhere = {id(part) for other in others for part in _leaf_triggers(other)}
        first: dict[int, Any] = {}
        for hook in self.hooks:
            for part in _leaf_triggers(hook):
                if id(part) in elsewhere:
                    raise RuntimeError(
                        f"The trigger {part!r} of the {describe(hook)} serves another session that is still open: a "
                        "trigger has the phase of one session at a time. Close that session first, or make a second "
                        "trigger."
                    )
                other = first.setdefault(id(part), hook)
                if other.trigger is not hook.trigger:
                    how = "as a part"
                elif _bound_operation_names(other) != _bound_operation_names(hook):
                    how = "and take part in different runs"
                else:
                    continue
                raise RuntimeError(
                    f"The {describe(other)} and the {describe(hook)} share the trigger {part!r} {how}, which has one "
                    "phase: the first to fire would prevent the other from firing. Make a trigger for each."
                )

    def release(self) -> None:
        """Releases the claim, so that another session may use these hooks."""
        with _lock:
            _claimed_lists.discard(self)

    def after_close(self) -> list[BaseException]:
        """Calls every `after_close`, even if one raises; returns the errors, in order."""
        failures: list[BaseException] = []
        for hook, after_close in self.callbacks("after_close"):
            try:
                after_close()
            except BaseException as failure:  # The other hooks must release their resources.
                failure.add_note(f"Raised by after_close() of the {describe(hook)}.")
                failures.append(failure)
        return failures


def _leaf_triggers(hook: Any) -> list[Trigger]:
    trigger = getattr(hook, "trigger", None)
    return trigger.leaves() if isinstance(trigger, Trigger) else []


def _bound_operation_names(hook: Any) -> set[str] | None:
    """Returns the names of the operations whose runs a hook takes part in; None if it takes part in all runs."""
    return (
        {getattr(leaf, "name", leaf) for leaf in iter_fetches(hook.bound_to)} if isinstance(hook, BoundHook) else None
    )


# The lists of open sessions; some may belong to sessions that were garbage-collected before they were closed.
_claimed_lists: weakref.WeakSet[HookList] = weakref.WeakSet()
_lock = threading.RLock()


def _claimed_hooks(owner: object) -> tuple[list[Any], list[Any]]:
    """Returns the hooks that this session has claimed, and the hooks of all other open sessions, all unwrapped."""
    mine: list[Any] = []
    others: list[Any] = []
    for hooks in _claimed_lists:
        known = hooks._owner and hooks._owner()
        if known is not None:
            (mine if known is owner else others).extend(hooks._bare)
    return mine, others


def is_claimed(hook: Any) -> bool:
    """Returns whether the hook is in the list of an open monitored session; a hook inside another hook is not.

    Example:
        >>> import hookline as hl
        >>> from hookline.extend import is_claimed
        >>> hook = hl.train.SessionRunHook()
        >>> with hl.train.MonitoredSession(hooks=[hook]):
        ...     is_claimed(hook)
        True
        >>> is_claimed(hook)
        False
    """
    hook = unwrap(hook)
    with _lock:
        return any(hook is claimed for claimed in _claimed_hooks(None)[1])


def sort_hooks(hooks: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the hooks in calling order: list order, unless `comes_after` or `comes_before` requires another.

    A hook that must come after others comes directly after the last of them; no other hook moves.

    Args:
        hooks: The hooks in list order. Each may have `comes_after` and `comes_before`: a class, a hook, or a tuple of
            them. Hooks outside of the list are ignored.

    Raises:
        RuntimeError: The declarations contradict each other.
        TypeError: A declaration has another type.

    Example:
        >>> class Save:
        ...     def after_run(self, run_context, run_values): ...
        >>> class Check(Save):
        ...     comes_before = Save
        >>> [type(hook).__name__ for hook in sort_hooks([Save(), Check()])]
        ['Check', 'Save']
    """
    waits_for = _predecessors(hooks)
    if not any(waits_for):
        return tuple(hooks)
    left, order = list(range(len(hooks))), []
    while left:
        free = next((i for i in left if not waits_for[i].intersection(left)), None)
        if free is None:
            raise RuntimeError(
                f"The hooks cannot be put in order: {_describe_cycle(hooks, waits_for, left)}. Change their "
                "comes_after or comes_before."
            )
        left.remove(free)
        order.append(hooks[free])
    return tuple(order)


def _predecessors(hooks: Sequence[Any]) -> list[set[int]]:
    """Returns, for each hook, the indices of its predecessors."""
    waits_for: list[set[int]] = [set() for _ in hooks]
    for i, hook in enumerate(hooks):
        for name in ("comes_after", "comes_before"):
            for target in _targets(hook, name):
                for j, other in enumerate(hooks):
                    if j != i and _matches(other, target):
                        waits_for[i if name == "comes_after" else j].add(j if name == "comes_after" else i)
    return waits_for


def _targets(hook: Any, name: str) -> tuple[Any, ...]:
    given = getattr(hook, name, ())
    targets = tuple(given) if isinstance(given, tuple | list) else (given,)
    for target in targets:
        if not isinstance(target, type) and (inspect.isroutine(target) or not hasattr(target, "__dict__")):
            raise TypeError(
                f"The hook {_name(hook)} must have a hook, a class or a tuple of them as {name}, got {given!r}."
            )
    return targets


def _matches(hook: Any, target: Any) -> bool:
    return isinstance(unwrap(hook), target) if isinstance(target, type) else unwrap(target) is unwrap(hook)


def _describe_cycle(hooks: Sequence[Any], waits_for: Sequence[set[int]], left: Sequence[int]) -> str:
    """Describes a cycle of hooks, each of which must come after the next."""
    chain = [left[0]]
    while chain.count(chain[-1]) == 1:
        chain.append(min(waits_for[chain[-1]].intersection(left)))
    names = [f"the hook {_name(hooks[i])}" for i in chain[chain.index(chain[-1]) :]]
    return ", which must come after ".join([f"{names[0]} must come after {names[1]}", *names[2:]])


def _name(hook: Any) -> str:
    return type(unwrap(hook)).__name__
