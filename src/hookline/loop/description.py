"""LoopDescription: the state of a loop, its devices, and its output, as data and as a table."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax

from hookline import units
from hookline.checkpoint import devices, examine, latest_checkpoint
from hookline.graph import Operation, Variable
from hookline.hooks.when import bare
from hookline.monitored.callbacks import override
from hookline.session import Session


class Part(NamedTuple):
    """A part of the values that a step carries: one of the top level of the state, or one beside the state.

    Args:
        name: The parameter of the step that gets it; else the key, field or index; "state" for a single array. Beside
            the state there are "ema", the moving averages, and "mean_over", the metrics of the last steps.
        arrays: The number of arrays.
        parameters: The number of their elements.
        size_bytes: Their size.
        bytes_a_device: Their size on one device.
        placement: Their shardings, with the number of arrays of each.
    """

    name: str
    arrays: int
    parameters: int
    size_bytes: int
    bytes_a_device: int
    placement: str


class Written(NamedTuple):
    """The output of a hook.

    Args:
        hook: The name of its class.
        what: The output, and its place.
        when: Its trigger, in words, and whether it is called at the end. Empty if another hook decides.
    """

    hook: str
    what: str
    when: str


class LoopDescription(NamedTuple):
    """The result of `Loop.describe`; its `str()` is a table.

    Args:
        parts: The parts of the state, and the values that a step carries beside it.
        lies_on: The devices, and the mesh if there is one.
        batch: The arrays of a batch.
        begins: The step and the values that the training would begin with.
        writes: The output of each hook.
        programs: The programs of the step, in words, as far as they are known before the hooks begin.
    """

    parts: tuple[Part, ...]
    lies_on: str
    batch: str
    begins: str
    writes: tuple[Written, ...]
    programs: tuple[str, ...]

    def __str__(self) -> str:
        whole = sum(part.size_bytes for part in self.parts)
        held = sum(part.bytes_a_device for part in self.parts)
        lines = [
            f"{units.count(sum(part.parameters for part in self.parts), 'number')} in "
            f"{units.count(sum(part.arrays for part in self.parts), 'array')}, {units.size(whole)}, "
            f"{units.size(held)} on each device; on {self.lies_on}."
        ]
        width = max(len(part.name) for part in self.parts)
        lines += [
            f"  {part.name:{width}}  {part.parameters:>14,}  {units.size(part.size_bytes):>9}  {part.placement}"
            for part in self.parts
        ]
        lines += [f"A batch: {self.batch}.", self.begins]
        written = [f"{w.hook} writes {'; '.join(filter(None, (w.what, w.when)))}." for w in self.writes]
        lines += written or ["Nothing is written."]
        lines += ["Programs:", *(f"  {program}" for program in self.programs)]
        return "\n".join(line.rstrip() for line in lines)


def parts_of(state: Variable, called: Mapping[str, Any], beside: Mapping[str, Variable]) -> tuple[Part, ...]:
    """Returns the parts of a state, and the values that a step carries beside it.

    Args:
        state: The state.
        called: For each parameter of the step, the key of its part of the state; None for the whole state.
        beside: More variables, by name.
    """
    names = {str(key): name for name, key in called.items() if key is not None}
    of_state: dict[str, list[tuple[Any, Any]]] = {}
    for path, leaf, place in _placed(state):
        key = jax.tree_util.keystr(path[:1], simple=True)
        of_state.setdefault(names.get(key, key) or state.op.name, []).append((leaf, place))
    parts = list(of_state.items())
    parts += [(name, [(leaf, place) for _, leaf, place in _placed(each)]) for name, each in beside.items()]
    return tuple(
        Part(
            name,
            len(leaves),
            sum(math.prod(leaf.shape) for leaf, _ in leaves),
            sum(_bytes(leaf, leaf.shape) for leaf, _ in leaves),
            sum(_bytes(leaf, leaf.shape if place is None else place.shard_shape(leaf.shape)) for leaf, place in leaves),
            _placement([place for _, place in leaves]),
        )
        for name, leaves in parts
    )


def _placed(variable: Variable) -> Iterator[tuple[Any, Any, Any]]:
    """Yields the path, the spec and the sharding of each array."""
    found = jax.tree.leaves_with_path(variable.spec)
    places = variable.places or [None] * len(found)
    for (path, leaf), place in zip(found, places, strict=True):
        yield path, leaf, place


def place_of(state: Variable, mesh: jax.sharding.Mesh | None) -> str:
    """Returns the devices of a state, in words."""
    found = {device for place in state.places if place is not None for device in place.device_set}
    names = devices.names(found or {jax.devices()[0]})
    axes = "" if mesh is None else f", a mesh of {', '.join(f'{axis}={size}' for axis, size in mesh.shape.items())}"
    return f"{devices.shown(names)}{axes}"


def written_by(hooks: Iterable[Any]) -> tuple[Written, ...]:
    """Returns the output of hooks that describe it with `writes`."""
    found = []
    for hook in map(bare, hooks):
        if what := getattr(hook, "writes", ""):
            trigger, ends = getattr(hook, "trigger", None), override(hook, "end") is not None
            when = [*([] if trigger is None else [str(trigger)]), *(["at the end"] if ends else [])]
            found.append(Written(type(hook).__name__, what, " and ".join(when)))
    return tuple(found)


def programs_of(train_op: Operation, steps_per_run: int, *, watches: bool) -> tuple[str, ...]:
    """Returns the programs of a step, in words, planned by a session that runs nothing."""
    with Session(graph=train_op.graph) as session:
        low = session.lowlevel
        made = (
            low.planned(train_op, None, None)
            if steps_per_run == 1
            else low.repeated_step(train_op, None, steps_per_run)
        )
        assert made.program is not None, "A step has a variable."
        about = made.program.compilations.about
    with_fetches = "the same with the fetches of hooks that fire; session.plan() counts them"
    return (about, with_fetches) if watches else (about,)


def beginning(logdir: str | None, step_left: int | None, warm: Callable[[], str] | None, last_step: int | None) -> str:
    """Returns the beginning and the end of a training, in words.

    Args:
        logdir: The directory of its checkpoints.
        step_left: The step at which the loop stopped last.
        warm: Returns the checkpoint of its warm start, or raises if that cannot be used.
        last_step: The step at which it would stop.
    """
    path = latest_checkpoint(logdir) if logdir else None
    reached = step_left if path is None else examine.one(path).step
    if last_step is not None and reached is not None and reached >= last_step:
        where = "it stopped" if path is None else f"'{path}' is"
        return f"No step is left: {where} at step {reached}, and the last is {last_step}."
    if path is not None:
        begins = f"It goes on from '{path}'"
    elif step_left is not None:
        begins = f"It goes on from step {step_left}, where it stopped"
    elif warm is not None:
        begins = f"It begins with the matching values of '{warm()}'"
    else:
        begins = "It begins with the given state"
    return begins + ("." if last_step is None else f", to step {last_step}.")


def form_of_batch(spec: Any) -> str:
    """Returns the arrays of a batch, in words."""
    if spec is None:
        return "none"
    return ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in jax.tree.leaves(spec)) or "no arrays"


def _placement(places: list[Any]) -> str:
    ways = collections.Counter(
        "" if place is None else "whole" if place.is_fully_replicated else str(getattr(place, "spec", place))
        for place in places
    )
    return ", ".join(f"{count} {way}" for way, count in ways.items() if way)


def _bytes(leaf: Any, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * leaf.dtype.itemsize
