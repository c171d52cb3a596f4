"""Checks of operations' arguments on the device, where a compiled program raises no error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Check(NamedTuple):
    """A check of an operation's arguments, whose failure is an error of the run.

    The device evaluates it in each run that computes the operation, and keeps the first failure, as a latch does. The
    session raises the error when it reads its latches, at the latest in `Session.deliver_pending`. Nothing waits for
    it.

    Args:
        failed: A function of the arguments, in the form of `Operation.bind`. It returns a tuple: whether the check
            fails, and up to `DETAILS` integers that describe the failure.
        message: A function of `DETAILS` integers, zeros for those that were left out. It returns the text of the error.

    Example:
        >>> import hookline as hl
        >>> from hookline.extend import Check, Function
        >>> node = Function(lambda size: size, "checked", (hl.constant(-3),))
        >>> node.check = Check(lambda bound: (bound[0][0] < 0, bound[0][0]), lambda size, *_: f"{size} is negative")
        >>> with hl.Session() as sess:
        ...     sess.run(node.output)
        ...     sess.deliver_pending()
        Traceback (most recent call last):
        ...
        hookline.errors.InvalidArgumentError: ...-3 is negative...
    """

    failed: Callable[[Any], Any]
    message: Callable[..., str]

    DETAILS = 4
    """The largest number of integers that describe a failure."""

    def row(self, bound: Any) -> jax.Array:
        """Returns the vector that programs carry: 1 if the check fails, else 0, and `DETAILS` integers.

        Args:
            bound: The arguments of the operation.

        Raises:
            TypeError: `failed` returned something other than a tuple of numbers.
        """
        found = self.failed(bound)
        if not isinstance(found, tuple) or not 0 < len(found) <= 1 + self.DETAILS or any(map(jnp.shape, found)):
            raise TypeError(
                f"The function `failed` of a Check must return a tuple: whether it fails, and at most {self.DETAILS} "
                f"integers. It returned {found!r}."
            )
        left_out = [0] * (1 + self.DETAILS - len(found))
        return jnp.stack([jnp.asarray(number).astype(jnp.int32) for number in (*found, *left_out)])
