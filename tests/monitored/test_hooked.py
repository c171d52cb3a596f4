from __future__ import annotations

from collections import namedtuple

import pytest
from tests.monitored.conftest import QUICK, Scripted, monitored

from hookline import Graph, RunMetadata, RunOptions, constant, placeholder
from hookline.errors import UnavailableError
from hookline.testing import FakeSession
from hookline.train import MonitoredSession, SessionRunArgs, SessionRunHook


class Asking(SessionRunHook):
    def __init__(self, *answers):
        self.answers = list(answers)
        self.values = []

    def before_run(self, run_context):
        self.context = run_context
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def after_run(self, run_context, run_values):
        self.values.append(run_values)


@pytest.fixture
def graph():
    with Graph().as_default() as graph:
        constant(1.0, name="loss")
        placeholder("float32", (), name="x")
        placeholder("float32", (), name="y")
    return graph


def test_run_without_requests_has_the_callers_arguments(recorder):
    raw = FakeSession()
    feeds, options, metadata = {"x:0": 1}, RunOptions(), RunMetadata()
    monitored(raw, recorder()).run("train", feeds, options, metadata)
    asked = raw.requests[0]
    assert asked.hook_fetches == ()
    assert asked.feed_dict is feeds
    assert asked.options is options
    assert asked.run_metadata is metadata


def test_each_hook_gets_results_in_its_structure_or_none_without_a_request():
    pair = namedtuple("pair", "first second")
    a = Asking(SessionRunArgs({"l": "loss:0", "list": ["x:0"]}))
    b, c = Asking(None), Asking(SessionRunArgs(pair("loss:0", ("x:0", "train"))))
    raw = FakeSession(values={"loss:0": 0.5, "x:0": 3, "train": None})
    monitored(raw, a, b, c).run("train")
    assert a.values[0].results == {"l": 0.5, "list": [3]}
    assert b.values[0].results is None
    assert c.values[0].results == pair(0.5, (3, None))
    assert raw.requests[0].fetches == "train"


def test_object_with_one_callback_is_a_hook(events):
    class Duck:
        def after_run(self, run_context, run_values):
            events.append(run_values.results)

    monitored(FakeSession(), Duck()).run("train")
    assert events == [None]


def test_context_has_the_callers_arguments_and_the_raw_session():
    raw, hook = FakeSession(), Asking(SessionRunArgs("loss:0"))
    session = monitored(raw, hook)
    session.run("train", {"x:0": 1})
    assert hook.context.original_args == SessionRunArgs("train", {"x:0": 1}, None)
    assert hook.context.session is raw
    session.run("other")
    assert hook.context.original_args == SessionRunArgs("other")


def test_hooks_may_add_feeds_to_the_callers(graph):
    raw = FakeSession(graph=graph)
    monitored(raw, Asking(SessionRunArgs(None, {"x:0": 1}))).run("train", {"y:0": 2})
    x, y = graph.get_tensor_by_name("x:0"), graph.get_tensor_by_name("y:0")
    assert raw.requests[0].feed_dict == {x: 1, y: 2}


def test_tensor_fed_by_two_hooks_is_an_error_that_names_them(graph):
    x = graph.get_tensor_by_name("x:0")
    session = monitored(
        FakeSession(graph=graph), Asking(SessionRunArgs(None, {x: 1})), Asking(SessionRunArgs(None, {"x:0": 1}))
    )
    with pytest.raises(
        RuntimeError, match=r"^Same tensor is fed by two hooks\. Conflict\(s\): x:0, fed by the hook Asking"
    ):
        session.run("train")


def test_tensor_fed_by_a_hook_and_the_caller_is_an_error(graph):
    session = monitored(FakeSession(graph=graph), Asking(SessionRunArgs(None, {"x:0": 1})))
    with pytest.raises(RuntimeError, match=r"^Same tensor is fed by a SessionRunHook and user\. Conflict\(s\): x:0"):
        session.run("train", {graph.get_tensor_by_name("x:0"): 2})


def test_options_are_merged_and_passed_to_every_hook():
    a = Asking(SessionRunArgs(None, None, RunOptions(last_step=5, trace_level=1)))
    b = Asking(None)
    raw = FakeSession()
    monitored(raw, a, b).run("train", options=RunOptions(last_step=9))
    assert raw.requests[0].options == RunOptions(last_step=5, trace_level=1)
    assert b.values[0].options == raw.requests[0].options
    assert b.values[0].run_metadata is raw.requests[0].run_metadata is not None


def test_run_metadata_is_created_only_for_recording():
    hook = Asking(SessionRunArgs("loss:0", None, RunOptions()), SessionRunArgs("loss:0", None, RunOptions(last_step=5)))
    session = monitored(raw := FakeSession(), hook)
    session.run("train")
    session.run("train")
    assert raw.requests[0].run_metadata is None
    assert raw.requests[1].run_metadata is not None
    mine = RunMetadata()
    session.run("train", run_metadata=mine)
    assert hook.values[-1].run_metadata is mine


def test_merged_request_is_cached_for_equal_answers():
    args = SessionRunArgs("loss:0")
    hook = Asking(args, args, None, SessionRunArgs("x:0"))
    raw = FakeSession()
    session = monitored(raw, hook)
    for _ in range(4):
        session.run("train")
    assert [asked.hook_fetches for asked in raw.requests] == [("loss:0",), ("loss:0",), (), ("x:0",)]


def test_cached_request_is_not_stale_after_a_hook_raised(recorder):
    asking = Asking(SessionRunArgs("loss:0"), SessionRunArgs("x:0"), SessionRunArgs("x:0"))
    raw = FakeSession()
    session = monitored(raw, asking, recorder(fails={"before": [None, ValueError("no"), None]}))
    session.run("train")
    with pytest.raises(ValueError, match="no"):
        session.run("train")
    asking.answers = [asking.answers[-1]]
    session.run("train")
    assert raw.requests[-1].hook_fetches == ("x:0", None)


def test_feed_dict_changed_in_place_is_read_again(graph):
    feeds = {"x:0": 1}
    raw = FakeSession(graph=graph)
    session = monitored(raw, Asking(SessionRunArgs(None, feeds)))
    session.run("train")
    feeds["x:0"] = 2
    session.run("train")
    assert [list(asked.feed_dict.values()) for asked in raw.requests] == [[1], [2]]


@pytest.mark.parametrize(
    ("fetch", "kind"), [("losss:0", KeyError), (3, TypeError), ({"a": [None, object()]}, TypeError)]
)
def test_fetch_missing_in_the_graph_names_the_hook(graph, fetch, kind):
    raw = FakeSession([kind("engine says no")], graph=graph)
    with pytest.raises(kind, match="The hook Asking fetches something that is not in the graph"):
        monitored(raw, Asking(SessionRunArgs("loss:0")), Asking(SessionRunArgs(fetch))).run("train")


def test_error_not_caused_by_a_hook_is_unchanged(graph):
    error = ValueError("bad batch")
    with pytest.raises(ValueError, match="bad batch") as caught:
        monitored(FakeSession([error], graph=graph), Asking(SessionRunArgs("loss:0"))).run("train")
    assert caught.value is error


@pytest.mark.parametrize("callback", ["before", "after"])
def test_all_hooks_get_after_run_when_one_requests_a_stop(recorder, events, callback):
    session = monitored(FakeSession(), recorder("a", stops=[callback]), recorder("b"))
    session.run("train")
    assert session.should_stop()
    assert events[-2:] == ["a.after", "b.after"]
    with pytest.raises(RuntimeError, match="^Run called even after should_stop requested.$"):
        session.run("train")


def test_stop_requested_in_a_failed_attempt_takes_effect_after_the_retry(recorder):
    class StopsAtFirst(SessionRunHook):
        asked = False

        def before_run(self, run_context):
            if not self.asked:
                self.asked = True
                run_context.request_stop()

    hooks = StopsAtFirst(), recorder(fails={"after": [UnavailableError(None, None, "x"), None]})
    session = MonitoredSession(Scripted(FakeSession(), retried := FakeSession()), hooks, **QUICK)
    session.run("train")
    assert len(retried.requests) == 1
    assert session.should_stop()
    with pytest.raises(RuntimeError, match="should_stop requested"):
        session.run("train")


def test_error_in_before_run_prevents_the_run_and_later_callbacks(recorder, events):
    raw = FakeSession()
    with pytest.raises(KeyError):
        monitored(raw, recorder("a", fails={"before": KeyError("x")}), recorder("b")).run("train")
    assert "a.before" in events
    assert "b.before" not in events
    assert raw.requests == []


def test_jax_runtime_errors_are_mapped_and_keep_their_cause():
    jax_errors = pytest.importorskip("jax.errors")
    engine = jax_errors.JaxRuntimeError("UNAVAILABLE: peer 3")
    with pytest.raises(UnavailableError, match="peer 3") as caught:
        monitored(FakeSession([engine])).run("train")
    assert caught.value.__cause__ is engine


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (SessionRunArgs("loss:0", feed_dict=5), "None or a Mapping as feed_dict of its SessionRunArgs, got 5"),
        (SessionRunArgs("loss:0", options={"trace_level": 1}), "None or a RunOptions as options .* got {'trace_level'"),
    ],
)
def test_invalid_feeds_and_options_name_the_hook(args, complaint):
    with pytest.raises(TypeError, match=f"The hook Asking must give {complaint}"):
        monitored(FakeSession(), Asking(args)).run("train")


@pytest.mark.parametrize("asks", [False, True])
def test_options_and_metadata_are_objects_without_a_request(asks):
    seen = []

    class Looks(SessionRunHook):
        def before_run(self, run_context):
            return SessionRunArgs("loss:0") if asks else None

        def after_run(self, run_context, run_values):
            seen.append((run_values.options, run_values.run_metadata))

    session = monitored(FakeSession(), Looks())
    session.run("train")
    given = RunOptions(trace_level=1), RunMetadata()
    session.run("train", None, *given)
    assert seen[0] == (RunOptions(), RunMetadata())
    assert seen[1] == given
    assert seen[1][1] is given[1]


@pytest.mark.parametrize("asks", [None, SessionRunArgs("loss:0")])
def test_deliver_pending_calls_after_run_of_later_hooks_first(recorder, events, asks):
    class Settling(SessionRunHook):
        def after_run(self, run_context, run_values):
            run_context.deliver_pending()
            events.append("settled")

    monitored(FakeSession(), Settling(), recorder(asks=asks)).run("train")
    assert events[-3:] == ["a.before", "a.after", "settled"]
