"""Finds and checks the callbacks of hooks, and returns the identity of a hook in checkpoints."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hookline.coordination import Coordinator
from hookline.hooks.base import SessionRunHook
from hookline.hooks.only_for import unwrap
from hookline.hooks.trigger import Trigger
from hookline.session import Session
from hookline.signals import interrupts

Callback = Callable[..., Any]
"""A bound callback of a hook."""

CALLBACKS = (
    "begin",
    "after_create_session",
    "get_state",
    "set_state",
    "before_run",
    "after_run",
    "before_trigger",
    "on_trigger",
    "end",
    "on_exception",
    "save_on_failure",
    "after_close",
)
"""The callbacks of a hook. Each is optional."""

_LAZY_FUNCTIONS = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)


def call_after_create_session(hook: Any, session: Session, coord: Coordinator) -> None:
    """Calls `after_create_session` if the hook has one, and checks that the session is still open.

    Raises:
        RuntimeError: The hook has closed the session.
    """
    after_create_session = overridden_callback(hook, "after_create_session")
    if after_create_session is not None:
        after_create_session(session, coord)
    if session.closed:
        raise RuntimeError(
            f"The {describe(hook)} has closed the session in after_create_session. The monitored session closes it; "
            "to run no step, call coord.request_stop()."
        )


def overridden_callback(hook: Any, name: str) -> Callback | None:
    """Returns the bound callback `name` of a hook; None if it is missing, or is inherited from `SessionRunHook`."""
    callback = getattr(hook, name, None)
    if callback is None:
        return None
    inherited = getattr(SessionRunHook, name, None)
    if inherited is not None and getattr(callback, "__func__", None) is inherited:
        return None
    interrupts.mark_user_function(callback)
    return callback


def describe(hook: Any) -> str:
    """Describes a hook for messages, as "hook CLASS"."""
    return f"hook {type(unwrap(hook)).__name__}"


def checked_hooks(hooks: Iterable[Any] | None, argument: str = "hooks") -> tuple[Any, ...]:
    """Checks the hooks in an argument, and returns them as a tuple.

    Raises:
        TypeError: An item is a class or a function, or has no callback; a callback is a generator or coroutine
            function; or the argument is not iterable.
        ValueError: Several hooks have the same identity, and one of them has a state.
    """
    if hooks is None:
        return ()
    if not isinstance(hooks, Iterable):
        raise TypeError(f"{argument} must be a list of hooks, got {hooks!r}. Put it in a list.")
    checked = tuple(hooks)
    for position, hook in enumerate(checked):
        _check_hook(f"{argument}[{position}]", hook)
        interrupts.mark_user_class(type(unwrap(hook)))
    check_unique_identities(checked, argument)
    return checked


def check_unique_identities(hooks: Sequence[Any], argument: str) -> None:
    """Raises `ValueError` if several hooks have the same identity, and one of them has a state."""
    for indices in indices_by_identity(hooks).values():
        found = [unwrap(hooks[index]) for index in indices]
        # `HookList.claim` raises for the same hook twice.
        if len({id(hook) for hook in found}) > 1 and any(map(_keeps_state, found)):
            raise duplicate_identity_error(hooks, indices, argument)


def _keeps_state(hook: Any) -> bool:
    return overridden_callback(hook, "get_state") is not None and getattr(hook, "_keeps_state", True)


def is_hook(candidate: Any) -> bool:
    """Returns whether an object has at least one callback of a hook."""
    return any(callable(getattr(candidate, name, None)) for name in CALLBACKS)


def _check_hook(where: str, hook: Any) -> None:
    if inspect.isclass(hook):
        raise TypeError(f"{where} is the class {hook.__name__}, not an instance of it: write {hook.__name__}(...).")
    if inspect.isroutine(hook):
        kind = "generator function" if inspect.isgeneratorfunction(hook) else "function"
        raise TypeError(
            f"{where} is the {kind} {hook.__name__}; a hook is an object with callbacks such as after_run. "
            f"Write train.FunctionHook({hook.__name__}, every=100), which calls it with a Firing each 100 steps; or "
            "derive a class from SessionRunHook."
        )
    if not is_hook(hook):
        raise TypeError(
            f"{where} is {hook!r}, which has none of the callbacks of a hook ({', '.join(CALLBACKS)}). "
            "Derive its class from SessionRunHook."
        )
    for name in CALLBACKS:
        callback = getattr(hook, name, None)
        if any(is_kind(callback) for is_kind in _LAZY_FUNCTIONS):
            raise TypeError(
                f"{where}, a {type(hook).__name__}, has a generator or coroutine function as {name}, whose body a call "
                "does not run. Take out yield and async."
            )


def declared_trigger(hook: Any) -> Trigger | None:
    """Returns the trigger of a hook; None if it has none, or if the hook does nothing when the trigger fires."""
    trigger = getattr(hook, "trigger", None)
    return trigger if isinstance(trigger, Trigger) and acts_on_trigger(hook) else None


def acts_on_trigger(hook: Any) -> bool:
    """Returns whether a hook declares what to do when its trigger fires; otherwise it asks the trigger itself."""
    called = overridden_callback(hook, "on_trigger") or overridden_callback(hook, "before_trigger")
    return called is not None or getattr(hook, "fetches", None) is not None


# Identity: which hook a state in a checkpoint belongs to -------------------------------------------------------


def class_name_of(hook: Any) -> str:
    """Returns the name of a hook's class, with its module.

    For classes of hookline the module is just `hookline`, so that checkpoints do not depend on hookline's layout.
    """
    kind = type(unwrap(hook))
    module = "hookline" if kind.__module__.startswith("hookline.") else kind.__module__
    return f"{module}.{kind.__qualname__}"


def identity(hook: Any) -> str:
    """Returns the identity of a hook: its class, and its `state_key` or else its `name`, if it has one.

    Raises:
        TypeError: The `state_key` is not a string.

    Example:
        >>> class Keeper:
        ...     state_key = "loss"
        >>> identity(Keeper()).rpartition(".")[2]
        'Keeper[loss]'
    """
    key = _state_key(hook)
    return class_name_of(hook) if key is None else f"{class_name_of(hook)}[{key}]"


def _state_key(hook: Any) -> str | None:
    key = getattr(hook, "state_key", None)
    if key is not None and not (isinstance(key, str) and key):
        raise TypeError(f"The hook {type(unwrap(hook)).__name__} must have a string or None as state_key, got {key!r}.")
    name = getattr(hook, "name", None)
    return key or (name if isinstance(name, str) and name else None)


def indices_by_identity(hooks: Sequence[Any]) -> dict[str, list[int]]:
    """Returns the indices of the hooks with each identity."""
    indices: dict[str, list[int]] = {}
    for index, hook in enumerate(hooks):
        indices.setdefault(identity(hook), []).append(index)
    return indices


def duplicate_identity_error(hooks: Sequence[Any], indices: Sequence[int], argument: str) -> ValueError:
    """Returns the error for hooks with the same identity, one of which has a state."""
    hook = unwrap(hooks[indices[0]])
    by_name = getattr(hook, "state_key", None) is None and _state_key(hook) is not None
    remedy = (
        f'another name: name="..." (it is {_state_key(hook)!r} in both)'
        if by_name
        else 'a state_key: hook.state_key = "..."'
    )
    listed = " and ".join(f"{argument}[{index}]" for index in indices)
    return ValueError(
        f"{listed} have the same identity in a checkpoint, {identity(hook)}, so a resume could mix up their states. "
        f"Give one of them {remedy}."
    )


_CHIEF_ONLY = ("after_run", "end", "save_on_failure")


def chief_only(hook: Any) -> Any:
    """Removes from a hook, in a process other than the chief, the callbacks that only the chief calls; returns it.

    These are `on_trigger`, `after_run`, `end` and `save_on_failure`. The other callbacks are called in every process,
    so that all processes run the same fetches: a request must not depend on effects of the four.
    """
    callbacks: dict[str, Any] = dict.fromkeys(_CHIEF_ONLY)
    if overridden_callback(hook, "on_trigger") is not None:
        callbacks["on_trigger"] = lambda firing: None
    return replace_callbacks(hook, callbacks)


def replace_callbacks(hook: Any, callbacks: dict[str, Any]) -> Any:
    """Replaces callbacks of a hook, and returns the hook; if it has no `__dict__`, returns a proxy instead."""
    if hasattr(hook, "__dict__"):
        vars(hook).update(callbacks)
        return hook
    kind = type(hook)
    named = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (_HookProxy,), named)(hook, callbacks)


class _HookProxy:
    def __init__(self, hook: Any, callbacks: dict[str, Any]) -> None:
        vars(self).update(callbacks, _hook=hook)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_hook"], name)
