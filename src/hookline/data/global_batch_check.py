"""Checks, before the first batch is taken, that SPMD processes give parts of one global batch."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from hookline import log
from hookline.coordination.process_group import ProcessGroup
from hookline.data import batches
from hookline.data.batch_sharding import BatchSharding
from hookline.data.from_arrays import ArraySource
from hookline.errors import FailedPreconditionError, InvalidArgumentError, OpError
from hookline.graph.nodes import spec as specs

_logger = log.get_logger(__name__)

UNKNOWN_LENGTH = (
    "SPMD processes end at the same run, so each must know the number of its batches beforehand, but this source has "
    "no length. Write `batches = hookline.data.iterator(source, num_batches=math.inf)` if it has no end, else the "
    "number of batches of this process in place of math.inf, and pass these batches where the source was, such as to "
    "train.Loop. Or give a list or hookline.data.from_arrays."
)
"""The reason why a source of unknown length is refused, and the remedy."""


class BatchReport(NamedTuple):
    """The facts that a process reports about its batches.

    Attributes:
        error: The error that it got instead of a batch, as text.
        form: A description of the first batch.
        batches_left: The number of batches, from the first on; None if it is unknown.
        examples: The fingerprint of `from_arrays`; None for other sources, which give parts.
        crcs: Checksums of the arrays of the first batch, if that is a part.
    """

    error: str | None
    form: str
    batches_left: float | None
    examples: list[Any] | None
    crcs: list[int]


class GlobalBatchCheck:
    """Compares the batches of all SPMD processes, and agrees on their number.

    Args:
        group: The processes.
        who: The iterator, for messages.
        source: The source of this process.
        batch_sharding: The shardings of the batches.
        batches_left: Returns the number of batches of the source after a position; None if it is unknown.
        check_disjoint: Whether different parts must have different values.
    """

    def __init__(
        self,
        group: ProcessGroup,
        who: str,
        source: Any,
        batch_sharding: BatchSharding,
        batches_left: Callable[[dict[str, Any]], float | None],
        *,
        check_disjoint: bool,
    ) -> None:
        self.peers, self._who, self._source, self._batch_sharding = group, who, source, batch_sharding
        self._batches_left, self._check_disjoint = batches_left, check_disjoint
        self._has_warned = False

    def agree(
        self, about: str, batch: Any, position: dict[str, Any], error: BaseException | None
    ) -> tuple[float, OpError | None]:
        """Compares the first batches. This is a collective call: all processes make it at the same point.

        Args:
            about: A name for these batches.
            batch: The first batch, as it was read; None if there is none.
            position: The position after it.
            error: The error that was raised instead, if any.

        Returns:
            The number of batches, the smallest of any process; and the error. Both are the same in all processes.
        """
        every = [
            BatchReport(*report)
            for report in self.peers.all_gather(f"data of {about}", self._report(batch, position, error))
        ]
        if found := self._difference(every):
            return 0, found
        lefts = [math.inf if report.batches_left is None else report.batches_left for report in every]
        if len(set(lefts)) > 1 and self.peers.is_chief and not self._has_warned:
            self._has_warned = True
            longest = max(range(len(lefts)), key=lefts.__getitem__)
            _logger.warning(
                "%s: all processes end after %g batches, because process %d has no more. Others have up to %g, and "
                "drop the rest (process %d).",
                self._who,
                min(lefts),
                lefts.index(min(lefts)),
                lefts[longest],
                longest,
            )
        return min(lefts), None

    def _report(self, batch: Any, position: dict[str, Any], error: BaseException | None) -> BatchReport:
        if isinstance(error, StopIteration):
            error = None
        elif error is None and batch is None:
            error = RuntimeError("it reads no further")
        left, examples, crcs = 0.0, None, []
        if batch is not None:
            left = math.inf  # `from_arrays` ends by itself.
            if self._batch_sharding.is_part:
                further = self._batches_left(position)
                left = None if further is None else max(1 + further, 0)
                crcs = [batches.crc32c(leaf) for leaf in jax.tree.leaves(batch)]
        if isinstance(self._source, ArraySource):
            examples = self._source.fingerprint()
        form = "" if batch is None else specs.describe(specs.of_value(batch))
        return BatchReport(None if error is None else f"{type(error).__name__}: {error}", form, left, examples, crcs)

    def _difference(self, every: list[BatchReport]) -> OpError | None:
        """Returns the error in the reports of the processes, if any."""
        for process, report in enumerate(every):
            if report.error is not None:
                return FailedPreconditionError.from_message(
                    f"{self._who}: process {process} could not read its first batch: {report.error}"
                )
        if (process := _first_difference([report.examples for report in every])) is not None:
            return self._error(
                "hookline.data.from_arrays requires the same arrays, batch_size (of all processes together), "
                f"shuffle_seed and epochs in every process, but process {process} and process 0 differ: "
                f"{_format(every[process].examples)} and {_format(every[0].examples)}. For a part of the examples, "
                f"give a function, `lambda: hookline.data.from_arrays(part, size)`, with the batch size of one process."
            )
        some = [report for report in every if report.form]
        if some and (process := _first_difference([report.form or some[0].form for report in every])) is not None:
            return self._error(
                f"all processes must give batches of one form, but process {process} gives {every[process].form}, and "
                f"process 0 gives {every[0].form}."
            )
        if any(report.batches_left is None for report in every):
            return self._error(UNKNOWN_LENGTH)
        if self._batch_sharding.is_part and len(some) == len(every):
            return self._difference_of_parts([report.crcs for report in every])
        return None

    def _difference_of_parts(self, crcs: list[list[int]]) -> OpError | None:
        shards_of_leaves = self._batch_sharding.process_shards()
        for leaf, of_processes in enumerate(shards_of_leaves):
            known: dict[Any, int] = {}
            for process, shard in enumerate(of_processes):
                first = known.setdefault(shard, process)
                if crcs[process][leaf] != crcs[first][leaf]:
                    return self._error(
                        f"processes {first} and {process} have the same part of each batch under its sharding, but "
                        f"gave different data. Give equal data in processes with the same part; or give a sharding "
                        f"that splits it."
                    )
        alike: dict[tuple[int, ...], list[int]] = collections.defaultdict(list)
        for process, found in enumerate(crcs):
            alike[tuple(found)].append(process)
        for same in alike.values():
            if (
                self._check_disjoint
                and len({tuple([shards[process] for shards in shards_of_leaves]) for process in same}) > 1
            ):
                return self._error(
                    f"processes {', '.join(map(str, same))} gave the same first batch, but each must give its own "
                    "part. Give hookline.data.from_arrays((x, y), batch_size=...), of which each process reads its "
                    f"rows. Or split the source: with process_index=jax.process_index() and process_count="
                    f"jax.process_count(), or for a list or a Grain dataset "
                    f"[jax.process_index()::jax.process_count()]. Equal parts are allowed by hookline.data.iterator("
                    f"source, check_disjoint=False)."
                )
        return None

    def _error(self, why: str) -> InvalidArgumentError:
        return InvalidArgumentError.from_message(f"{self._who}: {why}")


def _first_difference(values: list[Any]) -> int | None:
    """Returns the index of the first value that differs from the one at index 0."""
    return next((index for index, value in enumerate(values) if value != values[0]), None)


def _format(examples: list[Any] | None) -> str:
    if examples is None:
        return "none"
    count, size, seed, epochs, crc = examples
    return f"{count} examples (crc32c {crc:08x}), batch_size={size}, shuffle_seed={seed}, epochs={epochs}"
