"""Replays steps of a past run of a loop."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any

from hookline.graph import Tensor
from hookline.loop.step.step_graph import StepGraph
from hookline.monitored.hooked.callbacks import checked_hooks
from hookline.monitored.replaying.advice import AdviceHook
from hookline.monitored.replaying.names import Tree, tensors_by_name
from hookline.monitored.replaying.replay import Replay, without_sinks
from hookline.monitored.replaying.result import ReplayResult
from hookline.monitored.training_options import LoggingOptions

_MOST_METRICS = 3
_ADVICE = " What the step does not return, such as a gradient, needs a look: see 'Replay' in the documentation."


def replay(
    loop: Any, folder: str, steps: tuple[int, int], look: Iterable[Any], every: int, run_arguments: Mapping[str, Any]
) -> ReplayResult:
    """Replays steps of a past run; the arguments and errors are those of `Loop.replay`."""
    given = dict(run_arguments)
    hooks = checked_hooks(given.pop("hooks", ()))
    logging = given.pop("logging", None) or LoggingOptions()
    with loop.graph.as_default():
        made = Replay("Loop.replay", folder, steps, look, every, functools.partial(_names, loop))
    with made.open():
        given |= {
            "hooks": [*made.hooks, *without_sinks(hooks)],
            "logging": dataclasses.replace(logging, sinks=(), summary_dir=None),
            "time_limit_secs": None,
            "warm_start": None,
        }
        made.drive(made.restored(lambda: loop.session(made.scratch, **given)), loop.train_op)
    return made.result()


def advice_hook(loop: StepGraph) -> AdviceHook:
    """Returns the hook that lets a session of a loop tell how its steps can be replayed."""
    names = list(loop._scalar_metrics)[:_MOST_METRICS]
    return AdviceHook(
        lambda folder, steps: f"loop.replay({folder!r}, {steps}, {names}, ...), with the arguments of the run"
    )


def _names(loop: StepGraph, names: Iterable[str]) -> dict[str, Tensor]:
    """Returns metrics of a loop, and arrays of its batch, state and averages, by name."""
    parts = {str(key): name for name, key in loop.form.parts.items() if key is not None}
    trees = [] if loop._batch is None else [Tree("batch", loop._batch, loop._example)]
    trees += [Tree("", loop.state, loop.state.spec, parts)]
    trees += [Tree(name, variable, variable.spec, parts) for name, variable in loop._extra_variables.items()]
    return tensors_by_name("Loop.replay", names, {**loop.metrics, **loop.means}, trees, _ADVICE)
