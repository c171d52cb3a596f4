"""ProfilerHook, with real profiles, read back with JAX's reader of them."""

from __future__ import annotations

import gzip
import json
import logging
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hookline as hl
from hookline import host_op, train
from hookline.errors import OutOfRangeError
from hookline.summary import FileWriterCache
from hookline.testing import FakeClock, read_events
from hookline.train import ProfilerHook, every

# In Python 3.12 and newer Python warns of the types of JAX's reader, which aborts where that is an error.
pytestmark = pytest.mark.filterwarnings("ignore:builtin type event_stats has no __module__:DeprecationWarning")


def profiles(directory: Path) -> list[str]:
    """The names of the profiles in a directory, as TensorBoard lists them."""
    return sorted(path.parent.name for path in directory.glob("plugins/profile/*/*.xplane.pb"))


def profile(directory: Path, name: str) -> tuple[bytes, dict[str, list[Any]]]:
    """The bytes of a profile, and its events by name."""
    (path,) = directory.glob(f"plugins/profile/{name}/*.xplane.pb")
    events: dict[str, list[Any]] = {}
    for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
        for line in plane.lines:
            for event in line.events:
                events.setdefault(event.name, []).append(dict(event.stats))
    return path.read_bytes(), events


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name.endswith("profiler") and r.levelno == logging.WARNING]


def test_hook_profiles_from_one_cadence_after_the_first_run(model, tmp_path):
    model.train_until_stop(ProfilerHook(save_steps=3, output_dir=str(tmp_path)), at_most=8)
    assert profiles(tmp_path) == ["step_3", "step_6"]
    recorded = [(event.step, value.tag) for event in read_events(tmp_path) for value in event.summary.value]
    assert recorded == [(3, "step_3"), (6, "step_6")]
    (text, *_) = [value.tensor.string_val[0] for event in read_events(tmp_path) for value in event.summary.value]
    assert b"'device'" in text


def test_hook_profiles_by_the_clock_from_the_first_run(model, tmp_path):
    hook = ProfilerHook(save_secs=10, output_dir=str(tmp_path))
    with FakeClock() as clock, model.session(hook) as session:
        for secs in (100, 9, 1, 9, 1):
            clock.advance(secs)
            session.run(model.train)
    assert profiles(tmp_path) == ["step_3", "step_5"]


def test_runs_may_advance_several_steps(model, tmp_path):
    with model.session(ProfilerHook(trigger=every(10), output_dir=str(tmp_path))) as session:
        for _ in range(3):
            session.run(model.jump)
    assert profiles(tmp_path) == ["step_10"]


def test_first_run_is_not_profiled_since_it_compiles(model, tmp_path):
    model.train_until_stop(ProfilerHook(trigger=every(1), output_dir=str(tmp_path)), at_most=2)
    assert profiles(tmp_path) == ["step_2"]


def test_run_without_a_step_does_not_count(model, tmp_path):
    with model.session(ProfilerHook(trigger=every(2), output_dir=str(tmp_path))) as session:
        session.run(model.train)
        session.run(model.loss)
        assert [event.step for event in read_events(tmp_path) if event.HasField("summary")] == []
        session.run(model.train)
        session.run(model.train)
    assert profiles(tmp_path) == ["step_2"]
    FileWriterCache.clear()
    assert [event.step for event in read_events(tmp_path) if event.HasField("summary")] == [2]


def test_profile_has_one_run_and_its_operations(tmp_path):
    x = hl.placeholder(jnp.float32, [64, 32], name="x")
    weights = hl.Variable(np.random.default_rng(5).normal(size=(32, 16)).astype(np.float32), name="w")
    loss = hl.op(lambda x, w: jnp.mean(jnp.tanh(x @ w)), name="loss")(x, weights)
    (grad,) = hl.gradients(loss, weights)
    step = train.get_or_create_global_step()
    train_op = hl.group(weights.assign_sub(grad), step.assign_add(1), name="train")
    hook = ProfilerHook(save_steps=3, output_dir=str(tmp_path))
    metadata, options = hl.RunMetadata(), hl.RunOptions(output_partition_graphs=True)
    with train.MonitoredSession(hooks=[hook]) as session:
        for _ in range(4):
            session.run(train_op, {x: np.ones((64, 32))}, options, metadata)
    data, events = profile(tmp_path, "step_3")
    assert [stats["step_num"] for stats in events["run"]] == [3]

    modules = re.findall(r"^HloModule (\w+)", "\n".join(metadata.partition_graphs), re.MULTILINE)
    of_the_step = [stats for found in events.values() for stats in found if stats.get("hlo_module") == modules[0]]
    assert len({stats["run_id"] for stats in of_the_step}) == 1
    # A name of the trace, found in its program.
    names = dict(re.findall(r'%?([\w.-]+) = [^\n]*op_name="([^"]*)"', metadata.partition_graphs[0]))
    worked_on = {names[stats["hlo_op"]].split("/")[1] for stats in of_the_step if stats.get("hlo_op") in names}
    assert {"loss", "gradients"} <= worked_on
    assert b"/loss/" in data
    assert b"/gradients/" in data


def test_profile_without_dataflow_has_no_program(model, tmp_path):
    model.train_until_stop(ProfilerHook(2, None, str(tmp_path), show_dataflow=False), at_most=2)
    data, events = profile(tmp_path, "step_2")
    assert len(events["run"]) == 1
    assert b"jit(_trace)/" not in data


def test_trace_is_readable_by_perfetto(model, tmp_path):
    model.train_until_stop(ProfilerHook(save_steps=2, output_dir=str(tmp_path)), at_most=2)
    (path,) = tmp_path.glob("plugins/profile/step_2/*.trace.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    complete = [event for event in events if event.get("ph") == "X"]
    assert {"ts", "dur", "pid", "tid", "name"} <= set(complete[0])
    assert any("hlo_op" in event.get("args", {}) for event in complete)


def test_memory_profile_is_written_on_request(model, tmp_path):
    model.train_until_stop(ProfilerHook(2, output_dir=str(tmp_path), show_memory=True), at_most=4)
    written = sorted(path.name for path in tmp_path.glob("*.prof"))
    assert written == ["memory_step_2.prof", "memory_step_4.prof"]
    assert gzip.decompress((tmp_path / written[0]).read_bytes())


def test_foreign_profile_gives_a_log_line(model, tmp_path, caplog):
    with model.session(ProfilerHook(save_steps=2, output_dir=str(tmp_path / "ours"))) as session:
        with jax.profiler.trace(str(tmp_path / "theirs")):
            for _ in range(3):
                session.run(model.train)
        session.run(model.train)
    assert profiles(tmp_path / "ours") == ["step_4"]
    assert len(profiles(tmp_path / "theirs")) == 1
    (line,) = warnings(caplog)
    assert line.startswith("ProfilerHook could not make the profile step_2: ")
    assert "Only one profile may be run at a time" in line


def test_profile_stopped_by_others_gives_a_log_line(model, probe, tmp_path, caplog):
    stop_at_two = probe(lambda context: context.session.global_step == 2 and jax.profiler.stop_trace())
    model.train_until_stop(stop_at_two, ProfilerHook(save_steps=2, output_dir=str(tmp_path)), at_most=4)
    assert warnings(caplog) == ["ProfilerHook could not make the profile step_2: No profile started"]
    assert "step_4" in profiles(tmp_path)


def test_failed_run_writes_its_profile_and_stops_the_profiler(model, tmp_path):
    failures: list[Exception] = [ValueError("broken")]

    def fail() -> int:
        if failures:
            raise failures.pop()
        return 0

    failing = host_op(fail).node()
    hook = ProfilerHook(save_steps=3, output_dir=str(tmp_path))

    def train_to_the_end() -> None:
        with model.session(hook) as session:
            for fetches in (model.train, model.train, [failing, model.train]):
                session.run(fetches)

    with pytest.raises(ValueError, match="broken"):
        train_to_the_end()
    assert profiles(tmp_path) == ["step_3"]
    with jax.profiler.trace(str(tmp_path / "free")):
        train_to_the_end()
    (tmp_path / "plugins/profile/step_3").rename(tmp_path / "first")
    failures.append(OutOfRangeError(None, None, "over"))
    train_to_the_end()
    assert profiles(tmp_path) == ["step_3"]
    with jax.profiler.trace(str(tmp_path / "free")):
        pass


def test_recovery_skips_the_first_run_and_profiles_a_step_again(model, probe, tmp_path, caplog):
    caplog.set_level(logging.INFO, "hookline")
    hook = ProfilerHook(save_steps=2, output_dir=str(tmp_path))

    def profile_something(_: Any) -> None:
        with jax.profiler.trace(str(tmp_path / "free")):
            pass

    session, lose = model.session_to_lose(hook, probe(created=profile_something), restored_step=0)
    with session:
        for fetches in [[model.train]] * 3 + [[model.train, lose]] + [[model.train]] * 2:
            session.run(fetches)
    FileWriterCache.clear()
    recorded = [event.step for event in read_events(tmp_path) if event.HasField("summary")]
    assert profiles(tmp_path) == ["step_2", "step_4"]
    assert recorded == [2]
    lines = [r.getMessage() for r in caplog.records if r.name.endswith("profiler")]
    assert lines == [f"Profiled the run to step 2; the profile is step_2 in {tmp_path}."] * 2
