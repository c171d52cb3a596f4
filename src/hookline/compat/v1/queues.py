"""Queue runners: none are needed, because iterators read ahead by themselves."""

from __future__ import annotations

from typing import Any

from hookline.compat.v1.config import say_once


def start_queue_runners(
    sess: Any = None, coord: Any = None, daemon: bool = True, start: bool = True, collection: Any = "queue_runners"
) -> list[Any]:
    """Returns no thread: there are no queues to fill.

    References:
        `tf.train.start_queue_runners`.
    """
    say_once("tf.train.start_queue_runners", "there are no queues; tf.data reads ahead by itself")
    return []
