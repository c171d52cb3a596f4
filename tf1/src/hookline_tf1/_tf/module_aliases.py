"""Module aliases: the modules below `tensorflow` that scripts import from.

For example, `from tensorflow.examples.tutorials.mnist import input_data` becomes
`from hookline_tf1.examples.tutorials.mnist import input_data`.
"""

from __future__ import annotations

import operator
import sys
import types
import urllib.request  # noqa: F401 - TensorFlow loads it, so scripts that import urllib alone use it.
from typing import Any

from hookline_tf1 import contrib, data, distributions, gfile
from hookline_tf1._examples import mnist_data, mnist_network
from hookline_tf1._machinery.migration_hints import NEAREST
from hookline_tf1._machinery.namespaces import Gathered, Namespace
from hookline_tf1._rules.constant_folding import constant_value
from hookline_tf1._tf import control_flow_ops
from hookline_tf1._tf.device_lib import list_local_devices
from hookline_tf1.contrib import _layer_collections, _projector
from hookline_tf1.train import _moving_averages
from hookline_tf1.train._saver import CheckpointReader

_DATASETS = ("contrib.learn.datasets.mnist", "contrib.learn.python.learn.datasets.mnist")
_OPERATIONS = (
    *("array", "check", "clip", "control_flow", "data_flow", "functional", "init", "io", "linalg", "logging", "lookup"),
    *("math", "parsing", "random", "resource_variable", "script", "sparse", "standard", "state", "string"),
)
_OF_OPERATIONS = ("framework_ops", "gradients", "gradients_impl", "variable_scope", "variables")
_OF_DISTRIBUTIONS = ("bernoulli", "categorical", "distribution", "kullback_leibler", "normal", "uniform")
_OF_LAYERS = ("initializers", "layers", "regularizers")
_OF_NN = ("candidate_sampling_ops", "embedding_ops", "nn", "nn_impl", "nn_ops", "rnn")
_OF_FRAMEWORK = ("constant_op", "dtypes", "ops", "random_seed", "sparse_tensor", "tensor_shape", "tensor_util")
_OF_SUMMARY = ("summary", "summary_iterator", "writer.writer", "writer.writer_cache")
_OF_TRAINING = (
    *("adagrad", "adam", "basic_session_run_hooks", "checkpoint_management", "coordinator", "ftrl", "gradient_descent"),
    *("input", "learning_rate_decay", "momentum", "monitored_session", "optimizer", "queue_runner", "rmsprop", "saver"),
    *("session_manager", "session_run_hook", "supervisor", "training", "training_util", "checkpoint_utils"),
    *("device_setter", "evaluation", "py_checkpoint_reader", "queue_runner_impl", "server_lib"),
)
_OF_SAVED = ("", ".builder", ".loader", ".signature_constants", ".signature_def_utils", ".tag_constants", ".utils")
_OF_CELLS = ("", ".python", ".python.ops", ".python.ops.core_rnn_cell", ".python.ops.rnn", ".python.ops.rnn_cell")
_OF_KERAS = ("", ".backend", ".callbacks", ".datasets", ".layers", ".losses", ".models", ".optimizers", ".utils")
_NETS = (
    *("", ".alexnet", ".inception", ".inception_v1", ".inception_v2", ".inception_v3", ".overfeat"),
    *(".resnet_utils", ".resnet_v1", ".resnet_v2", ".vgg"),
)

_MODULES: dict[str, types.ModuleType] = {
    "contrib.layers.python.layers": Gathered("tf.contrib.layers", [contrib.layers]),
    **dict.fromkeys((f"contrib.layers.python.layers.{name}" for name in _OF_LAYERS), contrib.layers),
    "contrib.layers.python.layers.utils": _layer_collections,
    "contrib.data": Gathered("tf.contrib.data", [data, data.experimental]),
    "contrib.framework.python.framework": Gathered("tf.contrib.framework", [contrib.framework]),
    "contrib.framework.python.framework.checkpoint_utils": contrib.framework,
    "contrib.framework.python.ops": Gathered("tf.contrib.framework", [contrib.framework]),
    "contrib.framework.python.ops.variables": contrib.framework,
    **dict.fromkeys((*_DATASETS, "examples.tutorials.mnist.input_data"), mnist_data),
    "examples.tutorials.mnist.mnist": mnist_network,
    "contrib.losses": contrib.losses,
    "contrib.slim": contrib.slim,
    "contrib.slim.python.slim.learning": contrib.slim.learning,
    "contrib.slim.python.slim.model_analyzer": contrib.slim.model_analyzer,
    "contrib.tensorboard.plugins.projector": _projector,
    "contrib.util": Namespace("tf.contrib.util", {"constant_value": constant_value}),
    "python.client.device_lib": Namespace("device_lib", {"list_local_devices": list_local_devices}),
    "python.lib.io.file_io": gfile,
    "python.pywrap_tensorflow": Namespace("pywrap_tensorflow", {"NewCheckpointReader": CheckpointReader}),
    "python.layers.utils": _layer_collections,
    "python.ops.distributions": Gathered("tf.distributions", [distributions]),
    **dict.fromkeys((f"python.ops.distributions.{name}" for name in _OF_DISTRIBUTIONS), distributions),
    "python.training.moving_averages": _moving_averages,
    "python.util.nest": Namespace("nest", vars(contrib.framework.nest)),
}
"""Aliases of modules."""

_BESIDE: dict[str, dict[str, Any]] = {
    "python.framework.tensor_util": {"constant_value": constant_value},
    "python.ops.control_flow_ops": {"with_dependencies": control_flow_ops.with_dependencies},
}
"""Names in these modules that are in no namespace of `tf`."""

_GATHERED: dict[str, str] = {
    **{f"python.ops.{name}_ops": "tf nn image" for name in _OPERATIONS},
    **dict.fromkeys((f"python.ops.{name}" for name in _OF_OPERATIONS), "tf nn"),
    **dict.fromkeys((f"python.framework.{name}" for name in _OF_FRAMEWORK), "tf"),
    **dict.fromkeys((f"python.training.{name}" for name in _OF_TRAINING), "train"),
    **dict.fromkeys((f"python.ops.{name}" for name in _OF_NN), "nn"),
    **dict.fromkeys(("core.framework.graph_pb2", "core.framework.summary_pb2", "core.util.event_pb2"), "tf"),
    **dict.fromkeys(("core.protobuf.config_pb2", "core.protobuf.saver_pb2"), "tf"),
    **dict.fromkeys(("python.client.session", "python.framework.function"), "tf"),
    "python.framework.errors": "errors",
    "python.framework.errors_impl": "errors",
    "python.layers.base": "layers",
    "python.layers.convolutional": "layers",
    "python.layers.core": "layers",
    "python.layers.layers": "layers",
    "python.layers.normalization": "layers",
    "python.layers.pooling": "layers",
    "python.lib.io.tf_record": "python_io",
    "python.ops.image_ops": "image",
    **dict.fromkeys((f"python.ops.losses.{name}" for name in ("losses", "losses_impl", "util")), "losses"),
    **dict.fromkeys(("python.ops.metrics", "python.ops.metrics_impl"), "metrics"),
    "python.platform.app": "app",
    "python.platform.flags": "flags",
    "python.platform.gfile": "gfile",
    "python.platform.test": "test",
    "python.platform.tf_logging": "logging",
    **dict.fromkeys((f"python.summary.{name}" for name in _OF_SUMMARY), "summary"),
    "python.util.compat": "compat",
}
"""Aliases of one or several namespaces of `tf`."""

_NOTHING: dict[str, str] = {
    "contrib.slim.python.slim.evaluation": "tf.contrib.slim.evaluation",
    **dict.fromkeys((f"contrib.slim.python.slim.nets{name}" for name in _NETS), "tf.contrib.slim.nets"),
    **dict.fromkeys(("core.example.example_pb2", "core.example.feature_pb2"), "tf.train"),
    "python.feature_column.feature_column": "tf.feature_column",
    **dict.fromkeys((f"python.keras{name}" for name in _OF_KERAS), "tf.keras"),
    "python.ops.tensor_array_ops": "tf",
    "python.client.timeline": "tf.python.client.timeline",
    "python.debug": "tf.python.debug",
    "python.framework.graph_util": "tf.graph_util",
    "python.ops.ctc_ops": "tf.nn",
    "python.ops.rnn_cell": "tf.nn.rnn_cell",
    "python.ops.rnn_cell_impl": "tf.nn.rnn_cell",
    **dict.fromkeys((f"python.saved_model{name}" for name in _OF_SAVED), "tf.saved_model"),
    "python.tools.freeze_graph": "tf.graph_util",
    "python.tools.inspect_checkpoint": "tf.python.tools.inspect_checkpoint",
    "python.util.deprecation": "tf.python.util.deprecation",
}
"""Empty modules, which raise a migration hint for each name. The hints for `tf.contrib` add more."""

_ONLY_IMPORTED: dict[str, str] = {
    **dict.fromkeys((f"contrib.rnn{name}" for name in _OF_CELLS), "tf.contrib.rnn"),
    **dict.fromkeys((f"contrib.slim.nets{name}" for name in _NETS), "tf.contrib.slim.nets"),
    **dict.fromkeys((f"keras{name}" for name in _OF_KERAS), "tf.keras"),
    **{name.removeprefix("tf."): name for name in NEAREST if name.startswith("tf.contrib.")},
}
"""The same for import lines only: as attributes these modules do not exist, and access raises the hint."""


def register(root: types.ModuleType) -> None:
    """Makes the aliases importable below a module, and attributes of their parent modules."""

    def put(path: str, at: types.ModuleType, name: str, module: types.ModuleType) -> types.ModuleType:
        setattr(at, name, module)
        if isinstance(module, Gathered | Namespace):
            module.__name__ = f"{root.__name__}{path}"
        sys.modules[f"{root.__name__}{path}"] = module
        return module

    def made(path: str, names: str) -> Any:
        modules = [root if name == "tf" else operator.attrgetter(name)(root) for name in names.split()]
        if path in _BESIDE:
            modules.append(Namespace(f"tf.{path}", _BESIDE[path]))
        return modules[0] if len(modules) == 1 and modules[0] is not root else Gathered(f"tf.{path}", modules)

    nothing = {path: Namespace(called, {}) for path, called in _NOTHING.items()}
    gathered = {path: made(path, names) for path, names in _GATHERED.items()}
    for path, module in {**_MODULES, **gathered, **nothing, "compat.v1": root}.items():
        *above, name = path.split(".")
        at, reached = root, ""
        for part in above:
            reached += f".{part}"
            at = put(reached, at, part, vars(at).get(part) or Namespace(f"tf{reached}", {}))
        put(f".{path}", at, name, module)
    imported = {path: Namespace(called, {}) for path, called in _ONLY_IMPORTED.items()}
    for path, module in imported.items():
        above, _, name = path.rpartition(".")
        if above in imported:
            setattr(imported[above], name, module)
        module.__name__ = f"{root.__name__}.{path}"
        sys.modules.setdefault(module.__name__, module)
    # As in TensorFlow, where this name means a function, too.
    sys.modules[f"{root.__name__}.contrib.framework.python.ops.arg_scope"] = contrib.framework
    _give_hints(root.__name__)


def _give_hints(root: str) -> None:
    """Makes import lines raise the migration hints of the namespaces below a module."""
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{root}.") and hasattr(module, "__getattr__"):
            # If a module has a path, Python searches a missing name as a module, with the finders.
            vars(module).setdefault("__path__", [])
    sys.meta_path.append(_HintFinder(root))


class _HintFinder:
    """The last module finder, which finds nothing but raises the migration hint of the attribute.

    Args:
        root: The module below which it raises hints.
    """

    def __init__(self, root: str) -> None:
        self.root = root

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        """Raises a namespace's `AttributeError` as an import error, for a name below the root."""
        parent, _, name = fullname.rpartition(".")
        if f"{parent}.".startswith(f"{self.root}."):
            try:
                getattr(sys.modules[parent], name)
            except AttributeError as error:
                raise ModuleNotFoundError(str(error)) from None
