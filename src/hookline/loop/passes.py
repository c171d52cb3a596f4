"""The passes of a loop over its data."""

from __future__ import annotations

import math
from typing import NamedTuple

from hookline import arguments, log
from hookline.coordination import peers
from hookline.data.iterator import BatchSource
from hookline.data.sequences import START, Restart
from hookline.data.sources import OneShot
from hookline.graph import Tensor
from hookline.graph.nodes import Source
from hookline.session import Session

_logger = log.of(__name__)


class Made(NamedTuple):
    """The passes that a loop has made over its data.

    Attributes:
        number: Their number; the one that the loop has stopped in counts.
        has_ended: Whether the last one is known to have ended.
    """

    number: int = 0
    has_ended: bool = False


class Passes:
    """The passes of a loop over its data, in each of its sessions.

    | session | passes, counted from step 0 |
    |---|---|
    | with `epochs` | as many |
    | without a directory, begins at the end of a pass | one more |
    | goes on in memory | to the end of the present one |
    | else | one |

    Args:
        batch: The batches; None without any.
    """

    def __init__(self, batch: Tensor | None) -> None:
        self._source = None if batch is None else batch.op
        self._node = self._source if isinstance(self._source, BatchSource) else None
        self._epochs: int | None = None
        self._words = Restart() if self._node is None else self._node.sequence.restart

    def check_end(self, last_step: int | None) -> None:
        """Raises `ValueError` for a training that has no end: without batches or a last step."""
        if self._source is None and last_step is None:
            raise ValueError(
                "Loop.run requires last_step with batches=None, because no data end the training. A hook may stop it "
                "earlier."
            )

    def steps_of(self, epochs: int | None) -> int | None:
        """Returns the number of batches of as many passes; None without a number.

        Raises:
            TypeError: `epochs` is not a whole number.
            ValueError: It is below 1; or the data have epochs of their own, no known length, or cannot be read again.
        """
        if epochs is None:
            return None
        arguments.whole("Loop", "epochs", epochs, at_least=1)
        node = self._node
        length = None if node is None else node.left(START)
        arrays = None if node is None else node.sequence.arrays
        if self._source is None:
            why = "it has no data to pass over (batches=None). Give last_step"
        elif node is None or isinstance(node.sequence, OneShot):
            why = "its batches come from an iterator, which gives each once. Give a function that makes it, or a list"
        elif not node.resumes:
            why = "each start begins its data anew (resume_data=False), and epochs are counted from step 0"
        elif arrays is not None and arrays.epochs != 1:
            why = f"its data have epochs of their own, hookline.data.arrays(..., epochs={arrays.epochs}). Leave out one"
        elif length is None:
            why = (
                "the number of its batches is not known. Give it, batches=hookline.data.iterator(source, length=...); "
                "or give a list, or hookline.data.arrays"
            )
        elif length == math.inf:
            why = "its data have no end. Give last_step"
        else:
            return int(epochs * length / node.sequence.passes)
        raise ValueError(f"Loop cannot train for epochs={epochs}: {why}.")

    def prepare(self, epochs: int | None) -> None:
        """Sets the number of passes of the next session; raises the errors of `steps_of`."""
        self.steps_of(epochs)
        self._epochs = epochs
        if self._node is not None:
            more = self._words.more if epochs is None else f"raise epochs={epochs}"
            self._node.sequence.passes, self._node.sequence.restart = epochs or 1, self._words._replace(more=more)

    def go_on(self, made: Made) -> None:
        """Lets a session that begins where the loop has stopped read to the end of that pass; before its positions."""
        if self._node is not None and self._epochs is None:
            self._node.sequence.passes = max(1, made.number)

    def begin_next(self, session: Session, made: Made) -> None:
        """Begins the next pass, if such a session is at the end of one."""
        if self._node is None or self._epochs is not None or not self._node.resumes:
            return
        reader = session.lowlevel.source(self._node)
        if not made.has_ended:
            reader.wait()  # It may have stopped at the last batch.
        if (made.has_ended or reader.has_ended) and reader.begin_pass() and peers.speaks():
            _logger.info("Loop: its data had ended at step %d, and it makes the next pass.", session.global_step)

    def made(self, session: Session) -> Made:
        """Returns the passes that a session has made."""
        if self._node is None or not self._node.resumes:
            return Made()
        reader = session.lowlevel.source(self._node)
        return Made(reader.passes_made, reader.has_ended)

    def warn_early_end(self, session: Session, first_step: int, last_step: int | None) -> None:
        """Warns if the data have ended before the last step; that no run was made at all, the session has said."""
        step, source = session.global_step, self._source
        is_early = self._epochs is None and last_step is not None and first_step < step < last_step
        if is_early and peers.speaks() and isinstance(source, Source) and session.lowlevel.source(source).has_ended:
            _logger.warning(
                "Loop: the data ended at global step %d, before last_step=%d. Give more data, more passes (epochs=), "
                "or data without an end: hookline.data.arrays(..., epochs=None).",
                step,
                last_step,
            )
