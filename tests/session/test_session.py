"""Sessions: fetches, feeds, stages, life and death."""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict, namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.stand_ins import Servers

import hookline as hl
from hookline import errors, train


@pytest.fixture
def sess():
    with hl.Session() as session:
        yield session


# Fetches ----------------------------------------------------------------------------------------------------------


def test_results_have_the_structure_of_the_fetches(sess):
    a, b = hl.constant(1.0, name="a"), hl.constant(2.0, name="b")
    point = namedtuple("point", "x y")

    assert sess.run(a) == 1.0
    assert sess.run([a, b]) == [1.0, 2.0]
    assert sess.run((a, [b, a])) == (1.0, [2.0, 1.0])
    assert sess.run({"one": a, "more": {"two": (b,)}}) == {"one": 1.0, "more": {"two": (2.0,)}}
    result = sess.run(point(x=a, y=[b]))
    assert isinstance(result, point)
    assert result.y == [2.0]
    assert sess.run([]) == []
    assert sess.run({}) == {}


def test_operations_and_tensors_are_fetched_by_name(sess):
    hl.constant(1.0, name="a")
    assert sess.run(["a", "a:0"]) == [None, 1.0]


def test_invalid_fetch_is_named(sess):
    hl.constant(1.0, name="loss")
    with pytest.raises(ValueError, match=r"'los:0' cannot be fetched.*Did you mean 'loss'"):
        sess.run("los:0")
    with pytest.raises(TypeError, match=r"3 cannot be fetched.*type int"):
        sess.run([3])
    with pytest.raises(TypeError, match="None cannot be fetched"):
        sess.run(None)
    with hl.Graph().as_default():
        foreign = hl.constant(1.0, name="foreign")
    with pytest.raises(ValueError, match="'foreign:0' belongs to another graph"):
        sess.run(foreign)


def test_only_needed_operations_run(sess):
    calls = []
    wanted = hl.host_op(lambda: calls.append("wanted") or 1.0).node()
    hl.host_op(lambda: calls.append("unwanted") or 1.0).node()
    sess.run([wanted, wanted * 2])
    assert calls == ["wanted"]


def test_results_are_arrays_that_may_still_be_computed(sess):
    result = sess.run(hl.constant(np.ones((2, 2))) @ np.ones((2, 2)))
    assert isinstance(result, jax.Array)


# Feeds ------------------------------------------------------------------------------------------------------------


def test_any_tensor_may_be_fed_and_replaces_its_inputs(sess):
    calls = []
    source = hl.host_op(lambda: calls.append(1) or {"x": 1.0, "y": 2.0}, spec={"x": 0.0, "y": 0.0}).node()
    variable = hl.Variable(5.0, name="v")
    doubled = source["x"] * 2

    assert sess.run(doubled, {doubled: 7.0}) == 7.0
    assert sess.run(doubled, {source: {"x": 4.0, "y": 0.0}}) == 8.0
    assert sess.run(doubled, {source["x"]: 3.0}) == 6.0
    assert sess.run(variable + 1.0, {variable: 1.0}) == 2.0
    assert calls == []
    assert sess.run([doubled, source["y"]], {source["x"]: 3.0}) == [6.0, 2.0]
    assert calls == [1]


def test_feeds_are_cast_within_their_kind(sess):
    x = hl.placeholder("float32", [], name="x")
    n = hl.placeholder("int32", [], name="n")
    assert sess.run(x, {x: np.float64(1.5)}).dtype == jnp.float32
    assert sess.run(x, {x: 2}) == 2.0
    assert sess.run(n, {"n:0": np.int64(3)}).dtype == jnp.int32


@pytest.mark.parametrize(
    ("key", "value", "kind", "message"),
    [
        ("x:0", np.ones((2, 4)), errors.InvalidArgumentError, r"'x:0' has shape \(2, 4\), but \(None, 3\) is required"),
        ("x:0", np.ones(3), errors.InvalidArgumentError, r"'x:0' has shape \(3,\)"),
        ("x:0", [[1.0], [1.0, 2.0]], errors.InvalidArgumentError, "'x:0' is not an array"),
        (
            "x:0",
            [["a", "b", "c"]],
            errors.InvalidArgumentError,
            "'x:0' has dtype <U1, where float32 is required: .*'c'",
        ),
        ("x:0", "text", errors.InvalidArgumentError, "'x:0' has dtype <U4, where float32 is required: 'text'"),
        ("n:0", None, errors.InvalidArgumentError, "'n:0' has dtype object, where int32 is required: None"),
        ("n:0", 1.5, errors.InvalidArgumentError, "'n:0' has dtype float64, which cannot be cast to int32"),
        ("missing:0", 1.0, ValueError, "'missing:0' cannot be fed.*no operation 'missing'"),
        ("x", 1.0, TypeError, "'x' is an operation; feed its tensor, 'x:0'"),
        (3, 1.0, TypeError, "3 cannot be fed"),
    ],
)
def test_a_wrong_feed_is_named_and_changes_nothing(sess, key, value, kind, message):
    x = hl.placeholder("float32", [None, 3], name="x")
    n = hl.placeholder("int32", [], name="n")
    count = hl.Variable(0, name="count", trainable=False)
    feeds = {x: np.zeros((1, 3)), n: 0}
    sess.run(count.initializer)
    bump = count.assign_add(1)
    with pytest.raises(kind, match=message):
        sess.run([x, n, bump], {k: v for k, v in feeds.items() if k.name != key} | {key: value})
    assert sess.run(count) == 0


@pytest.mark.parametrize("empty", [[], np.array([], object), np.array([], str)])
def test_dtype_of_an_empty_array_is_ignored(sess, empty):
    x = hl.placeholder("float32", [None], name="x")
    assert sess.run(hl.op(jnp.sum)(x), {x: empty}) == 0


@pytest.mark.parametrize("value", [jnp.ones(3, jnp.float16), [jnp.ones(()), 2.0]])
def test_donated_fed_array_is_named_at_its_conversion(sess, value):
    x = hl.placeholder("float32", [None], name="x")
    for leaf in jax.tree.leaves(value)[:1]:
        jax.jit(lambda given: given + 1, donate_argnums=0)(leaf)
    with pytest.raises(errors.InvalidArgumentError, match="fed for 'x:0' .*deleted"):
        sess.run(x * 2, {x: value})


def test_error_under_a_jax_transformation_is_unchanged(sess):
    x = hl.placeholder("float32", [], name="x")

    built = []

    def fails(value):
        if built:
            raise KeyError("the user's own")
        return value

    y = hl.op(fails)(x)
    built.append(y)
    with pytest.raises(KeyError, match="the user's own"):
        jax.jit(lambda value: sess.run(y, {x: value}))(1.0)


@pytest.mark.parametrize("runs", range(4))
def test_donated_fed_array_is_named_and_changes_nothing(sess, runs):
    x = hl.placeholder("float32", [None, 3], name="x")
    total = hl.Variable(0.0, name="total")
    step = train.get_or_create_global_step()
    add = hl.group(total.assign_add(hl.op(jnp.sum)(x)), step.assign_add(1))
    sess.run(hl.global_variables_initializer())
    batches = [jnp.ones((2, 3)) * number for number in range(runs + 2)]
    for batch in batches[:runs]:
        sess.run(add, {x: batch})
    batches[runs].delete()
    with pytest.raises(errors.InvalidArgumentError, match="fed for 'x:0' was deleted before the run"):
        sess.run(add, {x: batches[runs]})
    assert sess.global_step == runs
    sess.run(add, {x: batches[runs + 1]})
    assert sess.run([total, step]) == [6 * (sum(range(runs)) + runs + 1), runs + 1]


def test_missing_feed_is_named_with_the_line_that_created_it(sess):
    x = hl.placeholder("float32", [], name="x")
    with pytest.raises(
        errors.InvalidArgumentError, match=r"must be fed for the placeholder 'x:0' \(made at .*test_session"
    ):
        sess.run(x * 2)


def test_duplicate_feed_is_refused(sess):
    x = hl.placeholder("float32", [], name="x")
    with pytest.raises(ValueError, match="'x:0' is fed twice"):
        sess.run(x, {x: 1.0, "x:0": 2.0})


def test_strings_reach_host_operations(sess):
    path = hl.placeholder(str, name="path")
    assert sess.run(hl.host_op(lambda p: p.upper())(path), {path: "abc"}) == "ABC"


# Stages -----------------------------------------------------------------------------------------------------------


def test_host_device_host_is_one_run(sess):
    batch = hl.host_op(lambda: np.arange(3.0, dtype="float32"), spec=np.zeros(3, "float32")).node()
    total = hl.op(jnp.sum)(batch * 2)
    text = hl.host_op(lambda value: f"total {value:.1f}, {type(value).__name__}")(total)
    assert sess.run([text, total]) == ["total 6.0, ndarray", 6.0]


def test_second_device_stage_is_refused_with_its_path(sess):
    value = hl.op(jnp.sum, name="sum")(hl.placeholder("float32", [None], name="x"))
    middle = hl.host_op(lambda v: v, name="middle")(value)
    last = hl.op(jnp.exp, name="last")(middle)
    with pytest.raises(errors.InvalidArgumentError, match=r"'last' <- 'middle' <- 'sum'.*jax\.pure_callback"):
        sess.run(last, {"x:0": [1.0]})


def test_host_operation_may_read_the_global_step_before_the_device_runs(sess):
    step = hl.train.get_or_create_global_step()
    rate = hl.host_op(lambda s: np.float32(1.0 / (1 + s)))(step)
    sess.run(step.initializer)
    with hl.control_dependencies([rate * 2]):
        bump = step.assign_add(1)
    assert [float(sess.run([rate * 2, bump])[0]) for _ in range(3)] == pytest.approx([2.0, 1.0, 2 / 3])


def test_host_source_at_its_end_is_out_of_range_and_changes_nothing(sess):
    items = iter([1.0])
    item = hl.host_op(lambda: next(items), name="source").node()
    total = hl.Variable(0.0, name="total")
    add = total.assign_add(item)
    sess.run(total.initializer)
    sess.run(add)
    with pytest.raises(errors.OutOfRangeError, match="'source'.*the input has ended"):
        sess.run(add)
    assert sess.run(total) == 1.0


def test_host_operation_that_fails_after_the_device_keeps_the_writes(sess):
    v = hl.Variable(0.0, name="v")
    bump = v.assign_add(1.0)
    report = hl.host_op(lambda _: 1 / 0, name="report")(bump)
    sess.run(v.initializer)
    with pytest.raises(ZeroDivisionError) as caught:
        sess.run(report)
    assert "'report'" in caught.value.__notes__[0]
    assert sess.run(v) == 1.0


def test_error_in_a_traced_function_keeps_its_type_and_names_the_operation(sess):
    def bad(x):
        raise LookupError("user error")

    x = hl.placeholder("float32", name="x")
    y = hl.op(bad, name="bad")(x)
    v = hl.Variable(0.0, name="v")
    bump = v.assign_add(1.0)
    sess.run(v.initializer)
    with pytest.raises(LookupError, match="user error") as caught:
        sess.run([y, bump], {x: 1.0})
    assert "'bad'" in caught.value.__notes__[0]
    assert sess.run(v) == 0.0


def test_large_constants_are_arguments_of_the_program(sess):
    data = hl.constant(np.arange(5000.0, dtype="float32"))
    metadata = hl.RunMetadata()
    total = sess.run(hl.op(jnp.sum)(data), options=hl.RunOptions(output_partition_graphs=True), run_metadata=metadata)
    assert total == np.arange(5000.0).sum()
    assert "f32[5000]{0} parameter(" in metadata.partition_graphs[0]


# Life -------------------------------------------------------------------------------------------------------------


def test_an_uninitialised_variable_is_named(sess):
    v = hl.Variable(1.0, name="weights")
    with pytest.raises(errors.FailedPreconditionError, match="Variable 'weights' has no value yet") as caught:
        sess.run(v * 2)
    assert caught.value.op is v.op


def test_closed_session_raises():
    v = hl.Variable(1.0, name="v")
    with hl.Session() as sess:
        sess.run(v.initializer)
        sess.run(v)
    sess.close()
    assert sess.closed
    for use in (lambda: sess.run(v), lambda: sess.global_step, sess.snapshot):
        with pytest.raises(RuntimeError, match="Attempted to use a closed Session"):
            use()


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [({"target": "grpc://a"}, ValueError), ({"config": {}}, TypeError), ({"graph": "graph"}, TypeError)],
)
def test_invalid_arguments_are_refused(arguments, kind):
    with pytest.raises(kind, match="Session"):
        hl.Session(**arguments)


def test_session_makes_its_graph_the_default():
    graph = hl.Graph()
    with hl.Session(graph=graph) as sess:
        assert sess.run(hl.constant(1.0)) == 1.0
    assert hl.get_default_graph() is not graph


def failing_update():
    def explode(x):
        raise RuntimeError("the device exploded")

    def body(old):
        return old + jax.pure_callback(explode, jax.ShapeDtypeStruct((), jnp.float32), old)

    v = hl.Variable(1.0, name="v")
    return v, hl.update(v, body)


def test_failed_program_loses_the_session_and_later_runs_raise_the_reason(sess):
    v, update = failing_update()
    sess.run(v.initializer)
    with pytest.raises((errors.OpError, jax.errors.JaxRuntimeError)) as first:  # noqa: PT012
        result = sess.run(update)
        try:
            float(result)
        except jax.errors.JaxRuntimeError as error:
            raise sess.backend.map_error(error) from error
    assert isinstance(first.value, errors.AbortedError)
    assert "the device exploded" in str(first.value.__cause__)
    for _ in range(2):
        with pytest.raises(errors.AbortedError, match=r"session is lost.*restore a checkpoint"):
            sess.run(v)


def test_failed_program_that_writes_nothing_keeps_the_session(sess):
    def explode(x):
        raise RuntimeError("the device exploded")

    v = hl.Variable(1.0, name="v")
    broken = hl.op(lambda x: jax.pure_callback(explode, jax.ShapeDtypeStruct((), jnp.float32), x))(v)
    shown = hl.host_op(str)(broken)
    sess.run(v.initializer)
    with pytest.raises(errors.InternalError, match="the device exploded"):
        sess.run(shown)
    assert sess.run(v) == 1.0


def test_wait_for_a_step_ends_with_the_run_that_reaches_it(sess):
    step = hl.train.get_or_create_global_step()
    bump = step.assign_add(1)
    sess.run(step.initializer)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(sess.wait_for_step(3)))
    thread.start()
    for _ in range(3):
        sess.run(bump)
    thread.join()
    assert seen == [3]
    assert sess.wait_for_step(100, timeout_secs=0.0) == 3


def test_two_threads_that_use_a_session_at_once_open_one_store(monkeypatch):
    opening, second_waits, go_on = threading.Event(), threading.Event(), threading.Event()
    opened = []

    class Target:
        def open_store(self, graph):
            (second_waits if opened else opening).set()
            opened.append(Servers().open_store(graph))
            assert go_on.wait(10)
            return opened[-1]

    class TellingLock:
        """A lock that notifies when a thread has to wait for it."""

        def __init__(self):
            self._lock = threading.Lock()

        def __enter__(self):
            if not self._lock.acquire(blocking=False):
                second_waits.set()
                self._lock.acquire()

        def __exit__(self, *exc_info):
            self._lock.release()

    with monkeypatch.context() as patch:
        patch.setattr(threading, "RLock", TellingLock)
        sess = hl.Session(Target())
    stores = []
    threads = [threading.Thread(target=lambda: stores.append(sess.backend.store)) for _ in range(2)]
    threads[0].start()
    assert opening.wait(10)
    threads[1].start()
    assert second_waits.wait(10)
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert len(opened) == 1
    assert stores == [opened[0]] * 2


# Options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host_known", [True, False])
def test_run_at_the_last_step_is_not_applied_and_succeeds(sess, host_known):
    step = hl.train.get_or_create_global_step()
    v = hl.Variable(0.0, name="v")
    gain = 2 if host_known else hl.constant(2)
    grown = v.assign_add(1.0)
    train = hl.group(grown, step.assign_add(gain))
    sess.run(hl.global_variables_initializer())
    applied = []
    for _ in range(4):
        metadata = hl.RunMetadata()
        result = sess.run([train, grown], options=hl.RunOptions(last_step=5), run_metadata=metadata)
        applied.append((metadata.applied, float(result[1]), metadata.global_step))
    # The third begins below the limit and passes it; the fourth begins past it.
    assert applied == [(True, 1.0, 2), (True, 2.0, 4), (True, 3.0, 6), (False, 4.0, 6)]
    assert sess.run(v) == 3.0


def test_merged_options_satisfy_all():
    merged = hl.session.merge_options(
        [
            hl.RunOptions(trace_level=1, debug_tensor_watches=("a:0",), last_step=9),
            None,
            hl.RunOptions(output_partition_graphs=True, debug_tensor_watches=("b:0",), last_step=7),
        ]
    )
    assert merged == hl.RunOptions(1, True, ("a:0", "b:0"), 7)
    assert hl.session.merge_options([None]) is None


def test_metadata_has_times_and_debug_tensors(sess):
    a = hl.constant(np.ones(3), name="a")
    b = hl.op(jnp.sum, name="b")(a)
    metadata = hl.RunMetadata()
    options = hl.RunOptions(trace_level=1, debug_tensor_watches=("a:0",))
    assert sess.run(b, options=options, run_metadata=metadata) == 3.0
    assert metadata.watched["a:0"].tolist() == [1.0, 1.0, 1.0]
    assert metadata.stage_secs.keys() == {"before", "device", "after"}


# Found in review ----------------------------------------------------------------------------------------------------


def test_structures_of_dicts_and_lists_keep_their_classes(sess):
    a, b = hl.constant(1.0), hl.constant(2.0)
    for key, tensor, value in (("a", a, 1.0), ("b", b, 2.0)):
        result = sess.run(OrderedDict({key: tensor}))
        assert type(result) is OrderedDict
        assert result == {key: value}
    grouped = defaultdict(list, {"all": [a, b]})
    result = sess.run(grouped)
    assert type(result) is defaultdict
    assert result == {"all": [1.0, 2.0]}
    assert result["new"] == []
    with pytest.raises(TypeError, match="cannot be fetched.*of type set"):
        sess.run({a, b})


def test_empty_feed_is_no_feed(sess):
    assert sess.run(hl.constant(1.0), feed_dict={}) == 1.0


def test_recreated_view_is_planned_once(sess):
    x = hl.placeholder("float32", [None, 2], name="x")
    pair = hl.op(lambda x: {"sum": x.sum(), "shape": x})(x)
    for _ in range(5):
        sess.run(pair["sum"], {x: np.ones((1, 2))})
    assert len(sess.backend._plans._young) == 1


def test_fetched_constant_cannot_be_changed_by_its_reader(sess):
    c = hl.constant(np.ones(2))
    with pytest.raises((TypeError, ValueError)):
        sess.run(c)[0] = 5.0
    assert sess.run(c).tolist() == [1.0, 1.0]


def test_out_of_range_integers_are_refused(sess):
    n = hl.placeholder("int32", [None], name="n")
    assert sess.run(n, {n: np.array([2**31 - 1])})[0] == 2**31 - 1
    with pytest.raises(errors.InvalidArgumentError, match="'n:0' holds integers from 0 to 2147483648, but int32"):
        sess.run(n, {n: np.array([0, 2**31])})


def test_feeding_a_part_of_a_value_needed_as_a_whole_is_refused(sess):
    v = hl.Variable({"a": 1.0, "b": 2.0}, name="v")
    sess.run(v.initializer)
    with pytest.raises(errors.InvalidArgumentError, match=r"v:0\['a'\].* is fed, but this run needs the whole 'v:0'"):
        sess.run(v, {v["a"]: 5.0})


def test_loading_is_all_or_nothing(sess):
    a, b = hl.Variable(1.0, name="a"), hl.Variable(2, name="b", trainable=False)
    sess.run(hl.global_variables_initializer())
    with pytest.raises(ValueError, match="Variable 'b' cannot hold"):
        sess.load({"a": 5.0, "b": 2**40})
    with pytest.raises(KeyError, match="no variable 'c'"):
        sess.load({"a": 5.0, "c": 1})
    assert sess.run([a, b]) == [1.0, 2]


def test_debug_tensors_work_with_hooks_without_fetches(sess):
    a = hl.constant(1.0, name="a") * 1.0
    metadata = hl.RunMetadata()
    options = hl.RunOptions(debug_tensor_watches=("a:0",))
    result, watched = sess.backend.run_with_hook_fetches(
        a, (None, {"a": a}, None), options=options, run_metadata=metadata
    )
    assert (result, watched) == (1.0, (None, {"a": 1.0}, None))
    assert metadata.watched == {"a:0": 1.0}


def test_metadata_of_a_run_without_a_step_is_filled(sess):
    hl.train.create_global_step()
    metadata = hl.RunMetadata()
    assert sess.run(hl.constant(1.0), run_metadata=metadata) == 1.0
    assert metadata.global_step is None


@pytest.mark.parametrize("options", [None, hl.RunOptions(last_step=100)])
def test_failed_unread_program_is_aborted_at_the_next_run(sess, options):
    step = hl.train.get_or_create_global_step()
    v, update = failing_update()
    train = hl.group(update, step.assign_add(1))
    sess.run(hl.global_variables_initializer())
    with pytest.raises(errors.AbortedError, match="session is lost") as caught:  # noqa: PT012
        for _ in range(50):
            sess.run(train, options=options)
        sess.run(hl.host_op(float)(v))
    assert caught.value.__cause__ is not None
    with pytest.raises(errors.AbortedError, match="session is lost"):
        sess.snapshot()


def test_other_threads_can_read_the_step_while_runs_donate_its_buffer(sess):
    step = hl.train.get_or_create_global_step()
    bump = step.assign(hl.op(lambda s: s + 1)(step))
    sess.run(step.initializer)
    failures, done = [], threading.Event()

    def read():
        while not done.is_set():
            try:
                sess.wait_for_step(sess.global_step, timeout_secs=0)
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        sess.run(bump)
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sess.global_step == 300


def test_step_delta_of_a_run_is_known_before_it(sess):
    step = hl.train.get_or_create_global_step()
    one, ten = step.assign_add(1), step.assign_add(10)
    unknown = step.assign(hl.op(lambda s: s + 1)(step))
    assert [sess.backend.step_delta(f) for f in ([one], one, [one, ten], step, unknown)] == [1, 1, 11, 0, None]


def test_unknown_names_and_names_without_a_value_are_refused_on_a_finalized_graph(sess):
    v = hl.Variable(1.0, name="weights")
    folded = hl.constant(2.0, name="folded") * 3.0
    hl.get_default_graph().finalize()
    with pytest.raises(errors.FailedPreconditionError, match="'weights' has no value yet"):
        sess.run("weights:0")
    with pytest.raises(ValueError, match="'folder:0' cannot be fed.*Did you mean 'folded'"):
        sess.run(folded, {"folder:0": 1.0})
    # "folded" alone could mean the operation or its tensor; the error names the one for feeding.
    with pytest.raises(TypeError, match="'folded' is an operation; feed its tensor, 'folded:0'"):
        sess.run(folded, {"folded": 1.0})
    assert sess.run(folded, {"folded:0": 1.0}) == 3.0
    assert sess.uninitialized([v]) == ["weights"]


def test_loop_with_the_same_feed_keys_gets_the_results_of_each_run():
    x, y = hl.placeholder("float32", [None], name="x"), hl.placeholder("float32", [None], name="y")
    difference, total = x - y, x + y
    with hl.Session() as sess:
        one, two = jnp.array([1.0]), jnp.array([2.0])
        assert sess.run(difference, {x: one, y: two}) == -1
        assert sess.run(difference, {x: two, y: one}) == 1
        assert sess.run(difference, {y: two, x: one}) == -1
        assert sess.run(total, {x: one, y: two}) == 3
        assert sess.run(difference, {"x:0": one, y: two}) == -1
        assert sess.run(difference, {(x, y): (one, two)}) == -1
        assert sess.run(difference, {difference: one}) == 1
        # The same again, in other forms: as before each is checked.
        assert sess.run(difference, {difference: jnp.array([5, 6])}).tolist() == [5.0, 6.0]
        for wrong in (jnp.ones((1, 1)), np.ones((1, 1)), jnp.ones(1) > 0, "text"):
            with pytest.raises(hl.errors.InvalidArgumentError, match="x:0"):
                sess.run(difference, {x: wrong, y: two})
            assert sess.run(difference, {x: one, y: two}) == -1
        with pytest.raises(hl.errors.InvalidArgumentError, match="placeholder 'y:0'"):
            sess.run(difference, {x: one})
        with pytest.raises(TypeError, match="feed_dict must be a dict"):
            sess.run(difference, [x, y])
