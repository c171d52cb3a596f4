"""SummarySaverHook: what stands in the event files."""

from __future__ import annotations

from typing import Any

from conformance.parts import counting, kinds, raised, scalars, session_logs
from conformance.scenario import Record, scenario
from conformance.system import System


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


@scenario("summary_hook.two_runs_a_step")
def _(s: System) -> Record:
    """Where only every second run counts, as in a GAN, the steps that are written."""
    step, train_op = counting(s)
    summary = s.summary.scalar("x", s.constant(1.0))
    hook = s.train.SummarySaverHook(save_steps=5, output_dir=s.folder, summary_op=summary)
    with s.train.MonitoredSession(hooks=[hook]) as sess:
        for _ in range(10):
            sess.run(step)
            sess.run(train_op)
    s.summary.FileWriterCache.clear()
    return {"written": scalars(s.events(s.folder))}


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
