"""The same batches from each kind of source."""

from __future__ import annotations

import numpy as np

import hookline as hl

LAST_STEP = 40
"""How many steps there are; the sources give more batches than that."""

_EPOCHS, _EXAMPLES, _BATCH = 6, 27, 3  # Nine batches an epoch: saves and epochs have no step in common for long.


def examples():
    """Returns all features and targets."""
    features = np.random.default_rng(0).normal(size=(_EXAMPLES, 4)).astype(np.float32)
    return features, features @ np.linspace(-1, 1, 4, dtype=np.float32)


def shuffled():
    """Returns arrays that are shuffled over several epochs."""
    return hl.data.from_arrays(examples(), _BATCH, shuffle_seed=7, epochs=_EPOCHS)


class Loader:
    """An iterable with the state of the iterator that it made last, as torchdata's loaders are."""

    def __init__(self):
        self._at, self._batches = 0, list(shuffled())

    def __iter__(self):
        while self._at < len(self._batches):
            self._at += 1
            yield self._batches[self._at - 1]

    def state_dict(self):
        return {"at": self._at}

    def load_state_dict(self, state):
        self._at = state["at"]


ONE_SHOT = "one-shot iterator"
"""The kind that knows no way back once its process has ended."""

SOURCES = {
    "arrays": shuffled,
    "list": lambda: list(shuffled()),
    "generator function": lambda: lambda: (batch for batch in shuffled()),
    "state_dict": Loader,
    ONE_SHOT: lambda: (batch for batch in shuffled()),
}
