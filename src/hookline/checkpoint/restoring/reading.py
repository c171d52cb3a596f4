"""Reading checkpoints: their values, lists of their variables, and a full verification."""

from __future__ import annotations

import collections
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax

from hookline import arguments
from hookline.checkpoint.directory import collective, layout, leaves
from hookline.checkpoint.directory.collective import Collective
from hookline.checkpoint.directory.leaves import Match
from hookline.checkpoint.directory.manifest import FILE_NAME, MAX_BYTES, Leaf, Manifest
from hookline.checkpoint.directory.state_file import latest_checkpoint, read_state
from hookline.checkpoint.saving import failures, host_copy
from hookline.checkpoint.saving.host_copy import PartialChecksums
from hookline.coordination import progress
from hookline.errors import NotFoundError
from hookline.regular_file import UnreadableFileError, walk_files

T = TypeVar("T")

# The number of bytes read at once, unless the largest leaf has more. Each read of Orbax has a cost of its own, which
# makes a restore slow if there are many.
_AT_ONCE_BYTES = 128 * 2**20

# The name of the folders with data; Orbax's other files describe the data.
_DATA = "d"
_ORBAX_FILES = ("_CHECKPOINT_METADATA", "state/_METADATA", "state/manifest.ocdbt")


def read(
    path: str,
    choose: Callable[[Manifest], dict[str, Match]],
    verify: bool = True,
    shardings: Mapping[str, Sequence[Any]] | None = None,
    group: Collective | None = None,
    on_host: bool = False,
) -> dict[str, Any]:
    """Reads values of a checkpoint.

    Args:
        path: The checkpoint.
        choose: Returns the parts to read, by name, given the manifest. Called again if the checkpoint is replaced while
            it is read.
        verify: Whether to compare the values with their checksums.
        shardings: For each match, by its name, the shardings of its arrays. `None` in place of one leaves the choice to
            JAX, as does a sharding that does not fit the array's shape.
        group: The processes that read together; by default all processes if a sharding spans several, else this one.
        on_host: Whether arrays stay in the host's memory, as NumPy arrays; so 64-bit arrays keep their dtype.

    Raises:
        OpError: As in `layout.read_manifest`; also `DataLossError`: the files are broken or differ from the saved
            values.
    """
    if group is None:
        given = [sharding for each in (shardings or {}).values() for sharding in each if sharding is not None]
        group = Collective(None) if all(sharding.is_fully_addressable for sharding in given) else collective.current()
    read_text = functools.partial(group.run_on_chief, functools.partial(layout.read_manifest_text, path))
    directory, text = read_text()
    while True:
        reading = _ReadAttempt(
            path, directory, choose(layout.parse_manifest(path, text)), verify, shardings or {}, on_host
        )
        values, failure = {}, None
        try:
            values = reading.read_all(group)
        except Exception as error:
            failure = error
        before = directory, text
        directory, text = read_text()
        if (directory, text) == before:
            if failure is not None:
                raise failure
            return values


class _ReadAttempt:
    """One attempt to read a checkpoint, which may be replaced meanwhile. Its arguments are those of `read`."""

    def __init__(
        self,
        path: str,
        directory: str,
        matches: dict[str, Match],
        verify: bool,
        shardings: Mapping[str, Sequence[Any]],
        on_host: bool,
    ) -> None:
        self._path, self._directory, self._matches = path, directory, matches
        self._verify, self._shardings, self._on_host = verify, shardings, on_host
        self._wanted = [leaf for match in matches.values() for leaf in match.leaves]
        self._stored: dict[str, Any] = {}
        self._use_counts = collections.Counter(
            leaf.name for leaf in self._wanted
        )  # How often each is still to be given.

    def read_all(self, group: Collective) -> dict[str, Any]:
        """Returns the values that this process has read; an error of one process is raised in all of them."""
        try:
            partials = group.gather_to_chief(functools.partial(self._map_errors, self._read))
            group.run_on_chief(functools.partial(self._map_errors, functools.partial(self._check, partials)))
            return {
                key: match.structure.unflatten([leaves.unpack(leaf, self._take(leaf.name)) for leaf in match.leaves])
                for key, match in self._matches.items()
            }
        finally:
            self._stored.clear()  # An error's traceback would keep the values alive.

    def _map_errors(self, part: Callable[[], T]) -> T:
        """Calls `part`, and maps its errors to errors of a checkpoint that could not be read."""
        try:
            return part()
        except Exception as error:
            mapped = failures.read_error(error, self._path, layout.alternatives_advice(self._path))
            if mapped is error:
                raise
            raise mapped from failures.without_tracebacks(error)

    def _read(self) -> dict[str, PartialChecksums]:
        """Reads this process's parts, and returns the partial checksums of leaves that it has only in part."""
        from hookline.checkpoint import orbax_io

        shardings = {
            leaf.name: sharding
            for key, match in self._matches.items()
            for leaf, sharding in zip(match.leaves, self._shardings.get(key, ()), strict=False)
            if sharding is not None and leaves.fits_sharding(leaf, sharding)
        }
        # Arrays without a sharding come over the host: Orbax would commit them to a device, and a jitted program
        # refuses arrays committed to different devices.
        abstract = {leaf.name: leaves.abstract(leaf, shardings.get(leaf.name)) for leaf in self._wanted}
        at_once = max([_AT_ONCE_BYTES, *map(leaves.nbytes, self._wanted)])
        _check_files(self._directory)
        once = {leaf.name: leaf for leaf in self._wanted if abstract[leaf.name] is not None}
        for part in batch_leaves(once.values(), at_once):
            read = orbax_io.read(os.path.abspath(self._directory), {name: abstract[name] for name in part}, at_once)
            if not self._on_host:
                read = {name: leaves.to_device(part[name], array) for name, array in read.items()}
            self._stored |= jax.block_until_ready(read)  # Until then they also take the host's memory.
            progress.count += 1
            del read
        for leaf in once.values():
            if (shape := tuple(self._stored[leaf.name].shape))[: len(leaf.shape)] != leaf.shape:
                raise ValueError(f"{leaf.name!r} has shape {shape} in its files, and {leaf.shape} in {FILE_NAME}.")
        partials: dict[str, PartialChecksums] = {}
        for leaf in once.values() if self._verify else ():
            if (found := host_copy.compare_checksums(leaf.pieces, self._stored[leaf.name])) is None:
                raise self._checksum_error(leaf)
            if found:
                partials[leaf.name] = found
        return partials

    def _check(self, partials: Sequence[Mapping[str, PartialChecksums]]) -> None:
        """Checks the pieces that no process has whole."""
        partly = set[str]().union(*partials)
        for leaf in self._wanted:
            if leaf.name in partly and not host_copy.partials_match(
                leaf.pieces, [own.get(leaf.name, {}) for own in partials]
            ):
                raise self._checksum_error(leaf)

    def _checksum_error(self, leaf: Leaf) -> ValueError:
        return ValueError(
            f"{leaf.name!r} is not the saved value: its checksum differs. Its data are in "
            f"{', '.join(_data_files(self._directory))}."
        )

    def _take(self, name: str) -> Any:
        """Returns a stored array without other references to it, because a session may donate its memory."""
        self._use_counts[name] -= 1
        return (
            self._stored[name].copy()
            if self._use_counts[name] and name in self._stored
            else self._stored.pop(name, None)
        )


def _check_files(directory: str) -> None:
    """Checks the files of a checkpoint, because Orbax and TensorStore open them unchecked.

    Raises:
        UnreadableFileError: One of them is not a regular file, or a metadata file is too large to be valid.
        OSError: A directory is missing or cannot be read. Orbax would report that there is nothing to load.
    """
    found = dict(walk_files(directory))
    for name, file in found.items():
        if os.path.basename(os.path.dirname(name)) != _DATA and file.stat().st_size > MAX_BYTES:
            raise UnreadableFileError(f"its file {name} has more than {MAX_BYTES:,} bytes")
    os.stat(os.path.join(directory, "state"))
    for name in _ORBAX_FILES:
        if name not in found and os.path.exists(os.path.join(directory, name)):
            raise UnreadableFileError(f"its file {name} is a directory, not a file")


def batch_leaves(wanted: Iterable[Leaf], at_once_bytes: int) -> Iterator[dict[str, Leaf]]:
    """Yields batches of leaves to read together, because during a read they take twice their size in host memory."""
    part: dict[str, Leaf] = {}
    left = at_once_bytes
    for leaf in wanted:
        if part and leaves.nbytes(leaf) > left:
            yield part
            part, left = {}, at_once_bytes
        part[leaf.name] = leaf
        left -= leaves.nbytes(leaf)
    yield part


def _data_files(directory: str) -> list[str]:
    """Returns the names of the largest files of a checkpoint that hold arrays."""
    found = []
    for folder, _, files in os.walk(directory):
        if os.path.basename(folder) == _DATA:
            found += [os.path.join(folder, file) for file in files]
    return [os.path.relpath(file, directory) for file in sorted(found, key=os.path.getsize, reverse=True)[:3]]


def verify(ckpt_dir_or_file: str) -> None:
    """Reads a whole checkpoint and compares it with the checksums that were taken when it was saved.

    Args:
        ckpt_dir_or_file: A checkpoint, or a directory for its newest checkpoint.

    Raises:
        NotFoundError: There is no such checkpoint.
        InvalidArgumentError: It was not written by hookline.
        DataLossError: Its files are broken or differ from the saved values; the message names the variable.

    Example:
        >>> import hookline as hl, tempfile
        >>> from hookline.train import Saver
        >>> w = hl.Variable([1.0, 2.0], name="w")
        >>> with hl.Session() as sess, tempfile.TemporaryDirectory() as logdir:
        ...     sess.run(hl.global_variables_initializer())
        ...     verify(Saver().save(sess, logdir + "/model.ckpt"))

    References:
        None in `tf.train`.
    """
    path = resolve_checkpoint(ckpt_dir_or_file, "verify")
    # One leaf at a time, because the model may be large. Without leaves, only the files are checked.
    for name in layout.read_manifest(path)[1].leaves or [None]:
        read(
            path,
            lambda now, name=name: leaf_matches(leaf for leaf in now.leaves.values() if leaf.name == name),
            on_host=True,
        )


def leaf_matches(chosen: Iterable[Leaf]) -> dict[str, Match]:
    """Returns a match for each leaf, without the structure of its variable."""
    return {leaf.name: Match((leaf,), jax.tree.structure(0)) for leaf in chosen}


def list_variables(ckpt_dir_or_file: str) -> list[tuple[str, tuple[int, ...]]]:
    """Lists the names and shapes in a checkpoint, without reading the values.

    Args:
        ckpt_dir_or_file: A checkpoint, or a directory for its newest checkpoint.

    Returns:
        Pairs of name and shape for all leaves, sorted by name, such as "w", or "params/dense/kernel" for a leaf of the
        variable "params".

    Raises:
        NotFoundError: There is no such checkpoint.
        InvalidArgumentError: It was not written by hookline.

    Example:
        >>> import hookline as hl, tempfile
        >>> from hookline.train import Saver
        >>> w = hl.Variable({"a": [1.0, 2.0], "b": 3.0}, name="w")
        >>> with hl.Session() as sess, tempfile.TemporaryDirectory() as logdir:
        ...     sess.run(hl.global_variables_initializer())
        ...     list_variables(Saver().save(sess, logdir + "/model.ckpt"))
        [('w/a/0', ()), ('w/a/1', ()), ('w/b', ())]

    References:
        `tf.train.list_variables`.
    """
    manifest = layout.read_manifest(resolve_checkpoint(ckpt_dir_or_file, "list_variables"))[1]
    return sorted((leaf.name, leaf.shape) for leaf in manifest.leaves.values())


def load_variable(ckpt_dir_or_file: str, name: str) -> Any:
    """Reads a variable, a leaf or a part of a variable from a checkpoint.

    Args:
        ckpt_dir_or_file: A checkpoint, or a directory for its newest checkpoint.
        name: A name from `list_variables`, the name of a variable, or a prefix of names up to a slash
            (`"optimizer/weights"`, `"params/encoder"`). The name of a variable's tensor (`"weights:0"`) means the
            variable.

    Returns:
        The value as it was saved. Parts of a variable, and containers other than dicts, lists and tuples, become nested
        dicts.

    Raises:
        NotFoundError: There is no such checkpoint, or it has no value of that name.
        DataLossError: The files are broken.

    Example:
        >>> import hookline as hl, tempfile
        >>> from hookline.train import Saver
        >>> w = hl.Variable({"a": 1.0, "b": 2.0}, name="w")
        >>> with hl.Session() as sess, tempfile.TemporaryDirectory() as logdir:
        ...     sess.run(hl.global_variables_initializer())
        ...     float(load_variable(Saver().save(sess, logdir + "/model.ckpt"), "w/b"))
        2.0

    References:
        `tf.train.load_variable`. This one also reads a whole structure or a part of one.
    """
    path = resolve_checkpoint(ckpt_dir_or_file, "load_variable")
    name = arguments.check_str("load_variable", "name", name).removesuffix(":0")
    return _nested(name, read(path, lambda manifest: _matches_for_name(name, path, manifest)))


def _matches_for_name(name: str, path: str, manifest: Manifest) -> dict[str, Match]:
    """Returns the matches for a name: a whole leaf or variable, or else the leaves below the name."""
    by_name, entry = manifest.leaves, manifest.variables.get(name)
    if name in by_name:
        return leaf_matches([by_name[name]])
    if entry is not None and (structure := entry.treedef) is not None:
        return {name: Match(entry.leaves, structure)}
    below = leaf_matches(leaf for key, leaf in by_name.items() if key.startswith(f"{name}/"))
    if not below:
        raise NotFoundError.from_message(
            f"Checkpoint '{path}' has no {name!r}. It has: {', '.join(sorted(by_name)) or 'nothing'}."
        )
    return below


def _nested(name: str, values: Mapping[str, Any]) -> Any:
    if name in values:
        return values[name]
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *folders, last = key.removeprefix(f"{name}/").split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
            if not isinstance(node, dict):
                raise ValueError(
                    f"load_variable: {name!r} has a value {key.rpartition('/')[0]!r} and one below it, {key!r}; load "
                    f"each by its full name."
                )
        if last in node:
            raise ValueError(f"load_variable: {name!r} has {key!r} and more below it; load each by its full name.")
        node[last] = value
    return tree


def resolve_checkpoint(path: str, who: str, name: str = "ckpt_dir_or_file") -> str:
    """Returns the newest checkpoint of a directory of checkpoints; returns any other path unchanged.

    Raises:
        TypeError: It is not a path; the message has the called function and the name of its argument.
        DataLossError: The newest checkpoint in the state file is incomplete.
    """
    path = layout.in_file_system(who, name, path)
    if layout.locate(path) is None and os.path.isdir(path):
        newest = latest_checkpoint(path)
        if (state := read_state(path)) is not None:
            layout.require_complete(state.model_checkpoint_path)
        return newest or path
    return path
