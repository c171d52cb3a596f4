"""The order of hooks: list order, unless a hook declares others that it must follow or precede."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from hookline.hooks.when import bare


def in_order(hooks: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the hooks in calling order: list order, unless `comes_after` or `comes_before` demands another.

    A hook that must follow others comes directly after the last of them; no other hook moves.

    Args:
        hooks: The hooks in list order. Each may have `comes_after` and `comes_before`: a class of hooks, a hook, or a
            tuple of them. Hooks that are not in the list are ignored.

    Raises:
        RuntimeError: The declarations contradict each other.
        TypeError: A declaration has another type.

    Example:
        >>> class Save:
        ...     def after_run(self, run_context, run_values): ...
        >>> class Check(Save):
        ...     comes_before = Save
        >>> [type(hook).__name__ for hook in in_order([Save(), Check()])]
        ['Check', 'Save']
    """
    waits_for = _declared(hooks)
    if not any(waits_for):
        return tuple(hooks)
    left, order = list(range(len(hooks))), []
    while left:
        free = next((i for i in left if not waits_for[i].intersection(left)), None)
        if free is None:
            raise RuntimeError(
                f"The hooks cannot be put in order: {_cycle(hooks, waits_for, left)}. Change their comes_after or "
                "comes_before."
            )
        left.remove(free)
        order.append(hooks[free])
    return tuple(order)


def _declared(hooks: Sequence[Any]) -> list[set[int]]:
    """Returns, for each hook, the indices of the hooks that must come before it."""
    waits_for: list[set[int]] = [set() for _ in hooks]
    for i, hook in enumerate(hooks):
        for name in ("comes_after", "comes_before"):
            for target in _targets(hook, name):
                for j, other in enumerate(hooks):
                    if j != i and _is_meant(other, target):
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


def _is_meant(hook: Any, target: Any) -> bool:
    return isinstance(bare(hook), target) if isinstance(target, type) else bare(target) is bare(hook)


def _cycle(hooks: Sequence[Any], waits_for: Sequence[set[int]], left: Sequence[int]) -> str:
    """Describes a cycle of hooks that must each come after the next."""
    chain = [left[0]]
    while chain.count(chain[-1]) == 1:
        chain.append(min(waits_for[chain[-1]].intersection(left)))
    names = [f"the hook {_name(hooks[i])}" for i in chain[chain.index(chain[-1]) :]]
    return ", which must come after ".join([f"{names[0]} must come after {names[1]}", *names[2:]])


def _name(hook: Any) -> str:
    return type(bare(hook)).__name__
