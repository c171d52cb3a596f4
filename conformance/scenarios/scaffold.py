"""Scaffold."""

from __future__ import annotations

from typing import Any

from conformance.parts import counting, raised
from conformance.scenario import Record, scenario
from conformance.system import System

_PARTS = ["init_op", "ready_op", "ready_for_local_init_op", "local_init_op", "summary_op", "saver", "init_fn"]


@scenario("scaffold.before_and_after_finalize")
def _(s: System) -> Record:
    """Before `finalize` what was not given is None; after it the defaults are there, and the graph is finalized."""
    counting(s)
    s.summary.scalar("x", s.constant(1.0))
    scaffold = s.train.Scaffold()
    before = [part for part in _PARTS if getattr(scaffold, part) is not None]
    same = scaffold.finalize() is scaffold
    return {
        "before": before,
        "after": [part for part in _PARTS if getattr(scaffold, part) is not None],
        "same": same,
        "finalized": s.get_default_graph().finalized,
    }


@scenario("scaffold.no_summaries")
def _(s: System) -> Record:
    """Without summaries there is no summary operation."""
    counting(s)
    return {"summary_op": s.train.Scaffold().finalize().summary_op}


@scenario("scaffold.finalize_twice")
def _(s: System) -> Record:
    """To finalize again changes nothing."""
    counting(s)
    scaffold = s.train.Scaffold().finalize()
    parts = [getattr(scaffold, part) for part in _PARTS]
    scaffold.finalize()
    return {"same": all(getattr(scaffold, part) is was for part, was in zip(_PARTS, parts, strict=True))}


@scenario("scaffold.defaults_are_stored")
def _(s: System) -> Record:
    """Defaults are stored in the collections, where a second scaffold finds them."""
    counting(s)
    keys = s.GraphKeys
    scaffold = s.train.Scaffold().finalize()
    stored = {key: len(s.get_collection(key)) for key in (keys.INIT_OP, keys.READY_OP, keys.LOCAL_INIT_OP, keys.SAVERS)}
    other = s.train.Scaffold().finalize()
    return {"stored": stored, "found": other.saver is scaffold.saver and other.init_op is scaffold.init_op}


@scenario("scaffold.two_in_a_collection")
def _(s: System) -> Record:
    """Two items in a collection are an error that names the collection."""
    counting(s)
    for _ in range(2):
        s.add_to_collection(s.GraphKeys.SAVERS, s.train.Saver())
    try:
        s.train.Scaffold().finalize()
    except RuntimeError as error:
        return {"named": "savers" in str(error) and "saver" in str(error)}
    return {"named": None}


@scenario("scaffold.of_the_collection")
def _(s: System) -> Record:
    """An item of a collection is taken in place of the default."""
    counting(s)
    init = s.no_op()
    s.add_to_collection(s.GraphKeys.INIT_OP, init)
    return {"taken": s.train.Scaffold().finalize().init_op is init}


@scenario("scaffold.init_op_and_its_feed")
def _(s: System) -> Record:
    """`init_op` is run with its feed in place of the default."""
    x = s.placeholder("float32", [], name="x")
    weight = s.Variable(1.0, name="weight")
    scaffold = s.train.Scaffold(init_op=s.group(weight.assign(x)), init_feed_dict={x: 7.0})
    with s.train.MonitoredSession(s.train.ChiefSessionCreator(scaffold)) as sess:
        return {"weight": sess.run(weight)}


@scenario("scaffold.init_fn")
def _(s: System) -> Record:
    """`init_fn` is called with scaffold and session, after `init_op`."""
    weight = s.Variable(1.0, name="weight")
    double = weight.assign(weight * 2.0)
    seen: list[Any] = []

    def init_fn(scaffold: Any, session: Any) -> None:
        seen.append([scaffold is given, float(session.run(weight))])
        session.run(double)

    given = s.train.Scaffold(init_fn=init_fn)
    with s.train.MonitoredSession(s.train.ChiefSessionCreator(given)) as sess:
        return {"seen": seen, "weight": sess.run(weight)}


@scenario("scaffold.init_fn_not_after_a_restore")
def _(s: System) -> Record:
    """After a restore neither `init_op` nor `init_fn` runs; the local initialisation does."""
    weight = s.Variable(1.0, name="weight")
    local = s.Variable(5.0, name="local", collections=[s.GraphKeys.LOCAL_VARIABLES])
    change = weight.assign(9.0)
    saver = s.train.Saver([weight])
    with s.Session() as sess:
        sess.run(change)
        saver.save(sess, f"{s.folder}/model")
    calls: list[int] = []
    scaffold = s.train.Scaffold(saver=saver, init_fn=lambda *_: calls.append(1))
    with s.train.MonitoredSession(s.train.ChiefSessionCreator(scaffold, checkpoint_dir=s.folder)) as sess:
        return {"values": sess.run([weight, local]), "calls": calls}


@scenario("scaffold.local_init")
def _(s: System) -> Record:
    """`local_init_op` is run with its feed."""
    x = s.placeholder("float32", [], name="x")
    local = s.Variable(5.0, name="local", collections=[s.GraphKeys.LOCAL_VARIABLES])
    counting(s)
    scaffold = s.train.Scaffold(local_init_op=s.group(local.assign(x)), local_init_feed_dict={x: 3.0})
    with s.train.MonitoredSession(s.train.ChiefSessionCreator(scaffold)) as sess:
        return {"local": sess.run(local)}


@scenario("scaffold.not_ready")
def _(s: System) -> Record:
    """A model that is not ready after its initialisation is an error that names what is missing."""
    s.Variable(1.0, name="weight")
    other = s.Variable(1.0, name="other")
    scaffold = s.train.Scaffold(init_op=other.initializer)
    try:
        s.train.MonitoredSession(s.train.ChiefSessionCreator(scaffold))
    except RuntimeError as error:
        return {"weight": "weight" in str(error)}
    return {"weight": None}


@scenario("scaffold.ready_op")
def _(s: System) -> Record:
    """A `ready_op` of one's own decides what is ready."""
    weight = s.Variable(1.0, name="weight")
    one = s.Variable(2.0, name="one")
    ready = s.report_uninitialized_variables([one])
    scaffold = s.train.Scaffold(init_op=one.initializer, ready_op=ready, ready_for_local_init_op=ready)
    with s.train.MonitoredSession(s.train.ChiefSessionCreator(scaffold)) as sess:
        return {"one": sess.run(one), "weight": raised(sess.run, weight)}


@scenario("scaffold.copy")
def _(s: System) -> Record:
    """A copy takes over what it is not given."""
    counting(s)
    saver, init = s.train.Saver(), s.no_op()
    one = s.train.Scaffold(saver=saver, init_op=init)
    other = s.train.Scaffold(init_op=s.no_op(), copy_from_scaffold=one)
    return {
        "saver": other.saver is saver,
        "init_op": other.init_op is not init,
        "refused": raised(s.train.Scaffold, copy_from_scaffold="no scaffold"),
    }


@scenario("scaffold.get_or_default")
def _(s: System) -> Record:
    """`get_or_default` takes the item of a collection, or makes and stores one."""
    made = s.train.Scaffold.get_or_default("summary_op", "mine", lambda: "made")
    again = s.train.Scaffold.get_or_default("summary_op", "mine", lambda: "another")
    return {"made": made, "again": again, "stored": s.get_collection("mine")}
