"""What every namespace does with a name that it does not have: say so, and name the nearest thing."""

from __future__ import annotations

import difflib
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

NEAREST: dict[str, str] = {
    "tf.estimator.Estimator": "tf.train.MonitoredTrainingSession, or hookline.train.Loop",
    "tf.keras": "tf.layers; or a Flax or Equinox model through hookline.op (docs/models.md)",
    "tf.saved_model": "tf.train.Saver",
    "tf.parse_example": "hookline.data",
    "tf.parse_single_example": "hookline.data",
    "tf.TFRecordReader": "tf.data, or hookline.data",
    "tf.while_loop": "hookline.op with jax.lax.while_loop",
    "tf.scan": "hookline.op with jax.lax.scan",
    "tf.map_fn": "hookline.op with jax.lax.map",
    "tf.nn.dynamic_rnn": "hookline.op with jax.lax.scan, or a Flax cell",
    "tf.nn.static_rnn": "hookline.op with jax.lax.scan, or a Flax cell",
    "tf.nn.rnn_cell": "hookline.op with jax.lax.scan, or a Flax cell",
    "tf.TensorArray": "hookline.op with jax.lax.scan",
    "tf.FIFOQueue": "tf.data, or hookline.data",
    "tf.tpu": "tf.train: XLA compiles for TPUs without more",
    "tf.train.batch": "tf.data: Dataset.batch",
    "tf.train.shuffle_batch": "tf.data: Dataset.shuffle and batch",
    "tf.train.string_input_producer": "tf.data: Dataset.from_tensor_slices",
    "tf.train.SyncReplicasOptimizer": "the optimizer itself: workers of hookline.distributed do not wait",
    "tf.train.QueueRunner": "tf.data, or tf.train.LooperThread",
    "tf.contrib.rnn": "hookline.op with jax.lax.scan, or a Flax cell",
    "tf.contrib.learn": "tf.train.MonitoredTrainingSession, or hookline.train.Loop",
    "tf.distribute": "tf.train.Server and hookline.distributed",
}
"""The nearest thing to what there is none of, where the spelling does not tell."""


def missing(namespace: str, names: Callable[[], Iterable[str]]) -> Callable[[str], Any]:
    """Returns a `__getattr__` for a module or an object: it raises `AttributeError` with advice.

    Args:
        namespace: What scripts call it, such as `tf.nn`.
        names: Returns the names that there are.
    """

    def __getattr__(name: str) -> Any:
        full = f"{namespace}.{name}"
        if name.startswith("__"):
            raise AttributeError(f"{namespace} has no attribute {name!r}")
        if full in NEAREST:
            advice = f"The nearest thing: {NEAREST[full]}."
        else:
            near = difflib.get_close_matches(name, list(names()), n=1, cutoff=0.6)
            found = f"{namespace}.{near[0]}" if near else "hookline.op, which makes an operation of any function of JAX"
            advice = f"The nearest thing: {found}."
        raise AttributeError(f"hookline has no {full}. {advice} See docs/coming-from-tf1.md.")

    return __getattr__


def public(*modules: types.ModuleType) -> dict[str, Any]:
    """Returns what modules offer, by name: what is in `PUBLIC` (names, or a dict), or else in `__all__`."""
    found: dict[str, Any] = {}
    for module in modules:
        names = getattr(module, "PUBLIC", None) or module.__all__
        found |= names if isinstance(names, dict) else {name: getattr(module, name) for name in names}
    return found


class Namespace(types.ModuleType):
    """A namespace that is no file, such as `tf.initializers`.

    Args:
        name: What scripts call it.
        names: What is in it.
    """

    def __init__(self, name: str, names: Mapping[str, Any]) -> None:
        super().__init__(name, f"`{name}`.")
        self.__dict__.update(names)
        self.__all__ = sorted(names)
        self._missing = missing(name, lambda: self.__all__)

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["_missing"](name)

    def __dir__(self) -> list[str]:
        return self.__all__
