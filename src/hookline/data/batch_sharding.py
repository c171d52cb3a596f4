"""Puts batches on a device, or shards them over the devices of a mesh."""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from hookline.data.batches import LastBatch, Padded, is_object
from hookline.data.from_arrays import ArraySource
from hookline.errors import InvalidArgumentError
from hookline.graph.nodes import spec as specs
from hookline.graph.placement import are_incompatible, as_sharding, common_mesh, describe_mesh, is_spmd

Index = tuple[slice, ...]
Blocks = tuple[tuple[int, ...], ...]
"""The indices of blocks in each dimension."""

_PAD = "last_batch='drop', or last_batch='pad', which makes each batch a pair, (batch, mask of the real examples)"


class BatchSharding:
    """The shardings of a source's batches.

    In SPMD processes (of one multi-process SPMD job), an array of a batch is one global array. `from_arrays` gives each
    process the whole array, other sources its part.

    Args:
        who: The iterator, for messages.
        example: A batch, or a spec of one; `None` if none is known.
        source: The source. If it is `from_arrays` or a list, later batches are checked, too.
        last_batch: As in `iterator`.

    Attributes:
        sharding: A device or a sharding, or a tree of them that is a prefix of a batch; `None` leaves it to JAX.
        is_default: Whether it is a default, not the user's choice.
        is_part: Whether the source gives only this process's part of a run's batch.
        any_lengths: Whether the lengths of arrays may differ from the first batch's. In SPMD processes the number of
            examples must not differ: at its end one process may have fewer than the others.
    """

    def __init__(self, who: str, example: Any = None, source: Any = None, last_batch: LastBatch = "keep") -> None:
        self._who, self._source, self._last_batch = who, source, last_batch
        # Not the batch itself, which would stay in memory.
        self._example = jax.tree.map(outline, example)
        self.sharding: Any = None
        self.is_default = self.any_lengths = False
        self._is_spmd = is_spmd()
        self.is_part = self._is_spmd and not isinstance(source, ArraySource)
        self._known: dict[Any, list[Any]] = {}
        self._stay_on_host: bool | None = None

    def set_sharding(self, sharding: Any, *, is_default: bool = False) -> None:
        """Sets the sharding of batches from now on.

        Args:
            sharding: As in the attribute.
            is_default: It is not the user's choice. Arrays that are on its mesh already stay as they are.

        Raises:
            TypeError: It is neither a sharding nor a tree of them.
            ValueError: It does not fit a batch that is already known.
        """
        for leaf in jax.tree.leaves(sharding):
            if not isinstance(leaf, jax.Device | Sharding):
                advice = f", which has no mesh: give jax.NamedSharding(mesh, {leaf})" * isinstance(leaf, PartitionSpec)
                raise TypeError(f"{self._who} requires shardings or devices to put batches on, got {leaf!r}{advice}.")
        if self._is_spmd:
            self._check_spmd(sharding)
        self.sharding, self.is_default = sharding, is_default
        self._known.clear()
        if sharding is None or self._example is None:
            return
        if problem := self._problem(self._example, self._targets(self._example)):
            raise ValueError(f"{self._who}: the first batch {problem}")
        for which, batch in self._later_batches():
            if problem := self._problem(batch, self._targets(batch), is_later=True):
                raise ValueError(f"{self._who}: {which} {problem}")

    @property
    def stay_on_host(self) -> bool:
        """Whether NumPy arrays are passed to the program as they are, which on CPU is faster than a `device_put`."""
        if self._stay_on_host is None:
            default = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
            self._stay_on_host = default is None and jax.default_backend() == "cpu"
        return self.sharding is None and self._stay_on_host

    @property
    def on_one_cpu(self) -> bool:
        """Whether batches go to a single CPU device, so that the program shares the processor with the source."""
        if self.sharding is None:
            return self.stay_on_host
        shardings = map(as_sharding, jax.tree.leaves(self.sharding))
        devices = {device for sharding in shardings for device in sharding.addressable_devices}
        return len(devices) == 1 and devices.pop().platform == "cpu"

    @property
    def block_error(self) -> str | None:
        """The reason why blocks cannot have this sharding; `None` if they can."""
        for sharding in jax.tree.leaves(self.sharding):
            if not isinstance(sharding, jax.Device | NamedSharding | SingleDeviceSharding):
                return f"puts its batches over {sharding}, which has no form for blocks of batches"
        return None

    def device_put(self, batch: Any, outline: Any = None) -> Any:
        """Puts the arrays of a batch on their devices; text and objects stay on the host.

        In SPMD processes each puts its own part, without a collective, so any thread may do it.

        Args:
            batch: A batch, or a block of batches, which has one more dimension in front.
            outline: For a block, the outline of one of its batches.

        Raises:
            InvalidArgumentError: Its sharding cannot split it, or it is on another mesh.
        """
        leaves, structure = jax.tree.flatten(batch)
        if self.sharding is None and not any(map(is_object, leaves)):
            return jax.device_put(batch)
        alone = leaves if outline is None else jax.tree.leaves(outline)
        kind = outline is None, structure, tuple([(np.shape(leaf), getattr(leaf, "sharding", None)) for leaf in alone])
        targets = self._known.get(kind)
        if targets is None:
            single = batch if outline is None else outline
            targets = self._targets(single)
            if problem := self._problem(single, targets, is_later=True):
                raise InvalidArgumentError.from_message(f"{self._who}: a batch {problem}")
            if outline is not None:
                targets = [_of_block(target) for target in targets]
            self._known[kind] = targets
        if self._is_spmd:
            given = zip(leaves, targets, strict=True)
            return jax.tree.unflatten(
                structure, [make_global_array(leaf, to, is_part=self.is_part) for leaf, to in given]
            )
        numbers = [index for index, leaf in enumerate(leaves) if not is_object(leaf)]
        placed = jax.device_put([leaves[index] for index in numbers], [targets[index] for index in numbers])
        for index, array in zip(numbers, placed, strict=True):
            leaves[index] = array
        return jax.tree.unflatten(structure, leaves)

    def typed_spec(self, spec: Any) -> Any:
        """Returns the spec of batches with this sharding: explicit axes are a part of types.

        Args:
            spec: The spec of batches as the source gives them, which may be one process's parts.
        """
        if spec is specs.UNKNOWN or self.sharding is None or self._example is None:
            return spec
        leaves, structure = jax.tree.flatten(spec)
        targets = self._targets(self._example)
        if self.is_part:
            shapes = [leaf.shape for leaf in jax.tree.leaves(self._example)]
            leaves = [
                jax.ShapeDtypeStruct(shard_slices(target, len(shape)).global_shape(shape), leaf.dtype)
                for leaf, shape, target in zip(leaves, shapes, targets, strict=True)
            ]
        return jax.tree.unflatten(structure, map(_typed, leaves, targets))

    def resume_problem(self, arrays: ArraySource, position: tuple[int, int], passes: int) -> str | None:
        """Returns the reason why arrays cannot continue at an epoch and example, and the remedy; `None` if they can.

        The last batch of that epoch may have another size than in other epochs, which were checked before.

        Args:
            arrays: The arrays.
            position: The epoch and the example.
            passes: How many times their epochs are repeated.
        """
        epoch, example = position
        size = arrays.last_size_from(example)
        is_over = arrays.epochs is not None and epoch >= arrays.epochs * passes
        if self.sharding is None or self._example is None or self._last_batch != "keep" or size is None or is_over:
            return None
        batch = jax.tree.map(lambda leaf: _of_size(leaf, size), self._example)
        problem = self._problem(batch, self._targets(batch), is_later=True)
        return problem and f"with batch_size={arrays.batch_size} the last batch of epoch {epoch} {problem}"

    def process_shards(self) -> list[list[Any]]:
        """Returns, for each array of a batch that processes give in parts, the part of each process."""
        example = jax.tree.leaves(self._example)
        return [
            shard_slices(target, leaf.ndim).parts
            for leaf, target in zip(example, self._targets(self._example), strict=True)
        ]

    def shardings(self) -> list[Any]:
        """Returns the shardings of batches; without one, the shardings of the first batch's arrays, or None."""
        if self.sharding is not None:
            return jax.tree.leaves(self.sharding)
        return [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(self._example)]

    def _later_batches(self) -> Iterator[tuple[str, Any]]:
        """Yields a name and an outline of each batch that differs in shape from the first."""
        if self._last_batch != "keep":
            return
        if isinstance(self._source, ArraySource) and (size := self._source.last_size) is not None:
            yield "the last batch of an epoch", jax.tree.map(lambda leaf: _of_size(leaf, size), self._example)
        seen = {str(self._example)}
        for number, batch in enumerate(self._source if isinstance(self._source, list | tuple) else (), start=1):
            known = jax.tree.map(outline, batch)
            if str(known) not in seen and jax.tree.structure(known) == jax.tree.structure(self._example):
                yield f"batch {number}", known
            seen.add(str(known))

    def _targets(self, batch: Any) -> list[Any]:
        """Returns the sharding of each array of a batch."""
        content = batch.batch if isinstance(batch, Padded) else batch
        given: list[Any] = []
        try:
            jax.tree.map(
                lambda sharding, part: given.extend([sharding] * len(jax.tree.leaves(part))),
                self.sharding,
                content,
                is_leaf=lambda node: node is None,
            )
        except ValueError:
            raise ValueError(
                f"{self._who} requires one sharding, or a tree of them in the structure of a batch: a batch is "
                f"{jax.tree.structure(content)}, the tree is {jax.tree.structure(self.sharding)}."
            ) from None
        leaves = jax.tree.leaves(content)
        targets = [self._target(leaf, sharding) for leaf, sharding in zip(leaves, given, strict=True)]
        if isinstance(batch, Padded):
            first = next(target for leaf, target in zip(leaves, targets, strict=True) if np.ndim(leaf))
            is_named = isinstance(first, NamedSharding)
            targets.append(NamedSharding(first.mesh, PartitionSpec(*first.spec[:1])) if is_named else first)
        return targets

    def _target(self, leaf: Any, sharding: Any) -> Any:
        if not isinstance(sharding, NamedSharding):
            return sharding
        if self.is_default and getattr(getattr(leaf, "sharding", None), "mesh", None) == sharding.mesh:
            return leaf.sharding
        # Such as the smaller batch at the end of an epoch: a script for one process must run in several.
        is_free = self.is_default and self._is_spmd and not self.is_part
        if not np.ndim(leaf) or (is_free and not _divides(sharding, leaf)):
            return NamedSharding(sharding.mesh, PartitionSpec())
        return sharding

    def _problem(self, batch: Any, targets: list[Any], *, is_later: bool = False) -> str | None:
        """Returns the reason why a batch cannot have these shardings, and the remedy; `None` if it can."""
        of_first = (
            jax.tree.leaves(self._example) if self.is_part and self._example is not None else [None] * len(targets)
        )
        for (path, leaf), target, first in zip(jax.tree.leaves_with_path(batch), targets, of_first, strict=True):
            if is_object(leaf) or not isinstance(target, Sharding):
                continue
            where = f" (in batch{jax.tree_util.keystr(path)})" if path else ""
            if first is not None and (problem := self._problem_of_part(leaf, first, where)):
                return problem
            mesh = common_mesh([target])
            own = common_mesh([getattr(leaf, "sharding", None)])
            if mesh is not None and own is not None and own.size > 1 and are_incompatible(mesh, own):
                return (
                    f"is on the mesh {describe_mesh(own)}{where}, but must be put on another, {describe_mesh(mesh)}. "
                    f"Give NumPy arrays, or arrays on that mesh."
                )
            if not isinstance(target, NamedSharding) or not isinstance(target.mesh, Mesh):
                continue
            shape = np.shape(leaf)
            if len(target.spec) > len(shape):
                return (
                    f"has an array of shape {shape}{where}, but {target.spec} splits {len(target.spec)} dimensions. "
                    f"Give a tree of shardings in the structure of a batch."
                )
            for dim, (length, axes) in enumerate(zip(shape, target.spec, strict=False)):
                parts, names = num_shards(target.mesh, axes), _describe_axes(axes)
                if self.is_part:
                    parts, names = (
                        shard_slices(target, len(shape)).num_blocks(dim),
                        f"the devices of this process and {names}",
                    )
                if isinstance(length, int) and length % parts:
                    what = f"{length} examples" if dim == 0 else f"the length {length} in dimension {dim}"
                    return (
                        f"has {what}{where}, which cannot be split into {parts} equal parts over {names} of the mesh "
                        f"{describe_mesh(target.mesh)}. {self._remedy(parts, dim, is_later)}"
                    )
        return None

    def _problem_of_part(self, leaf: Any, first: Any, where: str) -> str | None:
        """Returns the reason why a part cannot form an array with other processes' parts; `None` if it can."""
        shape = np.shape(leaf)
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            return f"is in several processes already{where}. Give only the part of this process."
        if not shape:
            return (
                f"has a scalar{where}, which may differ between processes. Give an array with one value for each "
                f"example."
            )
        if shape != first.shape and not (self.any_lengths and shape[0] == first.shape[0]):
            remedy = (
                f"Choose {_PAD}."
                if shape[0] != first.shape[0]
                else "Only lengths that are symbols of jax.export.symbolic_shape in the iterator's spec=... may "
                "differ, and they must be the same in all processes."
            )
            return (
                f"has the shape {shape}{where}, but the first has {first.shape}: SPMD processes require batches of one "
                f"size. {remedy}"
            )
        return None

    def _check_spmd(self, sharding: Any) -> None:
        """Raises `ValueError` unless the sharding covers all processes and, for parts, is a `NamedSharding`."""
        all_processes = set(range(jax.process_count()))
        for leaf in jax.tree.leaves(sharding):
            if {device.process_index for device in as_sharding(leaf).device_set} != all_processes:
                raise ValueError(
                    f"{self._who}: its sharding must cover all {jax.process_count()} SPMD processes, but {leaf} does "
                    f"not. Leave it out to split batches over all devices; or give a sharding on a mesh of all "
                    f"devices: "
                    f"jax.make_mesh((jax.device_count(),), ('data',), axis_types=(jax.sharding.AxisType.Auto,))."
                )
            if self.is_part and not isinstance(leaf, NamedSharding):
                raise ValueError(
                    f"{self._who}: SPMD processes give parts of a batch, which requires a jax.NamedSharding, got "
                    f"{leaf}."
                )

    def _remedy(self, parts: int, dim: int, is_later: bool) -> str:
        if dim:
            return "Give a sharding that does not split this dimension."
        if is_later:
            return f"Choose another batch size, or {_PAD}."
        is_of_loop = self.is_default and not self._is_spmd
        whole = ", or batch_sharding=jax.P(), which replicates the batch" * is_of_loop
        return f"Choose a batch size that is a multiple of {parts}{whole}."


def _describe_axes(axes: Any) -> str:
    """Describes axes of a mesh in words."""
    names = axis_names(axes)
    return f"the ax{'is' if len(names) == 1 else 'es'} {' and '.join(map(repr, names))}"


def _divides(sharding: NamedSharding, leaf: Any) -> bool:
    """Returns whether a sharding splits an array, or an outline, into equal shards; true for unknown dimensions."""
    try:
        sharding.shard_shape(tuple(np.shape(leaf)))
    except (TypeError, ValueError):
        return not all(isinstance(dim, int) for dim in np.shape(leaf))
    return True


def _of_block(target: Any) -> Any:
    """Returns the sharding of a block of such arrays, whose dimension in front is not split."""
    if not isinstance(target, NamedSharding):
        return target
    return target.update(spec=PartitionSpec(None, *target.spec))


def outline(leaf: Any) -> Any:
    """Returns the outline of an array, without its values: its shape, dtype and sharding."""
    if is_object(leaf):
        return ""
    array = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=getattr(array, "sharding", None))


def _of_size(outline: Any, size: int) -> Any:
    return jax.ShapeDtypeStruct((size, *outline.shape[1:]), outline.dtype)


def _typed(spec: Any, target: Any) -> Any:
    if not isinstance(target, NamedSharding) or AxisType.Explicit not in target.mesh.axis_types:
        return spec
    is_open = not all(isinstance(dim, int) for dim in spec.shape)
    return spec if is_open else jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=target)


class ShardSlices:
    """The part of an array that each process has under a sharding.

    The sharding splits each dimension into blocks. The part of a process consists of its devices' blocks in ascending
    order.

    Four devices in two processes, in the mesh (data=2, model=2), and arrays of 8 examples of 6 features:

        spec                 blocks   process 0            process 1            a part     the array
        P("data")            (2, 1)   rows 0               rows 1               (4, 6)     (8, 6)
        P(None, "model")     (1, 2)   columns 0 and 1      columns 0 and 1      (8, 6)     (8, 6)
        P(("data", "model")) (4, 1)   rows 0 and 1         rows 2 and 3         (4, 6)     (8, 6)

    "rows 0" is the block 0 of the rows. In the second case both have the same part, and must give the same numbers.

    Args:
        sharding: The sharding.
        ndim: The number of dimensions.

    Attributes:
        parts: For each process, the indices of its blocks in each dimension. They are equal for processes with the same
            part.

    Raises:
        ValueError: The parts of processes differ in form.
    """

    def __init__(self, sharding: jax.NamedSharding, ndim: int) -> None:
        names = [*sharding.spec, *[None] * (ndim - len(sharding.spec))]
        self._counts = tuple(num_shards(sharding.mesh, axes) for axes in names)
        blocks_of: dict[int, set[tuple[int, ...]]] = collections.defaultdict(set)
        for device, index in sharding.devices_indices_map(self._counts).items():
            blocks_of[device.process_index].add(tuple([part.start or 0 for part in index]))
        self.parts: list[Blocks] = [
            tuple(tuple(sorted({block[dim] for block in blocks_of[process]})) for dim in range(ndim))
            for process in sorted(blocks_of)
        ]
        forms = {tuple(map(len, part)) for part in self.parts}
        is_complete = all(
            len(blocks_of[process]) == math.prod(map(len, part))
            for process, part in zip(sorted(blocks_of), self.parts, strict=True)
        )
        if len(forms) > 1 or not is_complete:
            raise ValueError(
                f"SPMD processes require parts of one form, but under {sharding} their forms differ. Order the devices "
                f"of the mesh by process."
            )
        self._own = self.parts[sorted(blocks_of).index(jax.process_index())]

    def num_blocks(self, dim: int) -> int:
        """Returns the number of blocks in a dimension of a process's part."""
        return len(self._own[dim])

    def global_shape(self, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the shape of the global array, given the shape of a part."""
        return tuple(
            [length * count // len(own) for length, count, own in zip(shape, self._counts, self._own, strict=True)]
        )

    def local_index(self, index: Index | None, shape: tuple[int, ...]) -> Index:
        """Returns the index, within this process's part, of a block of the global array; `shape` is the part's."""
        found = []
        for part, length, own, count in zip(index or (), shape, self._own, self._counts, strict=True):
            if count == 1:
                found.append(slice(None))
                continue
            size = length // len(own)
            begin = own.index((part.start or 0) // size) * size if size else 0
            found.append(slice(begin, begin + size))
        return tuple(found)


@functools.lru_cache(maxsize=256)
def shard_slices(sharding: jax.NamedSharding, ndim: int) -> ShardSlices:
    """Returns the cached `ShardSlices` of arrays with this number of dimensions."""
    return ShardSlices(sharding, ndim)


def num_shards(mesh: Any, axes: Any) -> int:
    """Returns the number of blocks into which these axes of a mesh split a dimension."""
    return math.prod(mesh.shape[name] for name in axis_names(axes))


def axis_names(axes: Any) -> list[str]:
    """Returns the names in an entry of a `PartitionSpec`."""
    return [axes] if isinstance(axes, str) else list(axes) if isinstance(axes, tuple) else []


def make_global_array(leaf: Any, sharding: Any, *, is_part: bool) -> jax.Array:
    """Makes a global array from the arrays of all processes; each process fills its own devices.

    This uses no collective and no compiled program.

    Args:
        leaf: The whole array, or the part of this process.
        sharding: The sharding.
        is_part: Whether it is a part.
    """
    if isinstance(leaf, jax.Array) and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = np.asarray(leaf)
    if not is_part:
        return jax.make_array_from_callback(leaf.shape, sharding, lambda index: leaf[index])
    divided, shape = shard_slices(sharding, leaf.ndim), leaf.shape
    return jax.make_array_from_callback(
        divided.global_shape(shape), sharding, lambda index: leaf[divided.local_index(index, shape)]
    )
