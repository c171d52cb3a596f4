"""Several steps in one run: the same numbers, the same firings, at the same steps."""

from __future__ import annotations

import functools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hookline as hl
from hookline import train
from hookline.testing import FakeClock, FakeSession

NAN_AT = 23


def walk(bad_at: int | None = None):
    """A model whose step draws a key, follows a schedule, and keeps an average: all must work in a compiled loop."""
    step = train.get_or_create_global_step()
    weights = hl.Variable(np.ones(3, np.float32), name="weights")
    key = hl.random_key()

    def move(weights, key, step):
        moved = weights * 0.99 + jax.random.normal(key, (3,)) / (10.0 + step)
        return moved if bad_at is None else jnp.where(step + 1 == bad_at, jnp.nan, moved)

    moved = weights.assign(hl.op(move)(weights, key, step))
    loss = hl.op(lambda value: (value**2).sum(), name="loss")(moved)
    average = train.ExponentialMovingAverage(0.9)
    with hl.control_dependencies([moved]):
        averaged = average.apply([weights])
    return hl.group(averaged, step.assign_add(1), name="train"), loss, weights, average.average(weights)


class Firings(train.SessionRunHook):
    def __init__(self, trigger, fetches=None, late=False):
        self.trigger, self.fetches, self.deferred, self.seen = trigger, fetches, late, []

    def on_trigger(self, firing):
        values = firing.values if self.fetches is None else float(firing.values)
        self.seen.append((firing.global_step, firing.elapsed_steps, values))


def trained(steps_per_run, last_step=230, hooks=lambda loss: [], bad_at=None, **keywords):
    """Returns the values of the variables, the hooks, and the number of calls."""
    with hl.Graph(seed=3).as_default():
        train_op, loss, *_ = walk(bad_at)
        added = hooks(loss)
        calls = 0
        with train.MonitoredTrainingSession(
            hooks=[train.StopAtStepHook(last_step=last_step), *added], steps_per_run=steps_per_run, **keywords
        ) as session:
            while not session.should_stop():
                assert session.run(train_op) is None
                calls += 1
            raw = session.raw_session()
            values = {name: np.asarray(value) for name, value in raw.snapshot().items()}
    return values, added, calls


def same(one, other):
    return one.keys() == other.keys() and all((one[name] == other[name]).all() for name in one)


def hooks_of_many_kinds(loss):
    return [
        Firings(train.every(7), loss),
        Firings(train.every(11)),
        Firings(train.every(13), loss, late=True),
        Firings(train.every(runs=100), loss),
        Firings(train.first_run()),
        Firings(train.at_steps(5, 64, 65)),
        Firings(train.every(17) | train.every(29), loss),
        Firings(train.when_step(lambda step: step in (3, 50))),
    ]


@functools.cache
def of_single_steps():
    return trained(1, hooks=hooks_of_many_kinds)


@pytest.mark.parametrize(
    "steps_per_run", [4, 1000, *[pytest.param(n, marks=pytest.mark.campaign) for n in (2, 16, 64)]]
)
def test_model_and_firings_equal_those_of_single_steps(steps_per_run):
    values, hooks, _ = of_single_steps()
    found, others, _ = trained(steps_per_run, hooks=hooks_of_many_kinds)
    assert same(found, values)
    assert [hook.seen for hook in others] == [hook.seen for hook in hooks]
    assert hooks[0].seen[0][0] == 7, "or nothing was compared"


def test_run_has_steps_per_run_steps_unless_a_hook_is_due():
    assert trained(64, 640)[2] == 1 + 10, "the first one asks everybody"
    _, (hook,), calls = trained(64, 1000, hooks=lambda loss: [Firings(train.every(100), loss)])
    assert [step for step, *_ in hook.seen] == list(range(100, 1001, 100))
    assert calls == 1 + 10 * 2


def test_any_number_of_hooks_needs_two_programs_of_the_step(caplog):
    caplog.set_level(logging.INFO, "hookline")
    hooks = lambda loss: [Firings(train.every(n), loss) for n in (7, 11, 13, 100)]  # noqa: E731
    trained(64, 2_000, hooks)
    told = [r.getMessage() for r in caplog.records if "Compiling a program" in r.getMessage()]
    assert len([line for line in told if "up to 64 steps" in line]) == 2
    assert len(told) == 3, "and one that initialises"


def test_fetches_of_a_run_have_one_row_per_step():
    with hl.Graph(seed=3).as_default():
        train_op, loss, weights, _ = walk()
        step = train.get_global_step()
        seen, steps, shapes = [], [], []
        hooks = [train.StopAtStepHook(last_step=40), Firings(train.every(7), loss)]
        with train.MonitoredTrainingSession(hooks=hooks, steps_per_run=16) as session:
            while not session.should_stop():
                done, told, number, value = session.run([train_op, loss, step, weights])
                assert done is None
                seen += np.asarray(told).tolist()
                steps += number.tolist()
                shapes.append(value.shape)
    assert steps == list(range(40)), "read before the step, as always"
    assert all(len(shape) == 2 and shape[1] == 3 for shape in shapes)
    losses = trained(1, 40, lambda loss: [Firings(train.every(1), loss)])[1][0].seen
    assert seen == [value for _, _, value in losses]


def test_run_without_a_step_is_one_run():
    with hl.Graph().as_default():
        train_op, _, weights, _ = walk()
        x = hl.placeholder("float32", [])
        doubled = x * 2
        with train.MonitoredTrainingSession(steps_per_run=8) as session:
            session.run(train_op)
            assert session.run(weights).shape == (3,)
            assert session.run(doubled, {x: 4.0}) == 8.0


class Each(train.SessionRunHook):
    def __init__(self, fetches):
        self._args, self.seen = train.SessionRunArgs(fetches), []

    def before_run(self, run_context):
        return self._args

    def after_run(self, run_context, run_values):
        self.seen.append(np.asarray(run_values.results).tolist())


class EachRun(Each):
    stacked = True


def test_hook_with_run_callbacks_limits_runs_to_one_step_and_is_logged_once(caplog):
    caplog.set_level(logging.INFO, "hookline")
    _, (hook,), calls = trained(16, 40, lambda loss: [Each(loss)])
    assert calls == len(hook.seen) == 40
    assert sum("each run has one step, because the hook Each" in line for line in caplog.messages) == 1


def test_hook_due_in_each_run_is_logged_once(caplog):
    caplog.set_level(logging.INFO, "hookline")
    _, (hook,), calls = trained(16, 60, lambda loss: [Firings(train.every(1), loss)])
    assert calls == len(hook.seen) == 60
    assert sum("hook Firings" in line and "one step" in line for line in caplog.messages) == 1


def test_hook_that_takes_rows_gets_those_of_all_steps():
    _, (single,), _ = trained(1, 70, lambda loss: [Each(loss)])
    found, (hook, other), calls = trained(16, 70, lambda loss: [EachRun(loss), Firings(train.every(9), loss)])
    assert [row for rows in hook.seen for row in rows] == single.seen
    assert len(hook.seen) == calls < 30
    assert [step for step, *_ in other.seen] == [9, 18, 27, 36, 45, 54, 63]
    assert same(found, trained(1, 70)[0])


def test_hook_that_takes_rows_gets_one_row_in_a_single_step_run():
    _, (hook,), _ = trained(1, 5, lambda loss: [EachRun(loss)])
    assert [len(rows) for rows in hook.seen] == [1] * 5


def test_trigger_with_rows_fires_at_the_end_of_a_run():
    class Rows(train.SessionRunHook):
        stacked = True

        def __init__(self, trigger, fetches):
            self.trigger, self.fetches, self.seen = trigger, fetches, []

        def on_trigger(self, firing):
            self.seen.append((firing.global_step, len(firing.values)))

    _, (rows,), _ = trained(16, 100, lambda loss: [Rows(train.every(10), loss)])
    ends = np.cumsum([0] + [16] * 7)
    assert all(step % 16 in (0, 1, 100 % 16, 99 % 16) for step, _ in rows.seen), (rows.seen, ends)
    assert [step for step, _ in rows.seen] == sorted({step for step, _ in rows.seen})


@pytest.mark.parametrize("with_clock", [False, True])
def test_hook_deferred_by_runs_fires_at_the_same_steps_for_any_run_lengths(with_clock):
    class Late(train.SessionRunHook):
        deferred = 5

        def __init__(self, loss):
            self.trigger, self.fetches, self.seen = train.every(10), loss, []

        def on_trigger(self, firing):
            self.seen.append((firing.global_step, firing.context.session.global_step))

    class Ticks(train.SessionRunHook):
        trigger = train.every(secs=1)

        def __init__(self, clock):
            self._clock = clock

        def on_trigger(self, firing):
            pass

    with FakeClock() as clock:

        class Passing(train.SessionRunHook):
            stacked = True

            def after_run(self, run_context, run_values):
                clock.advance(0.3 * with_clock)

        make = lambda loss: [Late(loss), Passing(), Ticks(clock)]  # noqa: E731
        _, (hook, *_), _ = trained(16, 200, make)
    assert hook.seen[:4] == [(10, 16), (20, 32), (30, 48), (40, 48)]


def test_nan_is_named_by_its_step_and_nothing_after_it_is_saved(tmp_path):
    with pytest.raises(train.NanLossDuringTrainingError, match=f"at step {NAN_AT}"):
        trained(64, 300, lambda loss: [train.NanTensorHook(loss)], NAN_AT, checkpoint_dir=str(tmp_path))
    assert train.latest_checkpoint(str(tmp_path)) is None or "model.ckpt-0" in train.latest_checkpoint(str(tmp_path))


@pytest.mark.parametrize("steps_per_run", [16, *[pytest.param(n, marks=pytest.mark.campaign) for n in (4, 64)]])
def test_updates_with_a_nan_are_skipped_alike(steps_per_run, caplog):
    make = lambda loss: [train.NanTensorHook(loss, on_nan="skip")]  # noqa: E731
    values, _, _ = trained(1, 60, make, NAN_AT)
    found, _, calls = trained(steps_per_run, 60, make, NAN_AT)
    assert same(found, values)
    assert np.isfinite(found["weights"]).all()
    assert calls < 40
    told = [line for line in caplog.messages if "were skipped" in line]
    assert len(told) == 2
    assert f"at step {NAN_AT}" in told[0]
    assert told[0] == told[1]


def test_weights_roll_back_at_the_end_of_a_full_run(tmp_path, caplog):
    def at(name, **keywords):
        make = lambda loss: [train.NanTensorHook(loss, on_nan="rollback")]  # noqa: E731
        found = trained(16, 40, make, NAN_AT, checkpoint_dir=str(tmp_path / name), save_checkpoint_steps=10, **keywords)
        return found[0], [line.partition(" from ")[0] for line in caplog.messages if "were restored" in line]

    values, told = at("one")
    assert np.isfinite(values["weights"]).all()
    assert len(told) == 1
    assert f"at step {NAN_AT}" in told[0]
    assert same(at("two")[0], values)


@pytest.mark.parametrize("last_step", [1, 16, 17, *[pytest.param(n, marks=pytest.mark.campaign) for n in (15, 100)]])
def test_no_step_is_made_beyond_the_target(last_step):
    values, _, _ = trained(16, last_step)
    assert values["global_step"] == last_step
    assert same(values, trained(1, last_step)[0])


def test_stop_requested_by_a_hook_takes_effect_at_the_end_of_a_run():
    class Stops(train.SessionRunHook):
        trigger = train.at_steps(30)

        def on_trigger(self, firing):
            firing.context.request_stop()

    assert trained(16, 100, lambda loss: [Stops()])[0]["global_step"] == 30


def refused(make, error, match, steps_per_run=8, hooks=(), **run):
    with hl.Graph().as_default():
        fetches, feeds = make()
        with pytest.raises(error, match=match):
            train.MonitoredSession(hooks=hooks, steps_per_run=steps_per_run).run(fetches, feeds, **run)


def stepping(*others):
    return hl.group(*others, train.get_or_create_global_step().assign_add(1))


def fed():
    x = hl.placeholder("float32", [], name="x")
    return [stepping(), x * 2], {x: 1.0}


def on_host():
    return stepping(hl.host_op(lambda: 3, name="lottery")().op), None


def unknown_step():
    step = train.get_or_create_global_step()
    return step.assign(hl.op(lambda value: value * 2 + 1)(step)), None


def grows():
    grown = hl.Variable(np.zeros(1, np.float32), name="grown", validate_shape=False)
    return stepping(grown.assign(hl.op(lambda value: jnp.concatenate([value, value]))(grown))), None


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (fed, ValueError, "steps_per_run=8 .* takes no feed_dict"),
        (on_host, ValueError, "steps_per_run=8 needs .*'lottery'.* on the host"),
        (unknown_step, ValueError, "only the device knows"),
        (lambda: (hl.constant(1.0), None), RuntimeError, "the graph has no global step"),
    ],
)
def test_unsuitable_operations_are_refused_with_the_reason(make, error, match):
    refused(make, error, match)


def test_run_metadata_and_options_need_single_steps():
    refused(lambda: (stepping(), None), ValueError, "takes no run_metadata", run_metadata=hl.RunMetadata())
    refused(lambda: (stepping(), None), ValueError, "takes no options", options=hl.RunOptions(trace_level=1))


def test_hook_that_feeds_is_refused():
    with hl.Graph().as_default():
        x = hl.placeholder("float32", [], name="x")
        total = hl.Variable(0.0, name="total")
        train_op = stepping(total.assign_add(x))
        hooks = [train.FeedFnHook(lambda: {x: 1.0})]
        session = train.MonitoredSession(hooks=hooks, steps_per_run=4)
        with pytest.raises(ValueError, match="the hook FeedFnHook feeds"):
            session.run(train_op)
        session.close()


@pytest.mark.parametrize("late", [False, True])
def test_host_operation_of_a_hook_that_takes_rows_is_refused(late):
    with hl.Graph().as_default():
        total = hl.Variable(0.0, name="total")
        train_op = stepping(total.assign_add(1.0))
        rows = Firings(train.every(4), hl.host_op(lambda value: value * 2, name="double")(total.read_value()), late)
        rows.stacked = True
        with train.MonitoredSession(steps_per_run=4) as session:
            session.run(train_op)
            session.add_hook(rows)
            with pytest.raises(
                ValueError, match=r"steps_per_run=4 .*'double' .*, which a hook with stacked = True fetches"
            ):
                session.run(train_op)


def test_user_session_makes_one_step_per_run():
    class Creator:
        def create_session(self):
            return FakeSession()

    session = train.MonitoredSession(Creator(), steps_per_run=4)
    with pytest.raises(ValueError, match="a FakeSession does not"):
        [session.run("train") for _ in range(2)]
    session.close()


@pytest.mark.parametrize(("given", "error"), [(0, ValueError), ("8", TypeError), (2.5, TypeError)])
def test_steps_per_run_must_be_a_positive_integer(given, error):
    with hl.Graph().as_default():
        stepping()
        with pytest.raises(error, match="steps_per_run"):
            train.MonitoredTrainingSession(steps_per_run=given)


def test_training_resumes_with_another_number_of_steps_per_run(tmp_path):
    whole, _, _ = trained(1, 60)
    for steps_per_run, last_step in [(16, 21), (1, 30), (7, 60)]:
        found, _, _ = trained(steps_per_run, last_step, checkpoint_dir=str(tmp_path), save_checkpoint_steps=20)
    assert same(found, whole)


def counted(steps_per_run, hooks, last_step=20, bad=None):
    """Trains and returns two counters: one written by the step, and one written only by hooks."""
    with hl.Graph(seed=1).as_default():
        step, mine = train.get_or_create_global_step(), hl.Variable(0, name="mine")
        batch = hl.data.iterator(hl.data.from_arrays(np.arange(400.0, dtype="f4").reshape(200, 2), 2))
        other = hl.data.iterator(hl.data.from_arrays(np.arange(300.0, dtype="f4"), 1), name="other")
        total = hl.Variable(0.0, name="total")
        train_op = hl.group(total.assign_add(hl.op(lambda rows: rows.sum())(batch)), step.assign_add(1))
        added = hooks(mine.assign_add(1), batch, other, total)
        with train.MonitoredSession(
            hooks=[train.StopAtStepHook(last_step=last_step), *added], steps_per_run=steps_per_run
        ) as session:
            while not session.should_stop():
                session.run(train_op)
            raw = session.raw_session()
            values = {name: np.asarray(value).item() for name, value in raw.snapshot().items()}
            values["other"] = float(raw.run(other)[0])
    return values, [hook.seen for hook in added]


class Seen(train.SessionRunHook):
    def __init__(self, trigger, fetches, late=False):
        self.trigger, self.fetches, self.deferred, self.seen = trigger, fetches, late, []

    def on_trigger(self, firing):
        self.seen.append((firing.global_step, jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), firing.values)))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    "what",
    [
        lambda add, batch, other, total: [Seen(train.every(5), add.op)],
        lambda add, batch, other, total: [Seen(train.every(5), add)],
        lambda add, batch, other, total: [Seen(train.every(5), {"x": batch, "t": total})],
        lambda add, batch, other, total: [Seen(train.every(5), other), Seen(train.every(7), batch)],
        lambda add, batch, other, total: [Seen(train.every(6), hl.host_op(lambda x: x * 2)(batch))],
        lambda add, batch, other, total: [Seen(train.every(6), hl.host_op(lambda x: x * 2)(other + total))],
    ],
)
def test_hook_actions_for_one_step_happen_in_that_step(what, late):
    def hooks(*given):
        found = what(*given)
        for hook in found:
            hook.deferred = late
        return found

    assert counted(8, hooks) == counted(1, hooks)


def test_step_limit_of_a_session_is_kept():
    with hl.Graph().as_default():
        train_op = stepping()

        class Limits(train.SessionRunHook):
            def after_create_session(self, session, coord):
                session.set_last_step(10)

        with train.MonitoredSession(hooks=[Limits()], steps_per_run=4) as session:
            for _ in range(30):
                session.run(train_op)
            assert session.raw_session().global_step == 10


def test_step_changed_by_a_hook_before_a_run_is_its_first_step():
    def ended(steps_per_run):
        with hl.Graph().as_default():
            train_op, step = stepping(), train.get_global_step()

            class Moves(Seen):
                def before_trigger(self, run_context):
                    if not self.seen:
                        run_context.session.load({"global_step": 95})

            moves, other = Moves(train.at_steps(20, 40), None), Seen(train.every(32), step)
            hooks = [train.StopAtStepHook(last_step=100), moves, other]
            with train.MonitoredSession(hooks=hooks, steps_per_run=steps_per_run) as session:
                while not session.should_stop():
                    session.run(train_op)
                return session.raw_session().global_step, moves.seen

    assert ended(16) == ended(1)


def test_keys_written_by_a_step_are_read_by_the_next():
    def kept(steps_per_run):
        with hl.Graph(seed=2).as_default():
            key = hl.Variable(jax.random.key(0), name="key")
            train_op = stepping(key.assign(hl.random_key()))
            hooks = [train.StopAtStepHook(last_step=20)]
            with train.MonitoredSession(hooks=hooks, steps_per_run=steps_per_run) as session:
                while not session.should_stop():
                    session.run(train_op)
                return jax.random.key_data(session.raw_session().run(key)).tolist()

    assert kept(8) == kept(1)


def test_subclass_with_run_callbacks_gets_single_steps():
    class Watching(train.NanTensorHook):
        seen = 0

        def after_run(self, run_context, run_values):
            Watching.seen += not bool(run_values.results)
            super().after_run(run_context, run_values)

    _, _, calls = trained(8, 20, lambda loss: [Watching(loss, strict=True)])
    assert Watching.seen == calls == 20
