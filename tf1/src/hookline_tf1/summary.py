"""`tf.summary`: summaries with TensorFlow's tags, and writers with TensorFlow's arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hookline import Graph, GraphKeys, Tensor
from hookline import summary as core
from hookline.extend import clean_name, tags_below
from hookline.summary import FileWriterCache
from hookline_tf1._machinery.graphs import get_default_graph, name_scope
from hookline_tf1._machinery.ignored_arguments import ignored
from hookline_tf1._machinery.namespaces import offered
from hookline_tf1.python_io import tf_record_iterator

__all__ = [
    "FileWriter",
    "FileWriterCache",
    "audio",
    "audio_summary",
    "histogram",
    "histogram_summary",
    "image",
    "image_summary",
    "merge",
    "merge_all",
    "scalar",
    "scalar_summary",
    "text",
]

Collections = Iterable[str] | None


def summary_iterator(path: str) -> Iterator[Any]:
    """Yields the events in an event file.

    References:
        `tf.train.summary_iterator`.
    """
    return map(core.Event.FromString, tf_record_iterator(path))


_MESSAGES = ("Event", "SessionLog", "Summary")
_missing, __dir__ = offered("tf.summary", lambda: [*__all__, *_MESSAGES])


def scalar(name: str, tensor: Any, collections: Collections = None, family: str | None = None) -> Tensor:
    """Makes a summary of one number.

    References:
        `tf.summary.scalar`.
    """
    return _tagged(core.scalar, name, family, tensor, collections=collections)


def histogram(name: str, values: Any, collections: Collections = None, family: str | None = None) -> Tensor:
    """Makes a summary of the distribution of values.

    References:
        `tf.summary.histogram`, with hookline's buckets.
    """
    return _tagged(core.histogram, name, family, values, collections=collections)


def image(
    name: str, tensor: Any, max_outputs: int = 3, collections: Collections = None, family: str | None = None
) -> Tensor:
    """Makes a summary of images.

    References:
        `tf.summary.image`.
    """
    return _tagged(core.image, name, family, tensor, max_outputs=max_outputs, collections=collections)


def audio(
    name: str,
    tensor: Any,
    sample_rate: Any,
    max_outputs: int = 3,
    collections: Collections = None,
    family: str | None = None,
) -> Tensor:
    """Makes a summary of sound.

    References:
        `tf.summary.audio`.
    """
    return _tagged(core.audio, name, family, tensor, sample_rate, max_outputs=max_outputs, collections=collections)


def text(name: str, tensor: Any, collections: Collections = None) -> Tensor:
    """Makes a summary of text.

    References:
        `tf.summary.text`.
    """
    return _tagged(core.text, name, None, tensor, collections=collections)


def merge(inputs: Any, collections: Collections = None, name: str | None = None) -> Tensor:
    """Merges several summaries into one.

    References:
        `tf.summary.merge`.
    """
    with name_scope(name, "Merge"):
        return core.merge(inputs, _each(collections), name or "MergeSummary")


def merge_all(key: str = GraphKeys.SUMMARIES, scope: str | None = None, name: str | None = None) -> Tensor | None:
    """Merges all summaries of a collection of the default graph into one; None if there are none.

    References:
        `tf.summary.merge_all`.
    """
    summaries = get_default_graph().get_collection(key, scope)
    return merge(summaries, name=name) if summaries else None


def _each(collections: Collections) -> list[str] | None:
    """Returns the collections as a list; as in TensorFlow, a string means one collection for each letter."""
    return None if collections is None else list(collections)


def _tagged(
    make: Callable[..., Tensor], name: str, family: str | None, *args: Any, collections: Collections, **kwargs: Any
) -> Tensor:
    """Makes a summary with its operation's name as tag: below its family, and numbered if the name is taken."""
    graph = get_default_graph()
    label = clean_name(name if family is None else f"{family}/{name}")
    tag = graph.free_name(f"{graph.current_scope}{label}")
    with graph.name_scope(None), tags_below(family):
        return make(tag, *args, collections=_each(collections), **kwargs)


class FileWriter(core.FileWriter):
    """A writer of event files that also accepts the graph listing of `Graph.as_graph_def`.

    References:
        `tf.summary.FileWriter`.
    """

    def __init__(
        self,
        logdir: str,
        graph: Any = None,
        max_queue: int = 10,
        flush_secs: float = 120,
        graph_def: Any = None,
        filename_suffix: str | None = None,
        session: Any = None,
    ) -> None:
        ignored("tf.summary.FileWriter", session=session)
        super().__init__(logdir, _graph(graph or graph_def), max_queue, flush_secs, filename_suffix=filename_suffix)

    def add_graph(self, graph: Any, global_step: Any = None, graph_def: Any = None) -> None:
        """Writes a graph."""
        shown = _graph(graph or graph_def)
        if shown is not None:
            super().add_graph(shown, global_step)

    def add_meta_graph(self, meta_graph_def: Any, global_step: Any = None) -> None:
        """Has no effect: graphs have no protobuf message."""
        ignored("tf.summary.FileWriter", add_meta_graph=True)


def _graph(given: Any) -> Graph | None:
    """Returns the graph to show: the default graph for a listing of it."""
    return given if isinstance(given, Graph) or given is None else get_default_graph()


# Names before TF 1.0, with tags outside of name scopes ----------------------------------------------------------------


def scalar_summary(tags: str, values: Any, collections: Collections = None, name: str | None = None) -> Tensor:
    """Makes a summary of one number; its tag is `tags`, outside of all name scopes."""
    ignored("tf.scalar_summary", name=name)
    return _outside(core.scalar, tags, values, collections=collections)


def histogram_summary(tag: str, values: Any, collections: Collections = None, name: str | None = None) -> Tensor:
    """Makes a summary of the distribution of values; its tag is `tag`, outside of all name scopes."""
    ignored("tf.histogram_summary", name=name)
    return _outside(core.histogram, tag, values, collections=collections)


def image_summary(
    tag: str, tensor: Any, max_images: int = 3, collections: Collections = None, name: str | None = None
) -> Tensor:
    """Makes a summary of images; its tag is `tag`, outside of all name scopes."""
    ignored("tf.image_summary", name=name)
    return _outside(core.image, tag, tensor, max_outputs=max_images, collections=collections)


def audio_summary(
    tag: str,
    tensor: Any,
    sample_rate: Any,
    max_outputs: int = 3,
    collections: Collections = None,
    name: str | None = None,
) -> Tensor:
    """Makes a summary of sound; its tag is `tag`, outside of all name scopes."""
    ignored("tf.audio_summary", name=name)
    return _outside(core.audio, tag, tensor, sample_rate, max_outputs=max_outputs, collections=collections)


def _outside(make: Callable[..., Tensor], tag: str, *args: Any, collections: Collections, **kwargs: Any) -> Tensor:
    with get_default_graph().name_scope(None):
        return make(tag, *args, collections=_each(collections), **kwargs)


def __getattr__(name: str) -> Any:
    # The protobuf messages are slow to import.
    return getattr(core, name) if name in _MESSAGES else _missing(name)
