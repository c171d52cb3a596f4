"""The front end for TF 1.x scripts: all differences between their graphs and the core's."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

import jax
import numpy as np

import hookline as core
from hookline import train
from hookline.extend import Constant as CoreConstant
from hookline.extend import FrontEnd, Update
from hookline_tf1._machinery.tensors import Constant, Operation, Tensor
from hookline_tf1._rules import constant_folding
from hookline_tf1._tf.check_ops import raise_failed
from hookline_tf1._tf.cond import BranchedUpdate
from hookline_tf1._tf.session import Session
from hookline_tf1._tf.variables import CoreVariable
from hookline_tf1.train._monitored_session import MonitoredSession, SingularMonitoredSession

_SCRIPT_CLASSES: dict[type, type] = {
    core.Operation: Operation,
    CoreConstant: Constant,
    Update: BranchedUpdate,
    core.Tensor: Tensor,
    core.Variable: CoreVariable,
    core.Session: Session,
    train.MonitoredSession: MonitoredSession,
    train.SingularMonitoredSession: SingularMonitoredSession,
}


class ScriptFrontEnd(FrontEnd):
    """Adds TensorFlow's behaviour to graphs: further methods, NumPy values, checks that raise, fed sizes."""

    hidden_modules = ("hookline_tf1",)

    def class_for(self, kind: type) -> type:
        """Returns TensorFlow's class for `kind`; combines both for another subclass of the core's class."""
        return _class_for(kind)

    def convert_results(self, values: list[Any]) -> list[Any]:
        """Converts the values to NumPy arrays."""
        arrays = [leaf for leaf in jax.tree.leaves(values) if isinstance(leaf, jax.Array) and leaf.is_fully_addressable]
        if len(arrays) > 1:  # Their copies to the host overlap.
            for array in arrays:
                array.copy_to_host_async()
        return [jax.tree.map(_as_numpy, value) for value in values]

    def check_run(self, graph: Any) -> None:
        """Raises the errors of `tf.Assert` and the other checks, and an error for an empty graph."""
        if not graph.version:
            raise RuntimeError("The Session graph is empty. Add operations to the graph before calling run().")
        raise_failed(graph)

    def is_static(self, op: Any, computed: Collection[Any]) -> bool:
        """Whether a shape or another size in the program depends on the operation."""
        return constant_folding.is_static(op, computed)


@functools.cache
def _class_for(kind: type) -> type:
    for base in kind.__mro__:
        if base in _SCRIPT_CLASSES.values():
            return kind
        if base in _SCRIPT_CLASSES:
            own = _SCRIPT_CLASSES[base]
            return own if base is kind else type(kind.__name__, (own, kind), {"__module__": own.__module__})
    return kind


def _as_numpy(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return value[()]
    if not isinstance(value, jax.Array) or jax.numpy.issubdtype(value.dtype, jax.dtypes.extended):
        # A string array may belong to a constant, and the caller may write to the result.
        return value.copy() if isinstance(value, np.ndarray) and _is_kept(value) else value
    found = np.array(value)
    return found[()] if found.ndim == 0 else found


def _is_kept(array: np.ndarray) -> bool:
    return array.dtype == object or not array.flags.writeable
