"""LoopDescription: describes the state of a loop, its devices and its output, as data and as a table."""

from __future__ import annotations

import collections
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from hookline import units
from hookline.checkpoint import latest_checkpoint
from hookline.checkpoint.restoring import inspection
from hookline.checkpoint.saving import contents
from hookline.graph import Operation, Variable
from hookline.hooks import SessionRunHook, Trigger, at_steps
from hookline.hooks.only_for import unwrap
from hookline.hooks.trigger import NEVER
from hookline.loop.evaluation.early_stopping import FinalStop
from hookline.loop.in_memory_checkpoint import InMemoryCheckpoint
from hookline.monitored.hooked.callbacks import identity
from hookline.session import Session

_MAX_SHOWN_STEPS, _MAX_COUNTED_STEPS = 3, 10_000


class Part(NamedTuple):
    """A part of the values that one step passes to the next: a top-level part of the state, or a variable beside it.

    Args:
        name: The parameter of the step that gets it; else the key, field or index; "state" for a single array. Beside
            the state there are "ema", the moving averages, and "smoothing_steps", the metrics of the last steps.
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


class HookOutput(NamedTuple):
    """The output of a hook.

    Args:
        hook: The name of its class.
        what: The output, and its destination.
        when: The steps, or the trigger in words if it depends on more than steps. Empty if another hook decides.
        steps: The global steps at which the run will write it; the first ones, if there are very many or the last step
            is not known. None if the trigger depends on more than steps.
    """

    hook: str
    what: str
    when: str
    steps: tuple[int, ...] | None = None


class LoopDescription(NamedTuple):
    """The result of `Loop.describe`; its `str()` is a table.

    Args:
        parts: The parts of the state, and the variables beside it.
        devices: The devices, and the mesh if there is one.
        batch: The arrays of a batch.
        start: The first step of the training and the source of its values, in words.
        writes: The output of each hook.
        programs: The compiled programs of the step, in words, as far as they are known before the hooks begin.
        counts: How optimizer steps are counted, in words; empty if each step is an optimizer step.
    """

    parts: tuple[Part, ...]
    devices: str
    batch: str
    start: str
    writes: tuple[HookOutput, ...]
    programs: tuple[str, ...]
    counts: str = ""

    def __str__(self) -> str:
        size = sum(part.size_bytes for part in self.parts)
        device_bytes = sum(part.bytes_a_device for part in self.parts)
        lines = [
            f"{units.format_count(sum(part.parameters for part in self.parts), 'number')} in "
            f"{units.format_count(sum(part.arrays for part in self.parts), 'array')}, {units.format_bytes(size)}, "
            f"{units.format_bytes(device_bytes)} on each device; on {self.devices}."
        ]
        width = max(len(part.name) for part in self.parts)
        lines += [
            f"  {part.name:{width}}  {part.parameters:>14,}  {units.format_bytes(part.size_bytes):>9}  {part.placement}"
            for part in self.parts
        ]
        lines += [f"A batch: {self.batch}.", self.start]
        lines += [f"{self.counts[0].upper()}{self.counts[1:]}."] if self.counts else []
        written = [f"{w.hook} writes {'; '.join(filter(None, (w.what, w.when)))}." for w in self.writes]
        lines += written or ["Nothing is written."]
        lines += ["Programs:", *(f"  {program}" for program in self.programs)]
        return "\n".join(line.rstrip() for line in lines)


def state_parts(state: Variable, called: Mapping[str, Any], beside: Mapping[str, Variable]) -> tuple[Part, ...]:
    """Returns the parts of a state, and the variables beside it.

    Args:
        state: The state.
        called: For each parameter of the step, the key of its part of the state; None for the whole state.
        beside: More variables, by name.
    """
    names = {str(key): name for name, key in called.items() if key is not None}
    of_state: dict[str, list[tuple[Any, Any]]] = {}
    for path, leaf, sharding in _leaves_with_sharding(state):
        key = jax.tree_util.keystr(path[:1], simple=True)
        of_state.setdefault(names.get(key, key) or state.op.name, []).append((leaf, sharding))
    parts = list(of_state.items())
    parts += [
        (name, [(leaf, sharding) for _, leaf, sharding in _leaves_with_sharding(each)]) for name, each in beside.items()
    ]
    return tuple(
        Part(
            name,
            len(leaves),
            sum(math.prod(leaf.shape) for leaf, _ in leaves),
            sum(_num_bytes(leaf, leaf.shape) for leaf, _ in leaves),
            sum(
                _num_bytes(leaf, leaf.shape if sharding is None else sharding.shard_shape(leaf.shape))
                for leaf, sharding in leaves
            ),
            _placement([sharding for _, sharding in leaves]),
        )
        for name, leaves in parts
    )


def _leaves_with_sharding(variable: Variable) -> Iterator[tuple[Any, Any, Any]]:
    """Yields the path, the spec and the sharding of each array."""
    found = jax.tree.leaves_with_path(variable.spec)
    shardings = variable.shardings or [None] * len(found)
    for (path, leaf), sharding in zip(found, shardings, strict=True):
        yield path, leaf, sharding


def describe_devices(state: Variable, mesh: jax.sharding.Mesh | None) -> str:
    """Returns the devices of a state, in words."""
    found = {device for sharding in state.shardings if sharding is not None for device in sharding.device_set}
    names = contents.device_names(found or {jax.devices()[0]})
    axes = "" if mesh is None else f", a mesh of {', '.join(f'{axis}={size}' for axis, size in mesh.shape.items())}"
    return f"{contents.format_devices(names)}{axes}"


def hook_outputs(hooks: Iterable[Any], begins: TrainingStart, last: int | None) -> tuple[HookOutput, ...]:
    """Returns the output of the hooks that have an `output_description`.

    Args:
        hooks: The hooks.
        begins: The start of the training.
        last: The global step at which it ends; None if that is not known.
    """
    found = []
    if begins.is_over:
        return ()
    for hook in map(unwrap, hooks):
        if what := getattr(hook, "output_description", ""):
            steps, when = _writing_steps(hook, begins.step, last, begins.hook_states)
            found.append(HookOutput(type(hook).__name__, what, when, steps))
    return tuple(found)


def _writing_steps(
    hook: Any, first: int, last: int | None, states: Mapping[str, Any]
) -> tuple[tuple[int, ...] | None, str]:
    """Returns the steps at which a hook writes, None if they depend on more than steps; and the same in words."""
    written = getattr(hook, "steps_written", None) or functools.partial(SessionRunHook.steps_written, hook)
    trigger = getattr(hook, "trigger", None)
    has_one = isinstance(trigger, Trigger)
    own = trigger.clone() if has_one else at_steps(NEVER)
    if phase := states.get(identity(hook), {}).get("trigger"):
        own.resume(phase, first, first)
    # Output in addition to the firings of its trigger: asked for with a trigger that never fires.
    beside = list(written(at_steps(NEVER), first, first + 1) or ())
    ends = ["at the end"] if first + 1 in beside else []
    found = written(own, first, last)
    if found is None:
        begins = [f"at step {first}"] if first in beside else []
        return None, _join_words([*([str(trigger)] if has_one else []), *begins, *ends])
    steps = tuple(dict.fromkeys(itertools.islice(found, _MAX_SHOWN_STEPS if last is None else _MAX_COUNTED_STEPS)))
    if len(steps) == _MAX_COUNTED_STEPS:
        return (
            steps,
            f"at steps {', '.join(map(str, steps[:_MAX_SHOWN_STEPS]))} and so on, {len(steps):,} times or more",
        )
    if last is not None:
        return steps, f"at {_format_steps(steps)}" if steps else f"at no step up to {last}" if has_one else ""
    return steps, _join_words([*([f"at {_format_steps(steps)} and so on"] if steps else []), *ends])


def _format_steps(steps: Sequence[int]) -> str:
    """Returns steps in words; of many, the first ones, the last and their number.

    Example:
        >>> _format_steps(range(0, 1000, 100)), _format_steps([5])
        ('steps 0, 100, 200, ..., 900 (10 times)', 'step 5')
    """
    if len(steps) <= _MAX_SHOWN_STEPS + 3:
        return f"step{'s' if len(steps) > 1 else ''} {', '.join(map(str, steps))}"
    return f"steps {', '.join(map(str, steps[:_MAX_SHOWN_STEPS]))}, ..., {steps[-1]} ({len(steps)} times)"


def _join_words(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def describe_programs(train_op: Operation, steps_per_run: int, *, watches: bool) -> tuple[str, ...]:
    """Returns the compiled programs of a step, in words, from a session that plans and runs nothing."""
    with Session(graph=train_op.graph) as session:
        made = session.backend.find_step(train_op, max_steps=steps_per_run)
        assert made.program is not None, "A step has a variable."
        about = made.program.compilations.description
    with_fetches = "the same with the fetches of hooks that fire"
    return (about, with_fetches) if watches else (about,)


class TrainingStart(NamedTuple):
    """The start of a training.

    Attributes:
        step: The global step.
        hook_states: The restored states of its hooks.
        text: The step and the source of the values, in words.
        is_over: Whether no step is left to train.
    """

    step: int
    hook_states: Mapping[str, Any]
    text: str
    is_over: bool = False


def find_start(
    logdir: str | None,
    memory: InMemoryCheckpoint | None,
    warm: Callable[[], tuple[str, bool]] | None,
    given: int,
    last: int | None,
    stop: FinalStop,
) -> TrainingStart:
    """Returns the start of a training.

    Args:
        logdir: The directory of its checkpoints.
        memory: The loop's checkpoint in memory.
        warm: Returns the checkpoint of its warm start, and whether the training continues from the step of that; raises
            if the checkpoint cannot be used.
        given: The step counter of the given state.
        last: The step at which it would stop.
        stop: The hook that keeps the reason of a final stop.
    """
    path = latest_checkpoint(logdir) if logdir else None
    states: Mapping[str, Any] = {}
    if path is not None:
        step, states, words = (
            inspection.inspect_checkpoint(path).step or 0,
            contents.hook_states(path),
            f"It goes on from '{path}'",
        )
    elif memory is not None:
        step, states = memory.step, memory.hook_states
        words = f"It goes on from step {step}, where it stopped"
    elif warm is not None:
        of, goes_on = warm()
        step = (inspection.inspect_checkpoint(of).step or 0) if goes_on else given
        words = f"It begins with the matching values of '{of}'"
    else:
        step, words = given, "It begins with the given state"
    if last is not None and step >= last:
        where = f"'{path}' is" if path is not None else "it stopped" if memory is not None else "it begins"
        words = f"No step is left: {where} at step {step}, and the last is {last}"
        return TrainingStart(step, states, f"{words}.", is_over=True)
    if found := states.get(identity(stop), {}).get("state"):
        stop.set_state(found)
        if why := stop.reason():
            words = (
                f"No step is left: it stopped early at step {step}: {why}. To continue training, pass train_on=True."
            )
            return TrainingStart(step, states, words, is_over=True)
    return TrainingStart(step, states, words + ("." if last is None else f", to step {last}."))


def describe_batch(spec: Any) -> str:
    """Returns the arrays of a batch, in words."""
    if spec is None:
        return "none"
    return ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in jax.tree.leaves(spec)) or "no arrays"


def _placement(shardings: list[Any]) -> str:
    ways = collections.Counter(
        ""
        if sharding is None
        else "whole"
        if sharding.is_fully_replicated
        else str(getattr(sharding, "spec", sharding))
        for sharding in shardings
    )
    return ", ".join(f"{count} {way}" for way, count in ways.items() if way)


def _num_bytes(leaf: Any, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * leaf.dtype.itemsize
