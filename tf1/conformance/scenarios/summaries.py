"""`tf.summary` in `hookline_tf1`: tags, families, writers."""

from __future__ import annotations

from typing import Any

from conformance.parts import scalars
from conformance.scenario import Record, scenario
from conformance.system import System


@scenario("v1.summary.tags")
def _(s: System) -> Record:
    """A tag is the name of its operation: below its scope, numbered if any operation has it, cleaned."""
    tf = s.tf
    x = tf.constant(2.0)
    loss = tf.square(x, name="loss")
    tf.summary.scalar("loss", loss)
    tf.summary.scalar("loss", loss)
    tf.summary.scalar("total loss", loss)
    with tf.name_scope("train"):
        tf.summary.scalar("loss", loss)
        tf.summary.scalar("part", loss, family="parts")
        tf.summary.scalar("part", loss, family="parts")
    with tf.variable_scope("net"):
        tf.summary.scalar("loss", loss)
    merged = tf.summary.merge_all()
    with tf.Session() as sess, tf.summary.FileWriter(s.folder) as writer:
        writer.add_summary(sess.run(merged), 3)
    return {"written": sorted(scalars(s.events(s.folder)))}


@scenario("v1.summary.places")
def _(s: System) -> Record:
    """What each argument of a summary means at its place, also a name at that of the collections."""
    tf = s.tf
    x, pictures, sounds = tf.constant(1.0), tf.zeros([2, 2, 2, 1]), tf.zeros([2, 4])
    made = [
        tf.summary.scalar("a", x, ["c"], "f"),
        tf.summary.histogram("b", x, ["c"], "f"),
        tf.summary.image("i", pictures, 1, ["c"], "f"),
        tf.summary.audio("s", sounds, 8000.0, 1, ["c"], "f"),
        tf.summary.text("t", tf.constant("text", tf.string), ["c"]),
        tf.summary.scalar("z", x, "uv"),
    ]
    merged = [
        tf.summary.merge(made, ["d"], "n"),
        tf.summary.merge(made, "name"),
        tf.summary.merge(made),
        tf.summary.merge_all("c", "f", "all"),
    ]
    with tf.Session() as sess:
        counts = [len(tf.Summary.FromString(value).value) for value in sess.run(merged)]
    names = {key: [each.name for each in tf.get_collection(key)] for key in ("c", "d", "n", "u", "uv", "name")}
    return {"merged": [each.name for each in merged], "counts": counts, "names": names}


@scenario("v1.summary.writer")
def _(s: System) -> Record:
    """A writer takes summaries as messages and as bytes, steps of NumPy's, and a graph."""
    tf = s.tf
    step = tf.train.get_or_create_global_step()
    summary = tf.summary.scalar("x", tf.constant(1.5))
    with tf.Session(graph=tf.get_default_graph()) as sess:
        writer = tf.summary.FileWriter(s.folder, sess.graph)
        sess.run(tf.global_variables_initializer())
        writer.add_summary(sess.run(summary), sess.run(step))
        writer.add_summary(tf.Summary(value=[tf.Summary.Value(tag="y", simple_value=2.5)]), 7)
        own = tf.Summary()
        own.value.add(tag="z", simple_value=0.25)
        writer.add_summary(own, global_step=8)
        writer.flush()
        directory = writer.get_logdir()
        writer.close()
    events: list[Any] = s.events(s.folder)
    graphs = sum(event.HasField("graph_def") for event in events)
    return {"written": scalars(events), "graphs": graphs, "directory": directory == s.folder}


@scenario("v1.summary.collections")
def _(s: System) -> Record:
    """Summaries join collections; `merge_all` takes one of them, or those of a scope."""
    tf = s.tf
    x = tf.constant(1.0)
    tf.summary.scalar("a", x, collections=["mine"])
    with tf.name_scope("part"):
        tf.summary.scalar("b", x)
    tf.summary.scalar("c", x)
    keys = ("summaries", "mine")
    nothing = tf.summary.merge_all(key="none")
    with tf.Session() as sess:
        found = {}
        for name, merged in {
            "all": tf.summary.merge_all(),
            "mine": tf.summary.merge_all(key="mine"),
            "part": tf.summary.merge_all(scope="part"),
        }.items():
            found[name] = [value.tag for value in tf.Summary.FromString(sess.run(merged)).value]
    return {
        "names": {key: [item.name for item in tf.get_collection(key)] for key in keys},
        "nothing": nothing is None,
        "tags": found,
    }


@scenario("v1.summary.operations")
def _(s: System) -> Record:
    """The name of an operation has the family once, the tag twice."""
    tf = s.tf
    x = tf.constant(2.0)
    made = [tf.summary.scalar("a", x, family="fam"), tf.summary.scalar("a", x, family="fam")]
    with tf.name_scope("n"), tf.variable_scope("v"):
        made += [tf.summary.scalar("a b", x, family="fam x"), tf.summary.histogram("h", x, family="fam")]
    made += [tf.summary.scalar("fam/a", x), tf.summary.scalar("a", x, family="fam")]
    with tf.Session() as sess:
        written = tf.Summary.FromString(sess.run(tf.summary.merge_all()))
    return {"operations": [each.op.name for each in made], "tags": [value.tag for value in written.value]}
