"""Makes summary tensors, whose values are serialized `Summary` messages."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import jax.numpy as jnp

from hookline import arguments, errors, log
from hookline.graph import GraphKeys, Tensor, get_default_graph, host_op, op, placement
from hookline.graph.nodes import spec as specs
from hookline.summary import encode

_log = log.get_logger(__name__)
_TAGS = "summary_tags"
_TAG_PREFIX: ContextVar[str] = ContextVar("tag_prefix", default="")
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_./-]")


def scalar(name: str, tensor: Any, collections: Sequence[str] | None = None) -> Tensor:
    """Makes a summary of one number, for TensorBoard's time series.

    Args:
        name: The tag. The current name scope is prefixed, and a number (`loss_1`) is appended if another summary of the
            graph has the tag. Characters other than letters, digits and `_./-` become `_`, which is logged. The
            operation has the same name, numbered if another operation has it.
        tensor: Array of shape `()` and any real dtype; NaN and infinities are written unchanged.
        collections: Graph collections that get the summary; `SUMMARIES` for None.

    Returns:
        Tensor whose value is bytes, for `FileWriter.add_summary`.

    Raises:
        InvalidArgumentError: The value is not one number; raised at once if the shape is known, otherwise in the run.

    Example:
        >>> import hookline as hl
        >>> with hl.Graph().as_default(), hl.name_scope("train"):
        ...     loss = scalar("loss", hl.constant(0.5))
        ...     with hl.Session() as sess:
        ...         value = sess.run(loss)
        >>> from hookline.summary import Summary
        >>> [(v.tag, v.simple_value) for v in Summary.FromString(value).value]
        [('train/loss', 0.5)]

    References:
        `tf.compat.v1.summary.scalar`, without `family` (open a name scope). Difference: an operation called `loss`
        does not make the tag `loss_1`.
    """
    shape = specs.open_shape(tensor.spec) if isinstance(tensor, Tensor) else getattr(tensor, "shape", None)
    if shape:
        raise errors.InvalidArgumentError.from_message(
            f"Summary {name!r} requires one number, got shape {tuple(shape)}; reduce it first (a mean, a norm) or "
            f"make a histogram.",
        )
    return _summary(name, encode.scalar, tensor, collections)


def histogram(name: str, values: Any, collections: Sequence[str] | None = None) -> Tensor:
    """Makes a summary of the distribution of values, counted on the device.

    Buckets are an eighth of an octave wide (a ratio of 1.06 to 1.13), from 2**-40 to 2**66 for each sign, with one for
    all values nearer to zero. All steps and variables use the same buckets. NaN and infinities are in no bucket; the
    first time, a warning gives their number.

    Args:
        name: Tag, as in `scalar`.
        values: Pytree of arrays with any shapes and real dtypes, counted together as 32-bit floats: one variable, or
            all gradients. Arrays may be empty.
        collections: Graph collections that get the summary; `SUMMARIES` for None.

    Returns:
        Tensor whose value is bytes, for `FileWriter.add_summary`.

    Raises:
        InvalidArgumentError: An array is complex or holds no numbers.

    Example:
        >>> import hookline as hl
        >>> with hl.Graph().as_default():
        ...     weights = histogram("weights", hl.constant([1.0, 2.0, 2.0]))
        ...     with hl.Session() as sess:
        ...         value = sess.run(weights)
        >>> from hookline.summary import Summary
        >>> Summary.FromString(value).value[0].histo.num
        3.0

    References:
        `tf.compat.v1.summary.histogram`. Differences: it accepts pytrees; NaN and infinities are left out with a
        warning and do not stop the run (`NanTensorHook` does that).
    """
    warned = False

    def encoded(tag: str, counted: encode.BucketCounts) -> bytes:
        nonlocal warned
        if counted.non_finite and not warned:
            warned = True
            _log.warning(
                "Histogram %r leaves out %d NaN or infinite values. Later ones are left out without a warning.",
                tag,
                int(counted.non_finite),
            )
        return encode.histogram(tag, counted)

    clean = clean_name(name)
    counted = op(encode.count_buckets, name=f"{clean}/buckets").node(values)
    return _summary(clean, encoded, counted, collections)


def image(name: str, tensor: Any, max_outputs: int = 3, collections: Sequence[str] | None = None) -> Tensor:
    """Makes a summary of images, for TensorBoard's images page. Only images that are written leave the device.

    Bytes are shown unchanged. Each floating point image is rescaled separately. If it has no negative value, the
    largest value becomes 255. Otherwise 0.0 becomes 128, and the value farthest from it becomes 1 or 255. An image
    whose values are all smaller than 1e-6 counts as zero. Pixels with a NaN or an infinity are red, or white in grey
    images.

    Args:
        name: Tag, as in `scalar`. The images are `name/image/0`, `name/image/1` and so on; with
            `max_outputs=1` there is one, `name/image`.
        tensor: Array of shape `[batch, height, width, channels]`, uint8 or floating point. One channel is grey, three
            are RGB, four RGBA.
        max_outputs: The number of images to write, from the beginning of the batch; at least 1.
        collections: Graph collections that get the summary; `SUMMARIES` for None.

    Returns:
        Tensor whose value is bytes, for `FileWriter.add_summary`.

    Raises:
        ValueError: `max_outputs` is smaller than 1.
        InvalidArgumentError: The value is not of that kind; raised at once if that is known, otherwise in the run.

    Example:
        >>> import hookline as hl
        >>> with hl.Graph().as_default(), hl.Session() as sess:
        ...     value = sess.run(image("digits", jnp.ones((8, 28, 28, 1)), max_outputs=2))
        >>> from hookline.summary import Summary
        >>> [v.tag for v in Summary.FromString(value).value]
        ['digits/image/0', 'digits/image/1']

    References:
        `tf.compat.v1.summary.image`, without `family`; the pixels are the same.
    """
    clean = clean_name(name)
    first = _take_first(clean, tensor, max_outputs, functools.partial(encode.check_images, name))
    return _summary(clean, functools.partial(encode.image, max_outputs=max_outputs), first, collections)


def audio(
    name: str, tensor: Any, sample_rate: Any, max_outputs: int = 3, collections: Sequence[str] | None = None
) -> Tensor:
    """Makes a summary of sound, for TensorBoard's audio page. Only clips that are written leave the device.

    Clips are written as 16-bit WAV. The full range is -1.0 to 1.0; values beyond it are clipped, and NaN is silence.

    Args:
        name: Tag, as in `scalar`. The clips are `name/audio/0`, `name/audio/1` and so on; with
            `max_outputs=1` there is one, `name/audio`.
        tensor: Array of shape `[batch, frames]` or `[batch, frames, channels]`, floating point.
        sample_rate: Frames per second: a number, or a tensor of one number.
        max_outputs: The number of clips to write, from the beginning of the batch; at least 1.
        collections: Graph collections that get the summary; `SUMMARIES` for None.

    Returns:
        Tensor whose value is bytes, for `FileWriter.add_summary`.

    Raises:
        ValueError: `max_outputs` is smaller than 1.
        InvalidArgumentError: The value is not of that kind; raised at once if that is known, otherwise in the run.

    Example:
        >>> import hookline as hl
        >>> with hl.Graph().as_default(), hl.Session() as sess:
        ...     value = sess.run(audio("voice", jnp.zeros((1, 16000)), sample_rate=16000))
        >>> from hookline.summary import Summary
        >>> [(v.tag, v.audio.length_frames) for v in Summary.FromString(value).value]
        [('voice/audio/0', 16000)]

    References:
        `tf.compat.v1.summary.audio`, without `family`; the samples are the same.
    """
    clean = clean_name(name)
    first = _take_first(clean, tensor, max_outputs, functools.partial(encode.check_audio, name))
    return _summary(clean, functools.partial(encode.audio, max_outputs=max_outputs), (first, sample_rate), collections)


def _take_first(name: str, tensor: Any, count: int, check: Callable[[Any, Any], None]) -> Tensor:
    """Returns a tensor of the first `count` items of a batch, which is checked."""
    arguments.check_int(f"Summary {name!r}", "max_outputs", count, at_least=1)

    def first(batch: Any) -> Any:
        try:
            batch = jnp.asarray(batch)
        except (TypeError, ValueError):
            raise TypeError(f"Summary {name!r} requires numbers, got {batch!r}.") from None
        check(batch.shape, batch.dtype)
        return placement.apply_replicated(lambda batch: batch[:count], batch)

    return op(first, name=f"{name}/first").node(tensor)


def text(name: str, tensor: Any, collections: Sequence[str] | None = None) -> Tensor:
    """Makes a summary of text, which TensorBoard shows as Markdown.

    Args:
        name: Tag, as in `scalar`.
        tensor: Tensor of a host op (or a plain value) that is a string, or an array or nested list of strings.
        collections: Graph collections that get the summary; `SUMMARIES` for None.

    Returns:
        Tensor whose value is bytes, for `FileWriter.add_summary`.

    Raises:
        InvalidArgumentError: The value contains something other than strings; raised in the run.

    Example:
        >>> import hookline as hl
        >>> with hl.Graph().as_default(), hl.Session() as sess:
        ...     note = sess.run(text("note", "warm-up over"))
        >>> b"warm-up over" in note
        True

    References:
        `tf.compat.v1.summary.text`.
    """
    return _summary(name, encode.text, tensor, collections)


def merge(inputs: Iterable[Tensor], collections: Sequence[str] | None = None, name: str | None = None) -> Tensor:
    """Merges several summaries into one.

    Args:
        inputs: Summary tensors.
        collections: Graph collections that get the merged summary; none for None.
        name: Name of the operation.

    Returns:
        Tensor whose value is bytes with all values of the inputs, in their order.

    Example:
        >>> import hookline as hl
        >>> with hl.Graph().as_default(), hl.Session() as sess:
        ...     both = merge([scalar("loss", hl.constant(0.5)), scalar("accuracy", hl.constant(0.9))])
        ...     value = sess.run(both)
        >>> from hookline.summary import Summary
        >>> [v.tag for v in Summary.FromString(value).value]
        ['loss', 'accuracy']

    References:
        `tf.compat.v1.summary.merge`. Difference: the same tag in two inputs is not an error.
    """
    # Concatenating serialized messages of one type merges them.
    listed = arguments.check_list("summary.merge", "inputs", inputs)
    merged = host_op(lambda *summaries: b"".join(summaries), name=name or "merge_summary").node(*listed)
    for collection in arguments.check_list("summary.merge", "collections", collections, optional=True):
        get_default_graph().add_to_collection(collection, merged)
    return merged


def merge_all(key: str = GraphKeys.SUMMARIES, scope: str | None = None, name: str | None = None) -> Tensor | None:
    """Merges all summaries of a collection in the default graph into one.

    Args:
        key: The collection.
        scope: Merges only those whose names begin with this.
        name: Name of the operation.

    Returns:
        The merged summary, or None if there is nothing to merge.

    Example:
        >>> import hookline as hl
        >>> with hl.Graph().as_default():
        ...     merge_all() is None
        True

    References:
        `tf.compat.v1.summary.merge_all`.
    """
    summaries = get_default_graph().get_collection(key, scope)
    return merge(summaries, name=name) if summaries else None


def _summary(name: str, encoder: Callable[[str, Any], bytes], value: Any, collections: Sequence[str] | None) -> Tensor:
    graph = get_default_graph()
    clean = clean_name(name)
    graph.check_not_finalized(f"Summary {name!r}")
    given = arguments.check_list(f"Summary {name!r}", "collections", collections, optional=True)
    wanted = tag = _TAG_PREFIX.get() + graph.current_scope + clean
    taken = graph.get_collection(_TAGS)
    while tag in taken:
        tag = f"{wanted}_{taken.count(wanted)}"
        taken.append(wanted)
    graph.add_to_collection(_TAGS, tag)
    summary = host_op(functools.partial(encoder, tag), name=clean).node(value)
    for collection in (GraphKeys.SUMMARIES,) if collections is None else given:
        graph.add_to_collection(collection, summary)
    return summary


@contextlib.contextmanager
def tags_below(family: str | None) -> Iterator[None]:
    """Prefixes the tags of the summaries made in the block with a family, but not the names of their operations.

    Example:
        >>> import hookline as hl
        >>> with hl.Graph().as_default(), tags_below("losses"):
        ...     loss = scalar("total", hl.constant(0.5))
        ...     with hl.Session() as sess:
        ...         value = sess.run(loss)
        >>> from hookline.summary import Summary
        >>> loss.op.name, Summary.FromString(value).value[0].tag
        ('total', 'losses/total')
    """
    token = _TAG_PREFIX.set(f"{clean_name(family)}/" if family else "")
    try:
        yield
    finally:
        _TAG_PREFIX.reset(token)


def clean_name(name: str) -> str:
    """Returns a name that operations and tags may have; logs it if it differs from the given one.

    Raises:
        TypeError: The name is not a string.
        ValueError: The name is empty, or has only dots and slashes.

    Example:
        >>> clean_name("learning rate")
        'learning_rate'
    """
    if not isinstance(name, str):
        raise TypeError(f"A summary requires a string as its name, got {name!r}.")
    parts = _NOT_ALLOWED.sub("_", name).split("/")
    clean = re.sub("^-", "_", "/".join(part for part in parts if part.strip(".")))
    if not clean:
        raise ValueError(f"A summary requires a name, got {name!r}.")
    if clean != name:
        _log.info("Summary name %r has characters that are not allowed; %r is used instead.", name, clean)
    return clean
