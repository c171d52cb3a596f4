"""Replays steps of a past run of a loop."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax.numpy as jnp

from hookline import arguments
from hookline.graph import Tensor, Variable, op
from hookline.hooks import SinkHook
from hookline.hooks.lookup import session_savers
from hookline.hooks.only_for import unwrap
from hookline.loop.step.step_graph import StepGraph
from hookline.monitored.hooked.callbacks import checked_hooks
from hookline.monitored.replaying.looks import TableLook
from hookline.monitored.replaying.replay import Replay
from hookline.monitored.replaying.request import NORMS
from hookline.monitored.replaying.result import ReplayResult
from hookline.monitored.training_options import LoggingOptions
from hookline.paths import flatten_with_paths
from hookline.session import Session

_SHOWN_STEPS, _MOST_METRICS = 10, 3


def replay(
    loop: Any, folder: str, steps: tuple[int, int], look: Iterable[Any], every: int, run_arguments: Mapping[str, Any]
) -> ReplayResult:
    """Replays steps of a past run; the arguments and errors are those of `Loop.replay`."""
    given = dict(run_arguments)
    arguments.check_int("Loop.replay", "every", every, at_least=1)
    looks = arguments.check_list("Loop.replay", "look", look)
    names = [each for each in looks if isinstance(each, str)]
    hooks = checked_hooks(given.pop("hooks", ()))
    logging = given.pop("logging", None) or LoggingOptions()
    with loop.graph.as_default():
        table = TableLook(tensors_by_name(loop, names), every)
    looks = [*([table] if names else []), *(each for each in looks if not isinstance(each, str))]
    with Replay(folder, steps, looks, hooks) as made:
        given |= {
            # Sinks are other programs and services, which must not get the same numbers once more.
            "hooks": [*made.hooks, *(hook for hook in hooks if not isinstance(unwrap(hook), SinkHook))],
            "logging": dataclasses.replace(logging, sinks=(), summary_dir=None),
            "time_limit_secs": None,
            "warm_start": None,
        }
        made.drive(loop.session(made.scratch, **given), loop.train_op)
    return ReplayResult(
        made.run.folder, (made.first, made.last), made.start.path, table.rows, made.proof.comparisons, made.stopped
    )


def advice_of(loop: StepGraph) -> Callable[[Session, int], str]:
    """Returns a function that returns, for a session and a step, the command that shows the steps before it."""
    names = list(loop._scalar_metrics)[:_MOST_METRICS]

    def advise(session: Session, step: int) -> str:
        paths = [path for saver in session_savers(session) for path in getattr(saver, "last_checkpoints", ())]
        numbered = [(path.rpartition("-")[2], os.path.dirname(path)) for path in paths]
        saved = {int(number): folder for number, folder in numbered if number.isdecimal()}
        if not (before := [each for each in saved if each < step]):
            return ""
        first, folder = max(step - _SHOWN_STEPS, min(before)), saved[before[0]]
        if sys.argv[0].endswith(".py"):
            how = shlex.join(["hookline", "replay", folder, "--steps", f"{first}:{step}", "--nan", *sys.argv])
        else:
            how = f"loop.replay({folder!r}, ({first}, {step}), {names}, ...), with the arguments of the run"
        return f" To look at the steps before it: {how}"

    return advise


def tensors_by_name(loop: StepGraph, names: Iterable[str]) -> dict[str, Tensor]:
    """Returns metrics of a loop, and arrays of its state, averages and batch, by name.

    The name `NORMS` stands for the metrics and the norms of all arrays of numbers, in the order in which a step uses
    them: the batch, the state, the averages, and last the metrics.

    Raises:
        ValueError: There is none of that name; the message lists all.
    """
    metrics = {**loop.metrics, **loop.means}
    leaves: dict[str, tuple[Variable | Tensor, int]] = {}
    trees = [("", loop.state, loop.state.spec)]
    trees += [(name, variable, variable.spec) for name, variable in loop._extra_variables.items()]
    trees += [] if loop._batch is None else [("batch", loop._batch, loop._example)]
    for prefix, source, spec in trees:
        for index, (path, _) in enumerate(flatten_with_paths(spec)[0]):
            leaves.setdefault("/".join(filter(None, (prefix, path))) or loop.state.op.name, (source, index))
    found: dict[str, Tensor] = {}
    for name in names:
        path = name if name in leaves else name.removeprefix(f"{loop.state.op.name}/")
        if name == NORMS and name not in (*metrics, *leaves):
            paths = [path for path in sorted(leaves, key=_is_no_batch) if _has_norm(*leaves[path])]
            found |= {f"|{path}|": _norm(*leaves[path]) for path in paths}
            found |= metrics
        elif name in metrics:
            found[name] = metrics[name]
        elif path in leaves:
            found[name] = _leaf(*leaves[path])
        else:
            raise ValueError(
                f"Loop.replay: there is no metric and no array called {name!r}. There are: "
                f"{', '.join([*metrics, *leaves])}."
            )
    return found


def _is_no_batch(path: str) -> bool:
    return path.partition("/")[0] != "batch"


def _has_norm(source: Variable | Tensor, index: int) -> bool:
    leaf = flatten_with_paths(source.spec)[0][index][1]
    return jnp.issubdtype(getattr(leaf, "dtype", bool), jnp.inexact) and 0 not in leaf.shape


def _norm(source: Variable | Tensor, index: int) -> Tensor:
    """Returns the norm of an array of numbers, which is finite if and only if all numbers are."""

    def norm(value: Any) -> Any:
        leaf = jnp.abs(flatten_with_paths(value)[0][index][1])
        leaf = leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))
        largest = jnp.maximum(leaf.max(), jnp.finfo(leaf.dtype).tiny)  # Squares of large numbers are not finite.
        return largest * jnp.sqrt(((leaf / largest) ** 2).sum())

    return op(norm, name="look").node(source)


def _leaf(source: Variable | Tensor, index: int) -> Tensor:
    """Returns a tensor of one array of a variable or a batch."""
    return op(lambda value: flatten_with_paths(value)[0][index][1], name="look").node(source)
