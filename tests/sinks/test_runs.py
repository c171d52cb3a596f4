"""Sinks in a run: all that hooks write is there, once, whatever happens to the run."""

from __future__ import annotations

import dataclasses
import enum
import os
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from tests import python, summaries

import hookline as hl
from hookline import errors
from hookline.sinks import Csv, JsonLines, Sink
from hookline.summary import FileWriterCache
from hookline.testing import read_events

from .conftest import losses, read_csv, read_json, train


class Losing(hl.train.SessionRunHook):
    """Loses the session once, after step 9."""

    trigger = hl.train.at_steps(9)
    is_lost = False

    def on_trigger(self, firing):
        if not self.is_lost:
            self.is_lost = True
            raise errors.AbortedError(None, None, "preempted")


class Noting(Sink):
    def __init__(self):
        self.starts, self.points, self.closed = [], [], []

    def open(self, start):
        self.starts.append(start)

    def write(self, points):
        self.points += points

    def close(self, failed):
        self.closed.append(failed)


def scalars_of(folder):
    """Returns the points in TensorBoard, the evaluation's with its name before them."""
    return sorted(
        (event.step, prefix + value.tag, value.simple_value)
        for place, prefix in ((folder, ""), (folder / "eval", "eval/"))
        for event in read_events(os.fspath(place))
        for value in event.summary.value
        if value.HasField("simple_value")
    )


def test_all_summaries_of_hooks_reach_all_sinks_with_the_evaluations_name(tmp_path):
    class Notes(hl.train.SessionRunHook):
        def end(self, session):
            FileWriterCache.get(tmp_path).add_summary(summaries.scalar("at the end", 1.0), 10)

    noting = Noting()
    train(tmp_path, 10, [Csv(), JsonLines(), noting], hooks=[Notes()], hparams={"rate": 0.1})
    wanted = sorted([*losses(10), (10, "at the end", 1.0)])
    assert read_csv(tmp_path / "scalars.csv") == wanted == scalars_of(tmp_path)
    assert sorted((line["step"], line["tag"]) for line in read_json(tmp_path / "points.jsonl")[1:]) == [
        (step, tag) for step, tag, _ in wanted
    ]
    assert [(start.folder, start.step, start.hparams, start.is_new) for start in noting.starts] == [
        (os.path.realpath(tmp_path), 0, {"rate": 0.1}, True)
    ]
    assert noting.closed == [False]


def test_killed_run_resumes_with_the_lines_of_an_uninterrupted_one(tmp_path, environment):
    script = Path(__file__).with_name("killed.py")
    root = os.fspath(script.parents[2])
    killed = python.run(
        script, tmp_path, env=environment(writes=False) | {"PYTHONPATH": f"{root}{os.pathsep}{root}/src"}
    )
    assert killed.returncode == -9, killed.stderr
    assert max(read_csv(tmp_path / "scalars.csv"))[0] >= 9, "later than the checkpoint, which is of step 6"
    for name in ("scalars.csv", "points.jsonl"):
        with open(tmp_path / name, "ab") as file:
            file.write(b'{"step": 9, "ta')
    noting = Noting()
    train(tmp_path, 20, [Csv(), JsonLines(), noting])
    assert read_csv(tmp_path / "scalars.csv") == losses(20)
    lines = read_json(tmp_path / "points.jsonl")
    assert sorted((line["step"], line["tag"]) for line in lines) == [(step, tag) for step, tag, _ in losses(20)]
    assert [(start.step, start.is_new) for start in noting.starts] == [(6, False)]


def test_recovery_within_a_session_duplicates_nothing(tmp_path):
    noting = Noting()
    train(tmp_path, 12, [Csv(), noting], hooks=[Losing()])
    assert read_csv(tmp_path / "scalars.csv") == losses(12)
    assert [(start.step, start.is_new) for start in noting.starts] == [(0, True), (6, False)]


def test_failed_run_is_closed_as_failed_and_keeps_earlier_lines(tmp_path):
    class Failing(hl.train.SessionRunHook):
        trigger = hl.train.at_steps(7)

        def on_trigger(self, firing):
            raise ValueError("mine")

    noting = Noting()
    with pytest.raises(ValueError, match="mine"):
        train(tmp_path, 12, [Csv(), noting], hooks=[Failing()])
    assert noting.closed == [True]
    assert {step for step, *_ in read_csv(tmp_path / "scalars.csv")} >= {1, 3, 5}


def test_sinks_work_without_a_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    noting = Noting()
    train(None, 8, [Csv("here.csv"), noting], rate_steps=2)
    found = read_csv(tmp_path / "here.csv")
    assert [point for point in found if not point[1].endswith("/sec")] == losses(8)
    assert len(found) > len(losses(8))
    assert noting.starts[0].folder is None
    assert os.listdir(tmp_path) == ["here.csv"]


def test_reused_hook_writes_to_no_sink_of_an_earlier_run():
    noting = Noting()
    hooks = [hl.train.StepCounterHook(every_n_steps=2), hl.train.SummarySaverHook(2, scaffold=hl.train.Scaffold())]
    train(None, 4, [noting], hooks=hooks)
    assert all(hook.summary_writer is not None for hook in hooks)
    train(None, 4, [], hooks=hooks)
    assert [hook.summary_writer for hook in hooks] == [None, None]


def test_user_writer_shared_by_hooks_is_tapped_until_the_session_ends(tmp_path):
    hl.train.get_or_create_global_step()
    noting = Noting()
    writer = FileWriterCache.get(tmp_path)
    try:
        hook = hl.train.SinkHook([noting], tmp_path)
        with hl.train.MonitoredSession(hooks=[hook], summary_dir=str(tmp_path)) as session:
            session.summary_writer.add_summary(summaries.text("note", "a"), 1)
            event = hl.summary.Event(step=2, wall_time=5.0)
            event.summary.value.add(tag="by hand", simple_value=2.0)
            session.summary_writer.add_event(event)
        writer.add_summary(summaries.scalar("late", 1.0), 3)
    finally:
        FileWriterCache.clear()
    assert [(point.tag, point.step, point.time, point.value) for point in noting.points] == [("by hand", 2, 5.0, 2.0)]


def test_all_kinds_of_summaries_are_converted_to_points(tmp_path):
    class Taking(Noting):
        takes = ("scalar", "text", "image", "audio", "histogram")

    step = hl.train.get_or_create_global_step()
    hl.summary.scalar("rate", hl.constant(0.1))
    hl.summary.text("table", hl.host_op(lambda: [["a", "b"], ["c", "d"]])())
    hl.summary.image("seen", hl.constant(np.ones((2, 2, 2, 1), np.uint8)), max_outputs=2)
    hl.summary.audio("heard", hl.constant(np.zeros((1, 8), np.float32)), sample_rate=8, max_outputs=1)
    hl.summary.histogram("weights", hl.constant(np.asarray([-1.0, 2.0, 2.0], np.float32)))
    taking = Taking()
    hooks = [hl.train.StopAtStepHook(last_step=1)]
    train_op = step.assign_add(1)
    with hl.train.MonitoredTrainingSession(
        summary_dir=str(tmp_path), logging=hl.train.LoggingOptions(sinks=[taking]), hooks=hooks
    ) as session:
        while not session.should_stop():
            session.run(train_op)
    found = {point.tag: (point.kind, point.value) for point in taking.points if point.step == 1}
    assert found["rate"] == ("scalar", 0.1), "not 0.10000000149"
    assert found["table"] == ("text", "a | b\nc | d")
    assert found["seen/image/1"][0] == "image"
    assert found["seen/image/1"][1].startswith(b"\x89PNG")
    assert found["heard/audio"][1].startswith(b"RIFF")
    kind, histogram = found["weights"]
    assert (kind, histogram.least, sum(histogram.counts)) == ("histogram", -1.0, 3)


@dataclasses.dataclass
class Config:
    rate: np.float32
    sizes: tuple[int, ...]
    optimizer: dict[str, object]


def test_hyperparameters_are_flattened_and_written_for_tensorboard(tmp_path):
    kind = enum.Enum("Kind", ["COSINE"])
    more = {"path": Path("data/a"), "schedule": kind.COSINE, "warm_up": np.array(3), "scale": jnp.float32(2)}
    config = Config(np.float32(0.5), (3, 4), {"name": "adam", "decay": None, "nesterov": True, **more})
    noting = Noting()
    train(tmp_path, 1, [noting], hparams=config)
    flat = {
        "rate": 0.5,
        "sizes": [3, 4],
        "optimizer/name": "adam",
        "optimizer/decay": None,
        "optimizer/nesterov": True,
        "optimizer/path": "data/a",
        "optimizer/schedule": "COSINE",
        "optimizer/warm_up": 3,
        "optimizer/scale": 2.0,
    }
    assert noting.starts[0].hparams == flat
    from tensorboard.plugins.hparams import metadata

    (shown,) = (
        metadata.parse_session_start_info_plugin_data(value.metadata.plugin_data.content)
        for event in read_events(os.fspath(tmp_path))
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == "hparams"
    )
    assert shown.hparams["rate"].number_value == 0.5
    assert shown.hparams["sizes"].string_value == "[3, 4]"
    assert shown.hparams["optimizer/nesterov"].bool_value is True


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"sinks": [Csv]}, TypeError, r"requires objects of a subclass of Sink .* Call it: Csv\(\)\."),
        ({"sinks": Csv("x")}, TypeError, r"requires a list as sinks, got one sink: sinks=\[Csv\(\.\.\.\)\]"),
        ({"sinks": ["tensorboard"]}, TypeError, "subclass of Sink"),
        ({"hparams": 0.1}, TypeError, "requires a dict or a dataclass as hparams"),
        ({"hparams": {"a": {"f": print}}}, TypeError, "got <built-in function print> as 'a/f'"),
        ({"hparams": {"x/y": 1, "x": {"y": 2}}}, ValueError, "two hyperparameters have one name, 'x/y'"),
        ({"hparams": {"n": 10**400}}, ValueError, "'n' is too large for a number of 64 bits"),
        ({"hparams": {"a": 1}}, ValueError, "nowhere to write hparams"),
        ({"sinks": [Csv()]}, errors.InvalidArgumentError, "Csv requires a path"),
        ({"sink": [Csv()]}, TypeError, "unexpected keyword argument 'sink'"),
    ],
)
def test_wrong_arguments_give_the_remedy(arguments, error, message):
    with pytest.raises(error, match=message):
        train(None, 2, **{"sinks": [], **arguments})


def test_sink_without_write_or_of_another_kind_is_refused_at_once():
    class Empty(Sink):
        pass

    class Odd(Noting):
        takes = ("scalars",)

    with pytest.raises(ValueError, match=r"kinds of scalar, text.* in Odd\.takes, got 'scalars'"):
        train(None, 2, [Odd()])
    Odd.takes = "scalar"
    with pytest.raises(TypeError, match=r"as Odd\.takes, got 'scalar'. Make it \('scalar',\)"):
        train(None, 2, [Odd()])
    with pytest.raises(TypeError, match=r"write\(points\), but Empty has none"):
        train(None, 2, [Empty()])
