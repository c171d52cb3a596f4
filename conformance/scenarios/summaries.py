"""Summary operations."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.parts import only, raised, scalars
from conformance.scenario import Record, scenario
from conformance.system import System


def _written(s: System, *summaries: Any, step: int = 1) -> list[Any]:
    """Returns the events of a file to which the summaries were written."""
    with s.Session() as sess, s.summary.FileWriter(s.folder) as writer:
        for summary in summaries:
            writer.add_summary(sess.run(summary), step)
    return s.events(s.folder)


def _tags(events: list[Any]) -> list[str]:
    return [value.tag for event in events for value in event.summary.value]


@scenario("summary.scalar")
def _(s: System) -> Record:
    """A scalar: its tag, value and step."""
    return {"written": scalars(_written(s, s.summary.scalar("loss", s.constant(0.5)), step=7))}


@scenario("summary.scalar_of_integers_and_nan")
def _(s: System) -> Record:
    """Integers, booleans, NaN and infinities are written as they are."""
    values = {"int": 3, "nan": float("nan"), "inf": float("inf")}
    written = scalars(_written(s, *[s.summary.scalar(tag, s.constant(value)) for tag, value in values.items()]))
    return {"written": written}


@scenario("summary.scalar_of_an_array")
def _(s: System) -> Record:
    """An array is no scalar."""

    def write() -> None:
        _written(s, s.summary.scalar("loss", s.constant([1.0, 2.0])))

    return {"error": raised(write)}


@scenario("summary.name_scope")
def _(s: System) -> Record:
    """A tag takes the name scope."""
    with s.name_scope("train"), s.name_scope("inner"):
        summary = s.summary.scalar("loss", s.constant(0.5))
    return {"tags": _tags(_written(s, summary)), "name": summary.op.name}


@scenario("summary.same_tag_twice")
def _(s: System) -> Record:
    """The second of two summaries of one name is numbered."""
    summaries = [s.summary.scalar("loss", s.constant(0.5)) for _ in range(3)]
    return {"tags": _tags(_written(s, *summaries)), "names": [summary.op.name for summary in summaries]}


@scenario("summary.name_of_an_operation")
def _(s: System) -> Record:
    """A summary called like an operation."""
    loss = s.constant(0.5, name="loss")
    summary = s.summary.scalar("loss", loss)
    return {"tags": _tags(_written(s, summary)), "name": summary.op.name}


@scenario("summary.bad_characters")
def _(s: System) -> Record:
    """Characters that a tag may not have are replaced, with a line in the log."""
    summary = s.summary.scalar("my loss!/a:b", s.constant(0.5))
    return {"tags": _tags(_written(s, summary)), "logged": len(only(s.log, "my loss!"))}


@scenario("summary.collections")
def _(s: System) -> Record:
    """Summaries are in collection `SUMMARIES`, or in those that are given."""
    one = s.summary.scalar("one", s.constant(1.0))
    two = s.summary.scalar("two", s.constant(1.0), collections=["mine"])
    return {
        "usual": s.get_collection(s.GraphKeys.SUMMARIES) == [one],
        "mine": s.get_collection("mine") == [two],
    }


@scenario("summary.merge_all")
def _(s: System) -> Record:
    """`merge_all` is None without summaries, else all in one; it is in no collection."""
    before = s.summary.merge_all()
    s.summary.scalar("b", s.constant(1.0))
    s.summary.scalar("a", s.constant(2.0))
    merged = s.summary.merge_all()
    return {
        "before": before,
        "written": scalars(_written(s, merged)),
        "collected": len(s.get_collection(s.GraphKeys.SUMMARIES)),
    }


@scenario("summary.merge")
def _(s: System) -> Record:
    """`merge` takes the summaries given, in their order."""
    summaries = [s.summary.scalar(tag, s.constant(1.0)) for tag in "cab"]
    return {"tags": _tags(_written(s, s.summary.merge(summaries[:2])))}


@scenario("summary.histogram")
def _(s: System) -> Record:
    """A histogram: number, sum, least and largest; its buckets hold every value."""
    events = _written(s, s.summary.histogram("weights", s.constant([1.0, -2.0, 0.5, 4.0, 4.0])))
    histogram = events[-1].summary.value[0].histo
    return {
        "num": histogram.num,
        "sum": histogram.sum,
        "squares": histogram.sum_squares,
        "min": histogram.min,
        "max": histogram.max,
        "in_buckets": sum(histogram.bucket),
        "limits_ascend": list(histogram.bucket_limit) == sorted(histogram.bucket_limit),
        "tag": events[-1].summary.value[0].tag,
    }


@scenario("summary.histogram_of_nan")
def _(s: System) -> Record:
    """A histogram of NaN."""
    summary = s.summary.histogram("weights", s.constant([1.0, float("nan")]))
    return {"error": raised(lambda: _written(s, summary))}


@scenario("summary.text")
def _(s: System) -> Record:
    """A text: its value as TensorBoard's reader gives it, and the plugin that shows it."""
    events = _written(s, s.summary.text("note", s.constant("some *text*")))
    value = events[-1].summary.value[0]
    return {"tag": value.tag, "text": s.text_of(value), "plugin": value.metadata.plugin_data.plugin_name}


@scenario("summary.text_of_a_list")
def _(s: System) -> Record:
    """A list of texts."""
    events = _written(s, s.summary.text("notes", s.constant(["one", "zwei ü"])))
    return {"text": s.text_of(events[-1].summary.value[0])}


@scenario("summary.text_of_a_number")
def _(s: System) -> Record:
    """A number is no text."""
    return {"refused": raised(lambda: _written(s, s.summary.text("note", s.constant(1.0)))) is not None}


@scenario("summary.histogram_of_other_values")
def _(s: System) -> Record:
    """Histograms of integers, of one number, of a matrix, and of the same number throughout."""
    values = {"integers": [1, 2, 3], "one": 2.5, "matrix": [[1.0, -1.0], [0.0, 1e-3]], "same": [7.0] * 4}
    events = _written(s, *[s.summary.histogram(tag, s.constant(value)) for tag, value in values.items()])
    found = [value.histo for event in events for value in event.summary.value]
    return {"found": [[h.num, h.sum, h.min, h.max, sum(h.bucket)] for h in found]}


@scenario("summary.histogram_buckets")
def _(s: System) -> Record:
    """Every value lies in a bucket whose limits hold it."""
    values = [0.1, 0.1, 2.0, -3.0, 50.0]
    histogram = _written(s, s.summary.histogram("x", s.constant(values)))[-1].summary.value[0].histo
    limits, counts = list(histogram.bucket_limit), list(histogram.bucket)
    ends = np.cumsum(counts)
    return {
        "below": [
            bool(any(limit >= value * (1 - 1e-6) and end >= place for limit, end in zip(limits, ends, strict=True)))
            for place, value in enumerate(sorted(values), start=1)
        ],
        "same_length": len(limits) == len(counts),
    }


@scenario("summary.scalar_of_a_variable")
def _(s: System) -> Record:
    """A summary of a variable follows it."""
    weight = s.Variable(1.0, name="weight")
    more, summary = weight.assign_add(1.5), s.summary.scalar("seen", weight)
    with s.Session() as sess, s.summary.FileWriter(s.folder) as writer:
        sess.run(s.global_variables_initializer())
        for step in range(3):
            writer.add_summary(sess.run(summary), step)
            sess.run(more)
    return {"written": scalars(s.events(s.folder))}


@scenario("summary.image")
def _(s: System) -> Record:
    """Images: tags, sizes, and pictures that are PNG."""
    images = s.summary.image("picture", s.constant([[[[0.0], [1.0]]]] * 4), max_outputs=2)
    with s.Session() as sess:
        values = s.summary.Summary.FromString(sess.run(images)).value
    return {
        "tags": [value.tag for value in values],
        "sizes": [[value.image.height, value.image.width, value.image.colorspace] for value in values],
        "png": [value.image.encoded_image_string[1:4] for value in values],
    }


@scenario("summary.audio")
def _(s: System) -> Record:
    """Sounds: tags, rates and lengths."""
    sounds = s.summary.audio("sound", s.constant([[0.0, 0.5, -0.5, 0.0]] * 2), sample_rate=8000.0, max_outputs=2)
    with s.Session() as sess:
        values = s.summary.Summary.FromString(sess.run(sounds)).value
    return {
        "tags": [value.tag for value in values],
        "rates": [[value.audio.sample_rate, value.audio.num_channels, value.audio.length_frames] for value in values],
        "kind": [value.audio.encoded_audio_string[:4] for value in values],
    }
