"""The batches of a loop: checks of their source, their sharding, their spec, and the passes over the data."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from hookline import arguments, log
from hookline.coordination import process_group
from hookline.data.batch_sharding import BatchSharding
from hookline.data.batches import LastBatch
from hookline.data.epochs import Epochs
from hookline.data.iterator import ANY_LENGTHS, BatchSource, iterator
from hookline.data.sequences import START, RestartAdvice
from hookline.data.sources import IteratorSource, check_source, describe_value
from hookline.errors import OutOfRangeError
from hookline.graph import Tensor, placement
from hookline.graph.nodes import spec as specs
from hookline.graph.nodes.nodes import Source
from hookline.graph.nodes.views import get_at_path
from hookline.session import Session

_logger = log.get_logger(__name__)


BATCHES = "batches"
"""The name of a loop's iterator, and of its position in checkpoints."""

_RESTART = RestartAdvice(
    "is refused",
    "give Loop resume_data=False",
    "give more data, more passes (epochs=), or data without an end (hookline.data.from_arrays(..., epochs=None))",
)


def build_batches(
    source: Any, mesh: Mesh | None, sharding: Any, last_batch: LastBatch, *, resume: bool
) -> Tensor | None:
    """Returns the batches of a loop as a tensor; None for a loop without batches.

    Args:
        source: The loop's argument `batches`.
        mesh: The mesh of its state.
        sharding: The loop's argument `batch_sharding`.
        last_batch: As in `Loop`.
        resume: The loop's argument `resume_data`.

    Raises:
        TypeError: `resume` is not a boolean.
        ValueError: The sharding does not fit the batches; they are on another mesh than the state; an option is given
            with the tensor of an iterator, which has these options itself; or an option is given without batches.
    """
    if not isinstance(resume, bool):
        raise TypeError(f"Loop requires True or False as resume_data, got {resume!r}.")
    if source is None:
        options = {"batch_sharding": sharding is None, "last_batch": last_batch == "keep", "resume_data": resume}
        for name in (name for name, is_default in options.items() if not is_default):
            raise ValueError(f"Loop takes {name} with batches, and there are none (batches=None). Leave it out.")
        return None
    is_given = isinstance(source, Tensor)
    if is_given and last_batch != "keep":
        raise ValueError(
            f"Loop takes last_batch with a source of batches, and batches is a tensor. Give it to the iterator "
            f"instead: hookline.data.iterator(source, last_batch={last_batch!r})."
        )
    if is_given and not resume:
        raise ValueError(
            "Loop takes resume_data with a source of batches, and batches is a tensor. Give it to the iterator: "
            "hookline.data.iterator(source, resume=False)."
        )
    wanted = sharding_for("Loop", sharding, mesh)
    batch = source
    if not is_given:
        batch = iterator(source, last_batch=last_batch, spec=ANY_LENGTHS, resume=resume, name=BATCHES)
    node = batch.op if isinstance(batch.op, BatchSource) else None
    if node is not None and is_given:
        node.allow_any_lengths()
    elif node is not None:
        node.sequence.restart = _RESTART
    if node is not None and (node.batch_sharding.sharding is None or node.batch_sharding.is_default):
        node.set_sharding(wanted, is_default=sharding is None)
    elif sharding is not None:
        raise ValueError(
            "Loop takes batch_sharding with a source of batches, and batches is a tensor that has a sharding already. "
            "Give the sharding to its iterator alone: hookline.data.iterator(source, sharding=...)."
        )
    if node is None:
        return batch
    check_mesh("Loop", mesh, node.batch_sharding)
    is_whole = sharding is None and node.batch_sharding.sharding == wanted
    if is_whole and mesh and mesh.size > 1 and placement.DATA_AXIS not in mesh.axis_names:
        _logger.info(
            "Loop: each device gets whole batches, because the mesh of the state, %s, has no axis 'data'. Split them "
            "with batch_sharding=.",
            placement.describe_mesh(mesh),
        )
    return batch


def sharding_for(who: str, sharding: Any, mesh: Mesh | None) -> Any:
    """Returns the sharding of batches: as given, else over the axis `data` of the state's mesh.

    In SPMD processes, a state without a sharding is on all devices.

    Raises:
        ValueError: A `PartitionSpec` does not fit that mesh, or the state has no mesh.
    """
    if mesh is None and placement.is_spmd():
        mesh = placement.global_mesh()
    if sharding is None:
        return placement.data_sharding(mesh) or (mesh and jax.NamedSharding(mesh, jax.P()))
    return placement.to_named_shardings(who, "batch_sharding", sharding, mesh)


def check_mesh(who: str, of_state: Mesh | None, batch_sharding: BatchSharding) -> Mesh | None:
    """Returns the mesh of batches, if it is known.

    Raises:
        ValueError: The batches and the state are on different devices, so one program cannot use both.
    """
    batch_mesh = placement.common_mesh(batch_sharding.shardings(), f"{who}: a batch")
    if of_state is None:
        return batch_mesh
    if batch_mesh is None:
        on_one_device = of_state.size > 1 and batch_sharding.sharding is not None
        batch_devices = f"one device, {jax.tree.leaves(batch_sharding.sharding)[0]}" if on_one_device else None
    else:
        batch_devices = (
            placement.describe_mesh(batch_mesh) if placement.are_incompatible(of_state, batch_mesh) else None
        )
    if batch_devices is not None:
        raise ValueError(
            f"{who} requires a state and batches on one mesh: the state is on {placement.describe_mesh(of_state)}, the "
            f"batches on {batch_devices}."
        )
    return batch_mesh


def has_other_devices(batch: Tensor | None) -> bool:
    """Returns whether batches are known to be on other devices than JAX's default one."""
    found = batch.op.batch_sharding.shardings() if batch is not None and isinstance(batch.op, BatchSource) else []
    return any(
        sharding is not None and placement.as_sharding(sharding).device_set != {jax.devices()[0]} for sharding in found
    )


def check_batches(who: str, batches: Any) -> None:
    """Raises `TypeError` for an array, a tuple of arrays, text, or anything else that is not a source of batches."""
    check_source(batches, who)
    if isinstance(batches, tuple) and batches and all(isinstance(item, np.ndarray | jax.Array) for item in batches):
        arrays = ", ".join(map(describe_value, batches))
        raise TypeError(
            f"{who} requires batches, got a tuple of arrays, ({arrays}). If it holds all examples, hookline.data."
            "from_arrays((X, y), batch_size=32) makes batches of them; if each array is a batch, give a list of them."
        )


def refuse_text(who: str, batch: Any) -> None:
    """Raises `TypeError` for a batch with text or objects; the message names the first."""
    for path, leaf in jax.tree.leaves_with_path(batch):
        array = np.asarray(leaf) if not hasattr(leaf, "dtype") else leaf
        if getattr(array.dtype, "kind", "") in "OSU":
            what = "an object" if array.dtype.kind == "O" else "text"
            where = f" at {jax.tree_util.keystr(path)}" if path else ""
            value = array.ravel()[0] if isinstance(array, np.ndarray) else leaf
            value = value.item() if isinstance(value, np.generic) else value
            raise TypeError(
                f"{who} requires batches of arrays and numbers, and the first has {what}{where}: "
                f"{describe_value(value)}. Leave it out, or have the source turn it into numbers."
            )


def first_spec(batch: Tensor | None) -> Any:
    """Returns the spec of the first batch; None without batches.

    Raises:
        ValueError: There is no batch.
        TypeError: It contains text or objects.
        Exception: The source raised it.
    """
    if batch is None:
        return None
    example = batch.op.example if isinstance(batch.op, Source) else specs.UNKNOWN
    spec = batch.spec if example is specs.UNKNOWN else get_at_path(example, batch.path)
    if spec is not specs.UNKNOWN:
        return spec
    with Session(graph=batch.graph) as session:
        try:
            value = session.run(batch)
        except OutOfRangeError:
            raise ValueError(
                "Loop requires at least one batch, and batches is empty. If it is an iterator that was used up before, "
                "give a function that makes it."
            ) from None
    refuse_text("Loop", value)
    raise TypeError(f"Loop requires batches of arrays and numbers, got {describe_value(value)}.")


class CompletedPasses(NamedTuple):
    """The passes that a loop has made over its data.

    Attributes:
        number: The number of passes, including the last one, even if the loop stopped in the middle of it.
        has_ended: Whether the last pass is known to have ended.
    """

    number: int = 0
    has_ended: bool = False


# Passes over 4 batches, so that the first one ends at step 4 and the second at step 8:
#
#     session                         before it       trains
#     run(last_step=3)                a new loop      steps 1 to 3
#     run()                           in the middle   step 4: to the end of this pass, and no further
#     run()                           at the end      steps 5 to 8: the next pass
#     run("dir", epochs=2)            new, at step 4  steps 5 to 8: passes count from step 0, over restarts
#     run("dir")                      new, at step 4  nothing: without `epochs` a directory trains for one pass
#
# So `passes` of the sequence is the total number of passes from step 0, not the number that a session adds. It is set
# before the position in the data is restored: a reader at batch 4 of 1 pass has ended, one at batch 4 of 2 passes has
# not.


class Passes:
    """Sets the number of passes over the data for each session of a loop.

    | session | passes, counted from step 0 |
    |---|---|
    | with `epochs` | `epochs` |
    | without a directory, begins at the end of a pass | one more |
    | continues in memory | to the end of the current pass |
    | else | one |

    Args:
        batch: The batches; None without any.
    """

    def __init__(self, batch: Tensor | None) -> None:
        self._source = None if batch is None else batch.op
        self._node = self._source if isinstance(self._source, BatchSource) else None
        self._epochs: int | None = None
        self._restart = RestartAdvice() if self._node is None else self._node.sequence.restart

    def check_has_end(self, last_step: int | None) -> None:
        """Raises `ValueError` for a training without an end: with neither batches nor a last step."""
        if self._source is None and last_step is None:
            raise ValueError(
                "Loop.run requires last_step with batches=None, because there are no data whose end stops the "
                "training. A hook may stop it earlier."
            )

    def steps_per_epoch(self) -> int | None:
        """Returns the number of steps in an epoch; None if `epochs` returns a reason."""
        found = self.epochs()
        return found.steps if isinstance(found, Epochs) else None

    def epochs(self, session: Session | None = None, first_step: int = 0) -> Epochs | str:
        """Returns the epochs of a session, or of a training run from its first step on, or why they are unknown.

        Args:
            session: The raw session. With it this is a collective call in SPMD processes.
            first_step: Without a session, the step at which the data begin.
        """
        node, group = self._node, process_group.current()
        length = None if node is None else node.count.per_epoch
        if session is not None and group is not None and node is not None and node.batch_sharding.is_part:
            every = group.all_gather("epochs of Loop", length)
            if len(set(every)) > 1:
                return (
                    f"the SPMD processes have epochs of different lengths, {', '.join(map(str, every))} batches. Give "
                    "each as many batches"
                )
        why = self._why_unknown(length, "Give a number of steps")
        if why or node is None:
            return why
        if session is None:
            return node.count.epochs_at(START, first_step)
        return node.count.epochs_at(session.backend.source(node).own_position, session.global_step)

    def _why_unknown(self, length: float | None, instead: str) -> str:
        """Returns why epochs of `length` batches cannot be counted, with `instead` as advice; empty if they can."""
        node = self._node
        if self._source is None:
            return f"it has no data to pass over (batches=None). {instead}"
        if node is None or isinstance(node.sequence, IteratorSource):
            return "its batches come from an iterator, which gives each once. Give a function that makes it, or a list"
        if not node.resumes:
            return (
                "each start reads its data from the beginning (resume_data=False), and epochs are counted from step 0"
            )
        if not length:
            return (
                "the number of its batches is not known. Give it, batches=hookline.data.iterator(source, "
                "num_batches=...); or give a list, or hookline.data.from_arrays"
            )
        return f"its data have no end. {instead}" if length == math.inf else ""

    def num_steps(self, epochs: int | None) -> int | None:
        """Returns the number of batches in `epochs` passes; None if `epochs` is None, or if a batch may be dropped.

        Raises:
            TypeError: `epochs` is not an integer.
            ValueError: It is below 1; or the data have epochs of their own, no known length, or cannot be read again.
        """
        if epochs is None:
            return None
        arguments.check_int("Loop", "epochs", epochs, at_least=1)
        node = self._node
        arrays = None if node is None else node.sequence.arrays
        if arrays is not None and arrays.epochs != 1:
            why = f"its data have epochs of their own, data.from_arrays(..., epochs={arrays.epochs}). Leave out one"
        else:
            why = self._why_unknown(None if node is None else node.count.left(START), "Give last_step")
        if why:
            raise ValueError(f"Loop cannot train for epochs={epochs}: {why}.")
        steps = self.steps_per_epoch()
        return None if steps is None else epochs * steps

    def prepare(self, epochs: int | None) -> None:
        """Sets the number of passes of the next session; raises the errors of `num_steps`."""
        self.num_steps(epochs)
        self._epochs = epochs
        if self._node is not None:
            more = self._restart.more if epochs is None else f"raise epochs={epochs}"
            self._node.sequence.passes, self._node.sequence.restart = epochs or 1, self._restart._replace(more=more)

    def resume(self, made: CompletedPasses) -> None:
        """Lets a session that continues in memory read to the end of the current pass; called before it is restored."""
        if self._node is not None and self._epochs is None:
            self._node.sequence.passes = max(1, made.number)

    def begin_next_pass(self, session: Session, made: CompletedPasses) -> None:
        """Begins the next pass, if a session that continues in memory is at the end of a pass."""
        if self._node is None or self._epochs is not None or not self._node.resumes:
            return
        reader = session.backend.source(self._node)
        if not made.has_ended:
            reader.wait()  # It may have stopped at the last batch.
        if (made.has_ended or reader.has_ended) and reader.begin_pass() and process_group.is_primary():
            _logger.info("Loop: its data had ended at step %d, and it makes the next pass.", session.global_step)

    def completed(self, session: Session) -> CompletedPasses:
        """Returns the passes that a session has made."""
        if self._node is None or not self._node.resumes:
            return CompletedPasses()
        reader = session.backend.source(self._node)
        return CompletedPasses(reader.passes_made, reader.has_ended)

    def warn_early_end(self, session: Session, first_step: int, last_step: int | None) -> None:
        """Warns if the data ended before the last step; without any run, the session itself warns."""
        step, source = session.global_step, self._source
        is_early = self._epochs is None and last_step is not None and first_step < step < last_step
        if (
            is_early
            and process_group.is_primary()
            and isinstance(source, Source)
            and session.backend.source(source).has_ended
        ):
            _logger.warning(
                "Loop: the data ended at global step %d, before last_step=%d. Give more data, more passes (epochs=), "
                "or data without an end: hookline.data.from_arrays(..., epochs=None).",
                step,
                last_step,
            )
