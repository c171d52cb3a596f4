"""Checks of the arguments of a loop's session."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any

from hookline import arguments
from hookline.monitored import MonitoredTrainingSession

# Arguments of a monitored session that a loop does not take.
_OF_GRAPHS = ("master", "is_chief")


def checked_last_step(last_step: Any) -> int | None:
    """Returns a last step as a whole number; raises `TypeError` or `ValueError` for anything else than that or None."""
    return None if last_step is None else arguments.steps("Loop", "last_step", last_step, at_least=0)


def check(taker: Callable[..., Any], progress: Any, log_steps: Any, keywords: dict[str, Any]) -> None:
    """Checks arguments of `Loop.session`, which is `taker`; the error for an unknown one suggests known ones.

    Raises:
        TypeError: An argument is unknown, or of the wrong type.
        ValueError: Parameter servers are asked for.
    """
    if not isinstance(progress, bool):
        raise TypeError(
            f"Loop requires True or False as progress, got {progress!r}. Give a ProgressHook among the hooks."
        )
    if log_steps is not None:
        arguments.whole("Loop", "log_steps", log_steps, at_least=1)
    if "checkpoint_dir" in keywords:
        raise TypeError("Loop takes the directory of its checkpoints as logdir, not as checkpoint_dir.")
    own, passed_on = (inspect.signature(function).parameters for function in (taker, MonitoredTrainingSession))
    known = [name for name in (*own, *passed_on) if name not in ("self", "keywords", "checkpoint_dir", *_OF_GRAPHS)]
    for name in keywords.keys() - {*known, *_OF_GRAPHS}:
        near = difflib.get_close_matches(name, known, n=2)
        advice = f"Did you mean {' or '.join(near)}?" if near else f"It takes {', '.join(dict.fromkeys(known))}."
        raise TypeError(f"Loop takes no argument {name!r}. {advice}")
    for name in _OF_GRAPHS:
        if name in keywords and keywords[name] not in ("", True):
            raise ValueError(
                f"Loop does not train on parameter servers, so it takes no {name}: they apply the updates of a graph's "
                f"optimizer, and a step that returns the whole state shows no updates. Build a graph with "
                f"train.Optimizer for that; see docs/distributed.md."
            )
