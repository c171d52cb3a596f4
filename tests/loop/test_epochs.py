"""The steps at which the epochs of a loop end: hooks fire there, over restarts; and data whose epochs are unknown."""

from __future__ import annotations

import logging
import re
import tempfile

import grain
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

import hookline as hl
from hookline import train

LIST = [np.float32(value) for value in range(5)]


def count(state, batch):
    return {"n": state["n"] + 1}, {"loss": state["n"]}


def make_loop(source, **arguments):
    return train.Loop(count, {"n": jnp.zeros(())}, source, **arguments)


class Fired(train.SessionRunHook):
    """Records the steps at which it fires."""

    def __init__(self, trigger):
        self.trigger, self.steps = trigger, []

    def on_trigger(self, firing):
        self.steps.append(firing.global_step)


def ends_by_hand(examples, epochs, parts, *, drop):
    """Returns the steps at which epochs end: the batches of each part are counted one by one, up to its last step."""
    step, epoch, example, ends = 0, 0, 0, []
    for batch_size, last_step in parts:
        size = min(batch_size, examples)
        while epoch < epochs and (step < last_step):
            if not (drop and examples - example < size):
                step += 1
                example += size
            if example >= examples or (drop and examples - example < size):
                epoch, example = epoch + 1, 0
                ends += [step]
    return ends


@pytest.mark.campaign
@settings(max_examples=30, deadline=None)
@given(
    examples=st.integers(1, 12),
    sizes=st.lists(st.integers(1, 5), min_size=3, max_size=3),
    stops=st.lists(st.integers(1, 20), min_size=2, max_size=2),
    last_batch=st.sampled_from(["keep", "drop", "pad"]),
    epochs=st.integers(1, 4),
    every=st.integers(1, 3),
    steps_per_run=st.sampled_from([1, 4]),
    own_epochs=st.booleans(),
)
def test_hook_fires_exactly_where_epochs_of_arrays_end_over_restarts_with_other_batch_sizes(
    examples, sizes, stops, last_batch, epochs, every, steps_per_run, own_epochs
):
    if last_batch == "drop":
        sizes = sizes[:1] * 3  # What one size has dropped, another would train.
    parts = [*zip(sizes, sorted(stops), strict=False), (sizes[2], 10**6)]
    given_epochs, run_epochs = (epochs, None) if own_epochs else (1, epochs)
    fired = []
    with tempfile.TemporaryDirectory() as folder:
        for batch_size, last_step in parts:
            x = np.zeros(examples, np.float32)
            source = hl.data.from_arrays(x, batch_size, shuffle_seed=0, epochs=given_epochs)
            hook = Fired(train.every(epochs=every))
            loop = make_loop(source, last_batch=last_batch, steps_per_run=steps_per_run)
            loop.run(folder, last_step, epochs=run_epochs, hooks=[hook], progress=False)
            fired += hook.steps
    assert fired == ends_by_hand(examples, epochs, parts, drop=last_batch == "drop")[every - 1 :: every]


class Sized:
    """Batches with a length, which is all that is known of them."""

    def __init__(self, batches):
        self._batches = batches

    def __iter__(self):
        return iter(self._batches)

    def __len__(self):
        return len(self._batches)


def with_num_batches():
    with hl.Graph().as_default():
        return hl.data.iterator(lambda: iter(LIST), num_batches=5)


@pytest.mark.parametrize("steps_per_run", [1, 3])
@pytest.mark.parametrize(
    "make",
    [
        lambda: LIST,
        lambda: [0.0] * 5,
        lambda: Sized(LIST),
        with_num_batches,
        lambda: lambda: hl.data.from_arrays(np.zeros(5, np.float32), 1),
        lambda: grain.MapDataset.source(LIST),
    ],
    ids=["a list", "a list of numbers", "a length", "num_batches", "a function that makes arrays", "Grain"],
)
def test_epochs_of_any_source_of_known_length_end_at_multiples_of_it(make, steps_per_run, tmp_path):
    steps = []
    for last_step in (7, 10, None):
        hook = Fired(train.every("epoch"))
        make_loop(make(), steps_per_run=steps_per_run).run(
            str(tmp_path), last_step, epochs=4, hooks=[hook], progress=False
        )
        steps.append(hook.steps)
    assert steps == [[5], [10], [15, 20]]


def test_run_in_memory_continues_to_count_epochs():
    loop, hook = make_loop(LIST), Fired(train.every(epochs=2))
    for last_step in (3, None, None, 12, None, None):
        loop.run(last_step=last_step, hooks=[hook], progress=False)
    assert hook.steps == [10, 20]


def test_short_batches_of_a_list_are_dropped_from_its_epochs():
    source = [np.zeros(4), np.zeros(4), np.zeros(3)]
    hook = Fired(train.every("epoch"))
    make_loop(source, last_batch="drop").run(epochs=2, hooks=[hook], progress=False)
    assert hook.steps == [2, 4]


def test_data_of_a_state_with_a_later_step_begin_there():
    source, hook = hl.data.from_arrays(np.zeros(5, np.float32), 2), Fired(train.every("epoch"))

    def step(state, batch):
        return {"step": state["step"] + 1, "w": state["w"] + batch.sum()}, {}

    loop = train.Loop(step, {"step": jnp.asarray(100), "w": jnp.zeros(())}, source)
    loop.run(epochs=2, hooks=[hook], progress=False)
    assert hook.steps == [103, 106]


def test_hook_in_another_hook_fires_at_the_end_of_an_epoch():
    inner = Fired(train.every("epoch"))

    class Outer(train.SessionRunHook):
        def before_run(self, run_context):
            return inner.before_run(run_context)

        def after_run(self, run_context, run_values):
            inner.after_run(run_context, run_values)

    make_loop(LIST).run(epochs=2, hooks=[Outer()], progress=False)
    assert inner.steps == [5, 10]


@pytest.mark.parametrize(("save_steps", "fired"), [(3, [5, 10, 15]), (4, [5, 5, 10, 15])])
def test_recovery_continues_to_count_epochs(save_steps, fired, tmp_path):
    class LoseOnce(train.SessionRunHook):
        trigger = train.at_steps(7)

        def on_trigger(self, firing):
            self.trigger = train.at_steps(99)
            raise hl.errors.AbortedError(None, None, "the session is lost")

    hook, save = Fired(train.every("epoch")), train.CheckpointOptions(save_steps=save_steps)
    make_loop(LIST).run(str(tmp_path), epochs=3, hooks=[hook, LoseOnce()], checkpoints=save, progress=False)
    assert hook.steps == fired


def test_everything_that_takes_a_number_of_steps_takes_an_epoch(tmp_path, caplog):
    caplog.set_level(logging.INFO, "hookline")
    x = np.arange(12, dtype=np.float32)

    def train_step(model, metrics, batch):
        metrics.update(values=batch)

    for last_step in (4, None):
        state = (nnx.Linear(1, 1, rngs=nnx.Rngs(0)), nnx.MultiMetric(mean=nnx.metrics.Average()))
        loop = train.Loop(train_step, state, hl.data.from_arrays(x, 4), reset_metrics_steps="epoch")
        called = []
        hooks = [
            evaluate := train.Evaluate(lambda model: {"loss": 1.0 + model.bias.sum()}, None, every="epoch"),
            train.FunctionHook(lambda firing, called=called: called.append(firing.global_step), every="epoch"),
        ]
        loop.run(
            str(tmp_path),
            last_step,
            epochs=3,
            hooks=hooks,
            log_steps="epoch",
            progress=False,
            checkpoints=train.CheckpointOptions(save_steps="epoch", saver=train.Saver(max_to_keep=9)),
            logging=train.LoggingOptions(summary_steps="epoch"),
        )
    assert called == [6, 9]
    assert loop.history["mean"] == ([3, 6, 9], [x.mean()] * 3)
    assert evaluate.history["loss"].steps == [3, 4, 6, 9]  # At 4 the first run ended. At the end of the last once.
    assert caplog.text.count("eval at step 9") == 1
    paths = train.get_checkpoint_state(str(tmp_path)).all_model_checkpoint_paths
    assert [path.rpartition("-")[2] for path in paths] == ["0", "3", "4", "6", "9"]
    events = [event for event in hl.testing.read_events(str(tmp_path)) if event.summary.value]
    assert [event.step for event in events if event.summary.value[0].tag.endswith("mean")] == [3, 6, 9]


def test_saving_by_epoch_or_by_time_fires_at_both():
    options = train.CheckpointOptions(save_steps="epoch", save_secs=60)
    assert options.cadence == (60, "epoch")


def test_description_names_the_steps_at_which_epochs_end(tmp_path):
    loop = make_loop(LIST)
    options = train.CheckpointOptions(save_steps="epoch")
    assert "model.ckpt-<step>'; at steps 0, 5, 10." in str(loop.describe(str(tmp_path), epochs=2, checkpoints=options))


@pytest.mark.parametrize(
    ("make", "arguments", "reason"),
    [
        (lambda: lambda: iter(LIST), {}, "the number of its batches is not known. Give it, .*num_batches="),
        (lambda: iter(LIST), {}, "its batches come from an iterator, which gives each once"),
        (lambda: LIST, {"resume_data": False}, r"each start reads its data from the beginning \(resume_data=False\)"),
        (lambda: None, {}, r"it has no data to pass over \(batches=None\). Give a number of steps"),
        (lambda: grain.MapDataset.source(LIST).repeat(), {}, "its data have no end. Give a number of steps"),
        (lambda: grain.MapDataset.source(LIST).repeat(), {"last_batch": "drop"}, "its data have no end"),
        (lambda: Sized(LIST), {"last_batch": "drop"}, "the number of its batches is not known"),
        (lambda: [np.zeros(2), np.zeros(1), np.zeros(2)], {"last_batch": "drop"}, "is not known"),
    ],
)
def test_epochs_of_unknown_length_are_refused_before_anything_is_written(make, arguments, reason, tmp_path):
    step = count if make() is not None else lambda state: (state, {"loss": state["n"]})
    loop = train.Loop(step, {"n": jnp.zeros(())}, make(), **arguments)
    save = train.CheckpointOptions(save_steps="epoch")
    for options in ({"hooks": [Fired(train.every(epochs=2))]}, {"log_steps": "epoch"}, {"checkpoints": save}):
        with pytest.raises(ValueError, match=rf"every\(epochs=[12]\) cannot find .* epochs end: .*{reason}"):
            loop.run(str(tmp_path / "run"), 9, **options)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match=f"Loop cannot reset metrics at each epoch, .*{reason}"):
        train.Loop(step, {"n": jnp.zeros(())}, make(), reset_metrics_steps="epoch", **arguments)


def test_metrics_that_would_be_reset_within_an_epoch_are_refused(tmp_path):
    x = np.zeros(12, np.float32)
    make_loop(hl.data.from_arrays(x, 2), reset_metrics_steps="epoch").run(str(tmp_path), 4, progress=False)
    loop = make_loop(hl.data.from_arrays(x, 4), reset_metrics_steps="epoch")
    with pytest.raises(ValueError, match="it counts from step 0, and an epoch of 3 steps ends at 5. Give a number"):
        loop.run(str(tmp_path), epochs=2)


def test_graph_of_ones_own_has_no_epochs():
    batch = hl.data.iterator(LIST)
    train_op = hl.group(batch, train.get_or_create_global_step().assign_add(1))
    hooks = [Fired(train.every("epoch"))]
    expected = r"only in a train.Loop does each step take one batch.*Give a number of steps"
    with pytest.raises(ValueError, match=expected), train.MonitoredTrainingSession(hooks=hooks) as session:
        session.run(train_op)


def test_dataset_of_unknown_drops_may_train_for_epochs():
    assert make_loop(Sized([np.zeros(2), np.zeros(1)]), last_batch="drop").run(epochs=3, progress=False)["n"] == 3


def shown(capsys):
    """Returns the progress lines, without metrics and rates."""
    return [
        re.sub(r"  (at step|loss|\S+ steps/s).*", "", line)
        for line in capsys.readouterr().err.splitlines()
        if line.startswith("step")
    ]


@pytest.mark.parametrize(
    ("source", "arguments", "last"),
    [
        (LIST, {"epochs": 4}, "step 20/20  100%  epoch 4/4"),
        (LIST, {"epochs": 4, "last_step": 7}, "step 7/7  100%  epoch 2/2"),
        (LIST, {"epochs": 4, "last_step": 99}, "step 20/20  100%  epoch 4/4"),
        (LIST, {}, "step 5/5  100%"),
        (hl.data.from_arrays(np.zeros(6), 2, epochs=2), {}, "step 6/6  100%  epoch 2/2"),
        (hl.data.from_arrays(np.zeros(6), 2, epochs=None), {"last_step": 7}, "step 7/7  100%  epoch 3/3"),
        (hl.data.from_arrays(np.zeros(6), 2, epochs=None), {"hooks": [3]}, "step 7  epoch 3"),
        (lambda: iter(LIST), {}, "step 5"),
    ],
)
def test_progress_shows_the_epoch_and_the_end_of_the_data(source, arguments, last, capsys):
    if "hooks" in arguments:
        stop = train.FunctionHook(lambda firing: firing.context.request_stop(), every=7)
        arguments = {"hooks": [stop]}
    make_loop(source).run(**arguments)
    assert shown(capsys)[-1] == last


def test_progress_of_a_restart_continues_to_count_epochs(tmp_path, capsys):
    make_loop(LIST).run(str(tmp_path), 7, epochs=3)
    shown(capsys)
    make_loop(LIST).run(str(tmp_path), epochs=3)
    assert shown(capsys)[0] == "step 8/15  53%  epoch 2/3"
