"""`Saver` with TensorFlow's order of arguments, and a reader of checkpoints without a graph."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from hookline import get_default_graph, global_variables
from hookline import train as core
from hookline_tf1._machinery.ignored_arguments import ignored


class Saver(core.Saver):
    """Saves and restores the variables that exist when it is created, or the given ones.

    A checkpoint is a directory in hookline's format, which TensorFlow does not read.

    References:
        `tf.train.Saver`.
    """

    def __init__(
        self,
        var_list: Any = None,
        reshape: bool = False,
        sharded: bool = False,
        max_to_keep: int | None = 5,
        keep_checkpoint_every_n_hours: float | None = 10000.0,
        name: str | None = None,
        restore_sequentially: bool = False,
        saver_def: Any = None,
        builder: Any = None,
        defer_build: bool = False,
        allow_empty: bool = False,
        write_version: Any = None,
        pad_step_number: bool = False,
        save_relative_paths: bool = False,
        filename: str | None = None,
    ) -> None:
        ignored("tf.train.Saver", sharded=sharded, restore_sequentially=restore_sequentially, saver_def=saver_def)
        ignored("tf.train.Saver", builder=builder, write_version=write_version, filename=filename)
        ignored("tf.train.Saver", save_relative_paths=save_relative_paths)
        if var_list is None and not defer_build:
            var_list = global_variables()
            if not var_list and not allow_empty:
                raise ValueError("Saver: there are no variables to save; create the Saver after them.")
        super().__init__(
            var_list,
            max_to_keep=max_to_keep,
            keep_checkpoint_every_n_hours=keep_checkpoint_every_n_hours,
            name=name,
            reshape=reshape,
            allow_empty=allow_empty,
            pad_step_number=pad_step_number,
        )

    def build(self) -> None:
        """Does nothing: there is nothing to build."""

    def save(
        self,
        sess: Any,
        save_path: str,
        global_step: Any = None,
        latest_filename: str | None = None,
        meta_graph_suffix: str = "meta",
        write_meta_graph: bool = True,
        write_state: bool = True,
        strip_default_attrs: bool = False,
        save_debug_info: bool = False,
        **without_effect: Any,
    ) -> str:
        """Writes a checkpoint and returns its path; see `hookline.train.Saver.save`. There are no meta graphs.

        If `save_path` is a directory, with a slash at its end, checkpoints in it are called `model.ckpt`.
        """
        ignored("tf.train.Saver.save", write_state=not write_state, save_debug_info=save_debug_info)
        ignored(
            "tf.train.Saver.save",
            strip_default_attrs=strip_default_attrs,
            meta_graph_suffix=meta_graph_suffix != "meta",
        )
        return super().save(sess, _with_name(save_path), global_step, latest_filename, **without_effect)

    def restore(self, sess: Any, save_path: Any) -> None:
        """Restores the variables from a checkpoint; see `hookline.train.Saver.restore`.

        Raises:
            ValueError: There is no checkpoint at that path, or it is None, as `latest_checkpoint` returns without a
                checkpoint: scripts catch this error, and initialise their variables.
        """
        if save_path is None:
            raise ValueError("Can't load save_path when it is None: there is no checkpoint to restore.")
        save_path = _with_name(save_path)
        if not os.path.exists(save_path):
            whose = _TENSORFLOWS if os.path.exists(f"{os.fspath(save_path)}.index") else ""
            raise ValueError(f"The passed save_path is not a valid checkpoint: {os.fspath(save_path)}{whose}")
        super().restore(sess, save_path)

    def set_last_checkpoints(self, last_checkpoints: list[str]) -> None:
        """Sets the checkpoints of an earlier run to manage, oldest first."""
        self.recover_last_checkpoints(last_checkpoints)

    def set_last_checkpoints_with_time(self, last_checkpoints_with_time: list[tuple[str, float]]) -> None:
        """Sets the checkpoints of an earlier run to manage, oldest first; reads their times from the checkpoints."""
        self.recover_last_checkpoints([path for path, _ in last_checkpoints_with_time])


# The prefixes of hooks' states in a checkpoint, as in hookline's docs/checkpoints.md.
_HOOK_STATES = "hooks/"
_TENSORFLOWS = (
    ". It is a checkpoint of TensorFlow, which hookline does not read: get the values with TensorFlow's "
    "tf.train.load_checkpoint, and set the variables with Variable.load"
)


def _with_name(save_path: Any) -> Any:
    """Returns a path prefix of checkpoints; adds the hooks' name to a directory such as `runs/a/`."""
    is_directory = isinstance(save_path, str) and save_path.endswith("/")
    return f"{save_path}model.ckpt" if is_directory else save_path


class CheckpointReader:
    """Reads the variables in a checkpoint by their names.

    References:
        The reader that `tf.train.NewCheckpointReader` and `tf.train.load_checkpoint` return.
    """

    def __init__(self, filepattern: str) -> None:
        self._path = os.fspath(filepattern)
        self._shapes = dict(list_variables(self._path))

    def has_tensor(self, tensor_str: str) -> bool:
        """Returns whether the checkpoint has a variable of that name."""
        return tensor_str in self._shapes

    def get_tensor(self, tensor_str: str) -> np.ndarray:
        """Returns the value of the variable of that name."""
        return np.asarray(core.load_variable(self._path, tensor_str))

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        """Returns the shapes of all variables, by name."""
        return {name: list(shape) for name, shape in self._shapes.items()}

    def get_variable_to_dtype_map(self) -> dict[str, Any]:
        """Returns the dtypes of all variables, by name."""
        return {name: self.get_tensor(name).dtype for name in self._shapes}


def list_variables(ckpt_dir_or_file: str) -> list[tuple[str, list[int]]]:
    """Lists the names and shapes of variables in a checkpoint, or in the newest one of a directory.

    References:
        `tf.train.list_variables`. `hookline.train.list_variables` also lists the other contents of a checkpoint.
    """
    found = core.list_variables(ckpt_dir_or_file)
    return [(name, list(shape)) for name, shape in found if not name.startswith(_HOOK_STATES)]


def load_checkpoint(ckpt_dir_or_file: str) -> CheckpointReader:
    """Opens a checkpoint, or the newest one in a directory, for reading.

    Raises:
        ValueError: The directory has no checkpoint.
    """
    newest = core.latest_checkpoint(ckpt_dir_or_file) if os.path.isdir(ckpt_dir_or_file) else None
    return CheckpointReader(newest or ckpt_dir_or_file)


def write_graph(graph_or_graph_def: Any, logdir: str, name: str, as_text: bool = True) -> str:
    """Writes a graph's listing to a file and returns its path. Graphs have no protobuf message.

    References:
        `tf.train.write_graph`.
    """
    ignored("tf.train.write_graph", as_text=not as_text)
    graph = graph_or_graph_def
    text = graph if isinstance(graph, str) else getattr(graph, "as_text", get_default_graph().as_text)()
    os.makedirs(logdir, exist_ok=True)
    path = os.path.join(logdir, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path
