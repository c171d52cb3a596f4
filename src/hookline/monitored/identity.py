"""The identity of a hook, by which a checkpoint knows whose a state is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hookline.hooks.when import bare


def kind_of(hook: Any) -> str:
    """Returns the name of a hook's class, with its module."""
    kind = type(bare(hook))
    return f"{kind.__module__}.{kind.__qualname__}"


def identity(hook: Any) -> str:
    """Returns the identity of a hook: its class, and its `state_key` or else its `name`, if it has one.

    Raises:
        TypeError: The `state_key` is not a text.

    Example:
        >>> class Keeper:
        ...     state_key = "loss"
        >>> identity(Keeper()).rpartition(".")[2]
        'Keeper[loss]'
    """
    key = _key(hook)
    return kind_of(hook) if key is None else f"{kind_of(hook)}[{key}]"


def _key(hook: Any) -> str | None:
    key = getattr(bare(hook), "state_key", None)
    if key is not None and not (isinstance(key, str) and key):
        raise TypeError(f"The hook {type(bare(hook)).__name__} must have a text or None as state_key, got {key!r}.")
    name = getattr(bare(hook), "name", None)
    return key or (name if isinstance(name, str) and name else None)


def namesakes(hooks: Sequence[Any]) -> dict[str, list[int]]:
    """Returns the places of the hooks of each identity."""
    places: dict[str, list[int]] = {}
    for place, hook in enumerate(hooks):
        places.setdefault(identity(hook), []).append(place)
    return places


def indistinct(hooks: Sequence[Any], places: Sequence[int], argument: str) -> ValueError:
    """Returns the error for hooks with a state that share an identity."""
    hook = bare(hooks[places[0]])
    by_name = getattr(hook, "state_key", None) is None and _key(hook) is not None
    remedy = (
        f'another name: name="..." (it is {_key(hook)!r} in both)' if by_name else 'a state_key: hook.state_key = "..."'
    )
    listed = " and ".join(f"{argument}[{place}]" for place in places)
    return ValueError(
        f"{listed} are hooks that a checkpoint could not tell apart: each is {identity(hook)}, and their states could "
        f"get mixed up at a resume. Give one of them {remedy}."
    )
