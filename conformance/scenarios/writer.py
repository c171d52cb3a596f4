"""FileWriter and its cache."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from conformance.parts import counting, kinds, raised, scalars, session_logs
from conformance.scenario import Record, scenario
from conformance.system import System


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
    return {"same": same, "other": other, "again": cache.get(s.folder) is not one}


@scenario("writer.metadata_is_written_once")
def _(s: System) -> Record:
    """What says how a tag is shown stands in the first value of the tag alone."""
    summary = s.summary.text("note", s.constant("x"))
    with s.Session() as sess, s.summary.FileWriter(s.folder) as writer:
        for step in range(3):
            writer.add_summary(sess.run(summary), step)
    values = [value for event in s.events(s.folder) for value in event.summary.value]
    return {"plugins": [value.metadata.plugin_data.plugin_name for value in values]}


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
