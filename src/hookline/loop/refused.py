"""Arguments that a session of a loop does not take."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any

from hookline import arguments
from hookline.monitored import MonitoredTrainingSession

# Of a session, and not of a loop.
_OF_GRAPHS = ("master", "is_chief")


def check(taker: Callable[..., Any], progress: Any, log_steps: Any, keywords: dict[str, Any]) -> None:
    """Raises what is wrong with arguments of `Loop.session`, which is `taker`; unknown ones get advice.

    Raises:
        TypeError: An unknown argument, or one of another kind.
        ValueError: It is to train on parameter servers.
    """
    if not isinstance(progress, bool):
        raise TypeError(
            f"Loop requires True or False as progress, got {progress!r}. A ProgressHook goes among the hooks."
        )
    arguments.instance("Loop", "report", keywords.get("report", False), bool)
    if log_steps is not None:
        arguments.whole("Loop", "log_steps", log_steps, at_least=1)
    if "checkpoint_dir" in keywords:
        raise TypeError("Loop takes the directory of its checkpoints as logdir, and no checkpoint_dir.")
    own, passed_on = (inspect.signature(function).parameters for function in (taker, MonitoredTrainingSession))
    known = [name for name in (*own, *passed_on) if name not in ("self", "keywords", "checkpoint_dir", *_OF_GRAPHS)]
    for name in keywords.keys() - {*known, *_OF_GRAPHS}:
        near = difflib.get_close_matches(name, known, n=2)
        advice = f"Did you mean {' or '.join(near)}?" if near else f"It takes {', '.join(dict.fromkeys(known))}."
        raise TypeError(f"Loop takes no argument {name!r}. {advice}")
    for name in _OF_GRAPHS:
        if name in keywords and keywords[name] not in ("", True):
            raise ValueError(
                f"Loop does not train on parameter servers, so it takes no {name}: they apply the updates of a graph "
                f"where the variables live, and a step that returns the whole state says of no part of it how it came "
                f"about. Build a graph with train.Optimizer for that; see docs/distributed.md."
            )
