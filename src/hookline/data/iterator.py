"""Makes a tensor whose values are the batches of a source."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from itertools import chain
from typing import Any

import jax

from hookline import arguments, log
from hookline.coordination import process_group
from hookline.data.batch_sharding import BatchSharding
from hookline.data.batches import BatchSpec, LastBatch, Padded, check_last_batch, is_object
from hookline.data.epochs import BatchCount
from hookline.data.from_arrays import ArraySource
from hookline.data.global_batch_check import UNKNOWN_LENGTH, GlobalBatchCheck
from hookline.data.reader import BatchReader
from hookline.data.sequences import START, BatchSequence, ReadRequest
from hookline.data.sources import describe_value, make_sequence
from hookline.data.spmd_reader import SpmdBatchReader
from hookline.graph import Graph, Tensor, get_default_graph, placement
from hookline.graph.nodes import spec as specs
from hookline.graph.nodes.nodes import Source

_logger = log.get_logger(__name__)

ANY_LENGTHS = object()
"""The `spec` of a `Loop`'s batches: their lengths may differ from those of the first batch."""


def iterator(
    source: Any,
    *,
    prefetch: int | None = None,
    last_batch: LastBatch = "keep",
    spec: Any = None,
    sharding: Any = None,
    device: Any = None,
    resume: bool = True,
    replay_bytes: int = 256 * 2**20,
    num_batches: float | None = None,
    check_disjoint: bool = True,
    name: str | None = None,
) -> Tensor:
    """Returns a tensor whose value, in each run that needs it, is the next batch of a source.

    If it helps, a thread prefetches batches and puts them on the device, so that runs do not wait for the host.
    Checkpoints hold the position of the runs, not of the thread: a restored session continues with the same batch as an
    uninterrupted one. A batch is used up once its run has been applied. If the run fails before that, or if
    `RunOptions.last_step` refuses it, the next run gets the batch.

    A source reaches a position in one of three ways. A source with a state (`get_state` and `set_state`, or
    `state_dict` and `load_state_dict`: `from_arrays`, a Grain dataset or loader, a loader of torchdata) is set to it.
    Any other function or iterable is read again up to the position, and must arrive at the same batch; a checksum
    verifies that. A plain iterator can do neither: the batches since the last checkpoint are kept, for a recovery in
    this process; in a new process it starts from the beginning, with a warning. The first save warns of that, too.

    In SPMD processes (of one multi-process SPMD job) each process reads its part of every batch. All end when the
    process with the fewest batches does, so the number of batches must be known (`num_batches`). `from_arrays` is
    called as in a single process. See 'Feeding data' in hookline's documentation.

    Args:
        source: A function that makes an iterable, an iterable (a list, a loader, `from_arrays`), or an iterator. Its
            batches are pytrees of arrays and numbers, all of one form; text and objects stay on the host. At its end a
            run raises `OutOfRangeError`. If the source raises an error, the run that needed the batch raises it.
        prefetch: The number of batches kept ready beside the one in use; if runs take blocks of batches, the number of
            blocks. Of small batches that a source gives together, up to 96 are ready. With 0 there is no thread, and
            the run reads. By default 2, but 0 on a single CPU device for `from_arrays` and lists. For other sources
            there, the thread reads only while the source waits for a disk, a network or other processes. While the
            source only computes, the runs read.
        last_batch: What to do with a batch of fewer examples than the first: `"keep"` it, which compiles the step once
            more; `"drop"` it; or `"pad"` it with zeros. With `"pad"` the value is a pair of the batch and a mask of
            booleans, which are true for real examples.
        spec: A pytree of arrays or `jax.ShapeDtypeStruct` like a batch. A length that varies is a symbol of
            `jax.export.symbolic_shape`. Without a spec, or with such lengths, the first batch is read at once, and is
            kept for the first run.
        sharding: The sharding of batches: a `jax.sharding.Sharding`, or a tree of them that is a prefix of a batch. An
            array without dimensions is replicated. By default JAX's default device; in a `train.Loop`, the axis `data`
            of its state's mesh; in SPMD processes, all their devices.
        device: An alias of `sharding`, for a `jax.Device`.
        resume: Whether checkpoints hold the position. If not, each session starts from the beginning, as an evaluation
            should.
        replay_bytes: For an iterator without a state: the number of bytes of batches to keep. A recovery that would
            need more is refused.
        num_batches: For a source without a length: the number of batches it gives to the runs of this process;
            `math.inf` if it has no end.
        check_disjoint: Whether SPMD processes must give different batches. Their first batches are compared.
        name: Name of the operation, and of its position in checkpoints; by default `iterator`.

    Returns:
        The tensor. Its parts are views: `batch["x"]`, or `images, labels = iterator(...)`.

    Raises:
        TypeError: `source` or a number has the wrong type; or a batch of SPMD processes has text.
        InvalidArgumentError: `last_batch` needs the number of examples, and the first batch does not show it.
        ValueError: A number is too small, or `last_batch` is unknown; or `sharding` cannot split the first batch, or
            the last one of `from_arrays`.

    Example:
        >>> import hookline as hl, numpy as np
        >>> numbers = hl.data.iterator(hl.data.from_arrays(np.arange(6.0), batch_size=2))
        >>> total = hl.op(lambda x: x.sum())(numbers)
        >>> with hl.Session() as sess:
        ...     print(sess.run(total), sess.run(total), sess.run(total))
        1.0 5.0 9.0

    References:
        `tf.data.Iterator.get_next`, whose position a checkpoint held only if it was saved with
        `tf.data.experimental.make_saveable_from_iterator`.
    """
    any_lengths, spec = spec is ANY_LENGTHS, None if spec is ANY_LENGTHS else spec
    check_last_batch("iterator", last_batch)
    if prefetch is not None:
        prefetch = arguments.check_int("iterator", "prefetch", prefetch, at_least=0)
    replay_bytes = arguments.check_int("iterator", "replay_bytes", replay_bytes, at_least=0)
    if num_batches is not None and num_batches != math.inf:
        num_batches = arguments.check_int("iterator", "num_batches", num_batches, at_least=0)
    arguments.check_str("iterator", "name", name, optional=True)
    if sharding is not None and device is not None:
        raise ValueError("iterator takes sharding or its alias device, got both.")
    graph = get_default_graph()
    who = f"Iterator {graph.free_name(graph.current_scope + (name or 'iterator'))!r}"
    graph.check_not_finalized(who)
    group = process_group.current()
    sequence = make_sequence(source, who, replay_bytes if resume else None, is_lazy=group is not None)
    started, example = None, spec
    if spec is None or specs.has_open_dims(spec):
        stream = sequence.read(START, request := ReadRequest())
        try:
            if (first := next(stream, None)) is not None:
                example = first.batch
                if not isinstance(
                    source, ArraySource
                ):  # Reading it again costs nothing, and then it comes in one block with the next ones.
                    started = chain([first], stream), request
        except Exception as error:
            if last_batch == "pad":
                raise
            # The first run that needs a batch meets this error again.
            if spec is None:
                _logger.warning(
                    "%s: its first batch could not be read, so the form of batches is not known, and their parts can "
                    "only be reached by index. The first run that needs a batch raises: %s: %s",
                    who,
                    type(error).__name__,
                    error,
                )
    form = BatchSpec(who, example, last_batch, spec)
    first_batch = Padded(example, form.example.mask) if last_batch == "pad" else example
    batch_sharding = BatchSharding(who, first_batch, source, last_batch)
    batch_sharding.any_lengths = (any_lengths and form.allow_any_lengths()) or (
        spec is not None and specs.has_open_dims(spec)
    )
    count = BatchCount(source, sequence, form, num_batches)
    global_check = None
    if group is not None:
        if started is not None and count.left(START) is None:
            raise ValueError(f"{who}: {UNKNOWN_LENGTH}")
        if example is not None:
            _reject_text(who, example)
        global_check = GlobalBatchCheck(group, who, source, batch_sharding, count.left, check_disjoint=check_disjoint)
    lock, last = threading.Lock(), None

    def open_for(node: Source, shared: bool) -> BatchReader:
        """Returns a session's reader, at the beginning; if it is shared, the last one, at its position."""
        nonlocal started, last
        with lock:
            if shared and last is not None:
                last.reopen()
                return last
            given, started = started, None
            is_at_hand = batch_sharding.on_one_cpu and isinstance(source, ArraySource | list | tuple)
            limit = prefetch if prefetch is not None else 0 if is_at_hand else 2
            if global_check is None:
                reader = BatchReader(node, sequence, form, limit, batch_sharding, given)
            else:
                assert isinstance(node, BatchSource), "Only its own node opens it."
                node.follow_graph_mesh()
                reader = SpmdBatchReader(global_check, node, sequence, form, limit, batch_sharding, given)
            last = reader if shared else None
            return reader

    node = BatchSource(name or "iterator", open_for, sequence, form, batch_sharding, count, resumes=resume)
    if (given := device if sharding is None else sharding) is not None:
        node.set_sharding(given)
    elif global_check is not None:
        node.set_sharding(default_batch_sharding(graph), is_default=True)
    return node.output


def default_batch_sharding(graph: Graph) -> jax.NamedSharding:
    """Returns the default sharding of batches of SPMD processes: over the axis `data` of the graph's mesh."""
    default = graph.default_sharding or placement.current_mesh_context()
    mesh = getattr(default, "mesh", None) or placement.global_mesh()
    return placement.data_sharding(mesh) or jax.NamedSharding(mesh, jax.P())


def _reject_text(who: str, batch: Any) -> None:
    for path, leaf in jax.tree.leaves_with_path(batch):
        if not isinstance(leaf, jax.ShapeDtypeStruct) and is_object(leaf):
            where = f" at {jax.tree_util.keystr(path)}" if path else ""
            raise TypeError(
                f"{who}: in SPMD processes batches are put on devices, which hold no text or objects, but the first "
                f"batch has {describe_value(leaf)}{where}. Turn it into numbers in the source."
            )


class BatchSource(Source):
    """The node behind `iterator`.

    Attributes:
        sequence: The sequence of its source.
        batch_sharding: The shardings of its batches.
        count: Counts the batches for runs.
    """

    def __init__(
        self,
        name: str,
        open_for: Callable[[Source, bool], BatchReader],
        sequence: BatchSequence,
        form: BatchSpec,
        batch_sharding: BatchSharding,
        count: BatchCount,
        *,
        resumes: bool,
    ) -> None:
        self.sequence, self._batch_spec, self.batch_sharding, self.count = sequence, form, batch_sharding, count
        super().__init__(name, open_for, form.spec, host_only=form.host_only, resumes=resumes, example=form.example)
        self._record_shardings()

    def set_sharding(self, sharding: Any, *, is_default: bool = False) -> None:
        """Sets the sharding of batches from now on; the arguments and errors are as in `BatchSharding`."""
        self.batch_sharding.set_sharding(sharding, is_default=is_default)
        self.example, self.output.spec = map(
            self.batch_sharding.typed_spec, (self._batch_spec.example, self._batch_spec.spec)
        )
        self._record_shardings()

    def allow_any_lengths(self) -> None:
        """Accepts batches of any lengths, unless the user has given a spec; see `BatchSpec` and `BatchSharding`."""
        self.batch_sharding.any_lengths |= self._batch_spec.allow_any_lengths()

    def follow_graph_mesh(self) -> None:
        """Puts batches of default sharding on the mesh that the graph got after this was made; for SPMD processes.

        Raises:
            ValueError: Operations on the batches were made for the earlier sharding.
        """
        mesh = getattr(self.graph.default_sharding, "mesh", None)
        own = placement.common_mesh(self.batch_sharding.shardings())
        if (
            not self.batch_sharding.is_default
            or mesh is None
            or own is None
            or not placement.are_incompatible(mesh, own)
        ):
            return
        before = jax.tree.map(lambda leaf: (leaf.shape, leaf.sharding), self.output.spec)
        self.set_sharding(default_batch_sharding(self.graph), is_default=True)
        if before != jax.tree.map(lambda leaf: (leaf.shape, leaf.sharding), self.output.spec):
            raise ValueError(
                f"{self.node_def}: the graph was put on the mesh {placement.describe_mesh(mesh)} after it was made. "
                f"Give it sharding=jax.NamedSharding(mesh, jax.P('data')), or make it after the variables."
            )

    @property
    def block_error(self) -> str | None:
        """See `Source`."""
        return self._batch_spec.block_error or self.batch_sharding.block_error

    def _record_shardings(self) -> None:
        """Puts the rest of the graph on the mesh of the batches, if they have one."""
        shardings = [
            sharding for sharding in self.batch_sharding.shardings() if isinstance(sharding, jax.NamedSharding)
        ]
        if self.batch_sharding.is_default and placement.is_spmd():
            shardings = []  # The rest of the graph decides.
        self.graph.record_shardings(self.node_def, shardings)
