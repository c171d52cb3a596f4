"""Summary operations, FileWriter, SummarySaverHook: what stands in the event files."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from conformance.parts import counting, kinds, only, raised, scalars, session_logs
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


@scenario("writer.file")
def _(s: System) -> Record:
    """An event file begins with its version; what is written stands in order with its steps."""
    summary = s.summary.scalar("x", s.constant(1.0))
    with s.Session() as sess, s.summary.FileWriter(s.folder) as writer:
        value = sess.run(summary)
        for step in (5, 3, None):
            writer.add_summary(value, step)
    events = s.events(s.folder)
    return {"kinds": kinds(events), "version": events[0].file_version}


@scenario("writer.folder_is_made")
def _(s: System) -> Record:
    """A folder that is not there is made; the writer says which it is."""
    folder = f"{s.folder}/a/b"
    with s.summary.FileWriter(folder) as writer:
        known = writer.get_logdir() == folder
    return {"known": known, "events": len(s.events(folder))}


@scenario("writer.after_close")
def _(s: System) -> Record:
    """A closed writer warns or refuses; `reopen` goes on in another file."""
    summary = s.summary.scalar("x", s.constant(1.0))
    with s.Session() as sess:
        value = sess.run(summary)
    writer = s.summary.FileWriter(s.folder)
    writer.add_summary(value, 1)
    writer.close()
    refused = raised(writer.add_summary, value, 2)
    writer.reopen()
    writer.add_summary(value, 3)
    writer.close()
    return {"refused": refused, "reopened": [3, "x", 1.0] in [list(each) for each in scalars(s.events(s.folder))]}


@scenario("writer.add_graph")
def _(s: System) -> Record:
    """A graph is an event."""
    s.constant(1.0, name="x")
    with s.summary.FileWriter(s.folder) as writer:
        writer.add_graph(s.get_default_graph())
    return {"graphs": kinds(s.events(s.folder))[1:2]}


@scenario("writer.message")
def _(s: System) -> Record:
    """A `Summary` message is taken as well as its bytes."""
    summary = s.summary.scalar("x", s.constant(2.5))
    with s.Session() as sess, s.summary.FileWriter(s.folder) as writer:
        writer.add_summary(s.summary.Summary.FromString(sess.run(summary)), 4)
    return {"written": scalars(s.events(s.folder))}


@scenario("writer.cache")
def _(s: System) -> Record:
    """The cache gives one writer a directory, until it is cleared."""
    cache = s.summary.FileWriterCache
    one = cache.get(s.folder)
    same = cache.get(s.folder) is one
    other = cache.get(f"{s.folder}/other") is not one
    cache.clear()
    return {"same": same, "other": other, "anew": cache.get(s.folder) is not one}


@scenario("writer.metadata_is_written_once")
def _(s: System) -> Record:
    """What says how a tag is shown stands in the first value of the tag alone."""
    summary = s.summary.text("note", s.constant("x"))
    with s.Session() as sess, s.summary.FileWriter(s.folder) as writer:
        for step in range(3):
            writer.add_summary(sess.run(summary), step)
    values = [value for event in s.events(s.folder) for value in event.summary.value]
    return {"plugins": [value.metadata.plugin_data.plugin_name for value in values]}


# The hook -------------------------------------------------------------------------------------------------------------


def _hooked(s: System, runs: int, by: int = 1, secs: float = 1.0, **arguments: Any) -> list[Any]:
    """Returns the events that a SummarySaverHook writes in some runs."""
    _, train_op = counting(s, by)
    summary = s.summary.scalar("x", s.constant(1.0))
    with s.clock() as clock:
        hook = s.train.SummarySaverHook(output_dir=s.folder, summary_op=summary, **arguments)
        with s.train.MonitoredSession(hooks=[hook]) as sess:
            for _ in range(runs):
                clock.advance(secs)
                sess.run(train_op)
    s.summary.FileWriterCache.clear()
    return s.events(s.folder)


@scenario("summary_hook.save_steps")
def _(s: System) -> Record:
    """The first run is written, then each so many steps, at the step after the run."""
    return {"written": scalars(_hooked(s, 8, save_steps=3))}


@scenario("summary_hook.save_secs")
def _(s: System) -> Record:
    """A cadence in seconds."""
    return {"written": scalars(_hooked(s, 9, save_secs=3))}


@scenario("summary_hook.larger_steps")
def _(s: System) -> Record:
    """A cadence is met or passed, whatever a run counts by."""
    return {"written": scalars(_hooked(s, 6, by=4, save_steps=6))}


@scenario("summary_hook.start_is_written_first")
def _(s: System) -> Record:
    """`SessionLog(START)` stands before the first summary, at its step."""
    events = _hooked(s, 2, save_steps=1)
    found = kinds(events)
    return {
        "kinds": [kind for kind in found if "graph" not in kind],
        "graphs": found.count("graph_def@0"),
        "logs": session_logs(events),
    }


@scenario("summary_hook.arguments")
def _(s: System) -> Record:
    """Exactly one cadence, and exactly one of scaffold and summary."""
    hook, summary = s.train.SummarySaverHook, s.constant(b"" if s.name == "tensorflow" else "")
    scaffold = s.train.Scaffold()
    return {
        "neither": raised(hook, save_steps=1, output_dir=s.folder),
        "both": raised(hook, save_steps=1, output_dir=s.folder, scaffold=scaffold, summary_op=summary),
        "no_cadence": raised(hook, output_dir=s.folder, summary_op=summary),
        "two_cadences": raised(hook, save_steps=1, save_secs=1, output_dir=s.folder, summary_op=summary),
    }


@scenario("summary_hook.several_summaries")
def _(s: System) -> Record:
    """A list of summaries is written as a list of events."""
    _, train_op = counting(s)
    summaries = [s.summary.scalar(tag, s.constant(1.0)) for tag in "ab"]
    hook = s.train.SummarySaverHook(save_steps=1, output_dir=s.folder, summary_op=summaries)
    with s.train.MonitoredSession(hooks=[hook]) as sess:
        sess.run(train_op)
    s.summary.FileWriterCache.clear()
    return {"written": scalars(s.events(s.folder))}


@scenario("summary_hook.writer_given")
def _(s: System) -> Record:
    """A writer that is given is used, and flushed at the end."""
    _, train_op = counting(s)
    writer = s.summary.FileWriter(f"{s.folder}/mine")
    summary = s.summary.scalar("x", s.constant(1.0))
    hook = s.train.SummarySaverHook(save_steps=1, output_dir=s.folder, summary_writer=writer, summary_op=summary)
    with s.train.MonitoredSession(hooks=[hook]) as sess:
        sess.run(train_op)
    written = scalars(s.events(f"{s.folder}/mine"))
    writer.close()
    return {"written": written, "elsewhere": len(s.events(s.folder))}


@scenario("summary_hook.summary_of_the_scaffold")
def _(s: System) -> Record:
    """The summary of a scaffold is looked up when it is needed."""
    _, train_op = counting(s)
    scaffold = s.train.Scaffold()
    hook = s.train.SummarySaverHook(save_steps=1, output_dir=s.folder, scaffold=scaffold)
    s.summary.scalar("late", s.constant(1.0))
    with s.train.MonitoredSession(s.train.ChiefSessionCreator(scaffold), hooks=[hook]) as sess:
        sess.run(train_op)
    s.summary.FileWriterCache.clear()
    return {"written": scalars(s.events(s.folder))}


@scenario("summary_hook.scaffold_without_summaries")
def _(s: System) -> Record:
    """A scaffold without summaries writes none."""
    _, train_op = counting(s)
    scaffold = s.train.Scaffold()
    hook = s.train.SummarySaverHook(save_steps=1, output_dir=s.folder, scaffold=scaffold)
    with s.train.MonitoredSession(s.train.ChiefSessionCreator(scaffold), hooks=[hook]) as sess:
        sess.run(train_op)
    s.summary.FileWriterCache.clear()
    return {"written": scalars(s.events(s.folder))}


@scenario("summary_hook.asks_only_when_it_fires")
def _(s: System) -> Record:
    """The summary is computed on the runs that write it, and on no other."""
    _, train_op = counting(s)
    computed: list[int] = []

    def compute() -> float:
        computed.append(1)
        return 0.0

    summary = s.summary.scalar("x", s.host(compute))
    hook = s.train.SummarySaverHook(save_steps=3, output_dir=s.folder, summary_op=summary)
    with s.train.MonitoredSession(hooks=[hook]) as sess:
        for _ in range(7):
            sess.run(train_op)
    return {"computed": len(computed)}


@scenario("summary_hook.two_hooks_one_folder")
def _(s: System) -> Record:
    """Two hooks of one folder share a file."""
    _, train_op = counting(s)
    hooks = [
        s.train.SummarySaverHook(save_steps=1, output_dir=s.folder, summary_op=s.summary.scalar(tag, s.constant(1.0)))
        for tag in "ab"
    ]
    with s.train.MonitoredSession(hooks=hooks) as sess:
        sess.run(train_op)
    s.summary.FileWriterCache.clear()
    events = s.events(s.folder)
    return {"written": scalars(events), "files": kinds(events).count("file_version@0")}


# More of the writer ---------------------------------------------------------------------------------------------------


@scenario("writer.flush")
def _(s: System) -> Record:
    """What was flushed can be read while the file is open."""
    summary = s.summary.scalar("x", s.constant(1.0))
    with s.Session() as sess:
        value = sess.run(summary)
    writer = s.summary.FileWriter(s.folder)
    writer.add_summary(value, 1)
    writer.flush()
    found = scalars(s.events(s.folder))
    writer.close()
    return {"found": found}


@scenario("writer.session_log_and_event")
def _(s: System) -> Record:
    """Session logs and whole events are written as they are given."""
    log = s.SessionLog
    with s.summary.FileWriter(s.folder) as writer:
        writer.add_session_log(log(status=log.CHECKPOINT, checkpoint_path="here", msg="m"), 12)
        writer.add_event(s.Event(step=3, wall_time=1.5, log_message=s.LogMessage(message="hello")))
    events = s.events(s.folder)[1:]
    return {
        "kinds": kinds(events),
        "logs": session_logs(events),
        "said": [events[0].session_log.checkpoint_path, events[0].session_log.msg],
        "time": events[1].wall_time,
        "message": events[1].log_message.message,
    }


@scenario("writer.step_of_numpy")
def _(s: System) -> Record:
    """A step may be an integer of NumPy, or an array of one."""
    summary = s.summary.scalar("x", s.constant(1.0))
    with s.Session() as sess, s.summary.FileWriter(s.folder) as writer:
        for step in (np.int64(4), np.int32(5), np.array(6)):
            writer.add_summary(sess.run(summary), step)
    return {"steps": [step for step, _, _ in scalars(s.events(s.folder))]}


@scenario("writer.many_events")
def _(s: System) -> Record:
    """Many events come in their order, none is lost."""
    summary = s.summary.scalar("x", s.constant(1.0))
    with s.Session() as sess, s.summary.FileWriter(s.folder) as writer:
        value = sess.run(summary)
        for step in range(500):
            writer.add_summary(value, step)
    steps = [step for step, _, _ in scalars(s.events(s.folder))]
    return {"all": steps == list(range(500))}


@scenario("writer.threads")
def _(s: System) -> Record:
    """Several threads may write to one writer."""
    summary = s.summary.scalar("x", s.constant(1.0))
    with s.Session() as sess, s.summary.FileWriter(s.folder) as writer:
        value = sess.run(summary)

        def work(first: int) -> None:
            for step in range(first, first + 50):
                writer.add_summary(value, step)

        threads = [threading.Thread(target=work, args=(first,)) for first in (0, 50, 100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return {"all": sorted(step for step, _, _ in scalars(s.events(s.folder))) == list(range(150))}


@scenario("writer.cache_and_sessions")
def _(s: System) -> Record:
    """A writer that was taken outside of a session stays open when the session is closed."""
    _, train_op = counting(s)
    writer = s.summary.FileWriterCache.get(s.folder)
    summary = s.summary.scalar("x", s.constant(1.0))
    hook = s.train.SummarySaverHook(save_steps=1, output_dir=s.folder, summary_op=summary)
    with s.train.MonitoredSession(hooks=[hook]) as sess:
        sess.run(train_op)
    with s.Session() as sess:
        writer.add_summary(sess.run(summary), 9)
    same = s.summary.FileWriterCache.get(s.folder) is writer
    s.summary.FileWriterCache.clear()
    return {"same": same, "steps": [step for step, _, _ in scalars(s.events(s.folder))]}


@scenario("writer.cache_of_a_hook")
def _(s: System) -> Record:
    """A writer that a hook has taken in `begin`, after the session."""
    _, train_op = counting(s)
    writers: list[Any] = []

    class Takes(s.train.SessionRunHook):
        def begin(self) -> None:
            writers.append(s.summary.FileWriterCache.get(s.folder))

    with s.train.MonitoredSession(hooks=[Takes()]) as sess:
        sess.run(train_op)
    return {"same": s.summary.FileWriterCache.get(s.folder) is writers[0]}


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


@scenario("summary_hook.no_directory")
def _(s: System) -> Record:
    """Without a directory and a writer nothing is written."""
    _, train_op = counting(s)
    hook = s.train.SummarySaverHook(save_steps=1, summary_op=s.summary.scalar("x", s.constant(1.0)))

    def play() -> None:
        with s.train.MonitoredSession(hooks=[hook]) as sess:
            sess.run(train_op)

    return {"error": raised(play)}


@scenario("summary_hook.no_global_step")
def _(s: System) -> Record:
    """A graph without a global step is refused."""
    summary = s.summary.scalar("x", s.constant(1.0))
    hook = s.train.SummarySaverHook(save_steps=1, output_dir=s.folder, summary_op=summary)
    return {"error": raised(s.train.MonitoredSession, hooks=[hook])}
