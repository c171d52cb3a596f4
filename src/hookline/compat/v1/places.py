"""The modules of TensorFlow's from which scripts import, besides `tensorflow` itself.

`from tensorflow.examples.tutorials.mnist import input_data` becomes
`from hookline.compat.v1.examples.tutorials.mnist import input_data`: these are the modules that such lines find.
"""

from __future__ import annotations

import sys
import types

from hookline.compat.v1 import (
    app,
    arrays,
    assigning,
    clipping,
    contrib,
    control,
    flags,
    gfile,
    graphs,
    initializers,
    logging,
    math,
    mnist,
    nn,
    nodes,
    random,
    tensors,
    variable_scopes,
    variables,
)
from hookline.compat.v1.contrib import projector
from hookline.compat.v1.namespace import Namespace, public

_OPS = public(
    arrays, assigning, clipping, control, graphs, initializers, math, nodes, random, variable_scopes, variables
) | {
    "Operation": tensors.Operation,
    "Tensor": tensors.Tensor,
}
_OF_OPS = ("array", "clip", "control_flow", "init", "math", "random", "state")

_PLACES: dict[str, types.ModuleType | dict[str, object]] = {
    "contrib.layers.python.layers": contrib.layers,
    "contrib.learn.datasets.mnist": mnist,
    "contrib.learn.python.learn.datasets.mnist": mnist,
    "contrib.slim": contrib.slim,
    "contrib.tensorboard.plugins.projector": projector,
    "examples.tutorials.mnist.input_data": mnist,
    "python.framework.ops": _OPS,
    **{f"python.ops.{name}_ops": _OPS for name in _OF_OPS},
    "python.ops.nn": nn,
    "python.ops.nn_ops": nn,
    "python.ops.variable_scope": _OPS,
    "python.ops.variables": _OPS,
    "python.platform.app": app,
    "python.platform.flags": flags,
    "python.platform.gfile": gfile,
    "python.platform.tf_logging": logging,
}


def register(root: types.ModuleType) -> None:
    """Makes the places importable below a module, and attributes of the modules above them."""

    def put(path: str, at: types.ModuleType, name: str, place: types.ModuleType) -> types.ModuleType:
        setattr(at, name, place)
        sys.modules[f"{root.__name__}{path}"] = place
        return place

    for path, place in {**_PLACES, "compat.v1": root}.items():
        *above, name = path.split(".")
        at, reached = root, ""
        for part in above:
            reached += f".{part}"
            at = put(reached, at, part, vars(at).get(part) or Namespace(f"tf{reached}", {}))
        put(f".{path}", at, name, place if isinstance(place, types.ModuleType) else Namespace(f"tf.{path}", place))
