"""Looks up tensors, the global step and savers for hooks, with their errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from hookline import arguments
from hookline.graph import Tensor, get_default_graph, get_global_step

if TYPE_CHECKING:
    from hookline.hooks.base import SessionRunHook
    from hookline.session import Session


REPLAY_ADVICE = "replay advice"
"""The key in `hook_data` of a function that returns, for a session and a step, how to replay the steps before it."""


def require_global_step(hook: SessionRunHook) -> Tensor:
    """Returns the global step of the default graph; raises a `RuntimeError` that names the hook if it has none."""
    global_step = get_global_step()
    if global_step is None:
        raise RuntimeError(
            f"{type(hook).__name__} requires a global step, but the graph has none. Create it with "
            "train.get_or_create_global_step() and pass it to the optimizer's minimize(global_step=...)."
        )
    return global_step


def find_tensor(hook: SessionRunHook, tensor: Tensor | str) -> Tensor:
    """Returns a tensor of the default graph, given the tensor or its name.

    Unlike in a fetch, `"loss"` means the tensor `"loss:0"`, because an operation has no value to read.

    Raises:
        KeyError: The graph has no tensor of this name.
        TypeError: It is not a tensor.
    """
    name = f"{tensor}:0" if isinstance(tensor, str) and ":" not in tensor else tensor
    found = get_default_graph().as_graph_element(name)
    if not isinstance(found, Tensor):
        raise TypeError(f"{type(hook).__name__} requires tensors or names of them, got {found!r}.")
    return found


def by_tag(who: str, tensors: Mapping[str, Tensor | str] | Iterable[Tensor | str]) -> dict[str, Tensor | str]:
    """Returns tensors or names by tag: the key in a dict, else the name; `TypeError` for anything else."""
    if isinstance(tensors, str | Tensor) or not isinstance(tensors, Iterable):
        raise TypeError(f"{who} requires a dict or a list of tensors, got {tensors!r}. Put it in a list.")
    if isinstance(tensors, Mapping):
        return dict(cast("Mapping[str, Tensor | str]", tensors))  # isinstance does not narrow the keys
    items = list(tensors)
    for item in items:
        if not isinstance(item, str):
            arguments.check_has(who, f"one of {tensors!r}", item, "a tensor or its name", "name")
    return {item if isinstance(item, str) else item.name: item for item in items}


def joined_names(tensors: Iterable[Any]) -> str:
    """Returns the names of tensors in one text, for a `state_key`; `"loss"` means `"loss:0"`, as in `find_tensor`."""
    names = [str(getattr(tensor, "name", tensor)) for tensor in tensors]
    return ", ".join(name if ":" in name else f"{name}:0" for name in names)


def check_summary_writer(who: str, summary_writer: Any) -> None:
    """Raises `TypeError` for a `summary_writer` without `add_summary`; None is allowed."""
    arguments.check_has(who, "summary_writer", summary_writer, "a FileWriter", "add_summary", optional=True)


def session_savers(session: Session) -> dict[Any, Callable[..., object]]:
    """Returns the savers of this session's checkpoints, each with a function that saves at once.

    A hook that saves adds its saver in `after_create_session`, for hooks that roll back or keep the best checkpoint.
    The function is like `CheckpointSaverHook.save_now`.
    """
    return session.hook_data.setdefault("savers", {})


def newest_saved_step(session: Session) -> int | None:
    """Returns the step of the newest checkpoint, from which a restart would continue; None without one."""
    paths = [path for saver in session_savers(session) for path in getattr(saver, "last_checkpoints", ())]
    steps = [int(suffix) for path in paths if (suffix := path.rpartition("-")[2]).isdecimal()]
    return max(steps, default=None)


def not_started_error(hook: SessionRunHook) -> RuntimeError:
    """Returns the error for a hook whose callbacks of a run are called before its `after_create_session`."""
    return RuntimeError(
        f"{type(hook).__name__} takes part in a run before its after_create_session was called. A monitored session "
        f"calls begin, then after_create_session, then the callbacks of each run. A program that calls hooks itself "
        f"must do the same, and a subclass that overrides one of these must call the method of super()."
    )
