"""`tf.contrib.tensorboard.plugins.projector`: configures TensorBoard's projector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hookline.extend import log
from hookline_tf1._machinery.namespaces import missing

_MESSAGES = ("EmbeddingInfo", "ProjectorConfig", "SpriteMetadata")
PUBLIC = [*_MESSAGES, "visualize_embeddings"]

_logger = log.get_logger("hookline.tf1")
_missing = missing("tf.contrib.tensorboard.plugins.projector", lambda: PUBLIC)


def visualize_embeddings(summary_writer: Any, config: Any) -> None:
    """Writes a configuration for TensorBoard to the folder of a writer or to a path.

    TensorBoard cannot read embeddings from hookline's checkpoints. It shows those whose `tensor_path` names a text file
    with one row a line, its numbers separated by tabs.
    """
    unseen = [embedding.tensor_name for embedding in config.embeddings if not embedding.tensor_path]
    if unseen:
        _logger.warning(
            "TensorBoard's projector cannot read %s from hookline's checkpoints: write its value with numpy.savetxt "
            "(delimiter='\\t'), and name that file as the embedding's tensor_path.",
            ", ".join(unseen),
        )
    from google.protobuf import text_format

    folder = Path(getattr(summary_writer, "get_logdir", lambda: summary_writer)())
    (folder / "projector_config.pbtxt").write_text(text_format.MessageToString(config), encoding="utf-8")


def __getattr__(name: str) -> Any:
    """Returns the protobuf messages from TensorBoard."""
    if name not in _MESSAGES:
        return _missing(name)
    from tensorboard.plugins.projector import projector_config_pb2

    return getattr(projector_config_pb2, name)
