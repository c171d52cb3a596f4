"""The newest checkpoint where no state file names it: the last of one line of saves, or an ERROR that names both."""

from __future__ import annotations

import logging
import os
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hookline as hl
from hookline import train
from hookline.checkpoint.directory.manifest import Lineage, Manifest

# The rule alone, for any histories.
from hookline.checkpoint.restoring.lineage import Candidate, choose_newest
from hookline.cli import main
from hookline.testing import FakeClock
from hookline.train import Saver, get_checkpoint_state, latest_checkpoint


class Training:
    """A count that is saved and restored by hand, each session at a time of its own."""

    def __init__(self, folder):
        self.path = str(folder / "model.ckpt")
        self.count = hl.Variable(0, name="count")
        self.saver = Saver(max_to_keep=0)

    def saves(self, *steps, at, after=None):
        """Saves at these steps, one second apart, in a session with a restored step or from the beginning."""
        with hl.Session() as session, FakeClock(start=float(at)) as clock:
            if after is None:
                session.run(hl.global_variables_initializer())
            else:
                self.saver.restore(session, f"{self.path}-{after}")
            for step in steps:
                clock.advance(1)
                self.saver.save(session, self.path, step)


@pytest.fixture
def training(tmp_path):
    with hl.Graph().as_default():
        yield Training(tmp_path)


def without_state(folder):
    (folder / "checkpoint").unlink()
    return str(folder)


def errors_in(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def lineage_of(folder, step):
    return Manifest.from_json((folder / f"model.ckpt-{step}" / "hookline.json").read_text()).lineage


def test_save_numbers_continue_from_the_restored_checkpoint(training, tmp_path):
    training.saves(10, 20, 30, at=100)
    training.saves(25, 35, at=200, after=20)
    numbers = {step: lineage_of(tmp_path, step).save_number for step in (10, 20, 30, 25, 35)}
    assert numbers == {10: 1, 20: 2, 30: 3, 25: 3, 35: 4}
    assert len({lineage_of(tmp_path, step).run_id for step in numbers}) == 1
    assert lineage_of(tmp_path, 35).follows(lineage_of(tmp_path, 20))
    assert not lineage_of(tmp_path, 35).follows(lineage_of(tmp_path, 30))


def test_newest_of_one_lineage_is_found_without_the_clock(training, tmp_path, caplog):
    training.saves(10, 20, at=500)
    training.saves(30, at=100, after=20)
    assert latest_checkpoint(without_state(tmp_path)) == f"{training.path}-30"
    state = get_checkpoint_state(str(tmp_path))
    assert [path.rpartition("-")[2] for path in state.all_model_checkpoint_paths] == ["10", "20", "30"]
    assert errors_in(caplog) == []


def test_checkpoint_newer_than_the_state_file_counts_without_the_clock(training, tmp_path, caplog):
    training.saves(10, 20, at=500)
    before = (tmp_path / "checkpoint").read_text()
    training.saves(30, at=100, after=20)
    (tmp_path / "checkpoint").write_text(before)
    assert latest_checkpoint(str(tmp_path)) == f"{training.path}-30"
    assert errors_in(caplog) == []


def test_abandoned_steps_are_logged_and_kept(training, tmp_path, caplog):
    training.saves(10, 20, 30, at=100)
    training.saves(25, at=200, after=20)
    assert latest_checkpoint(str(tmp_path)) == f"{training.path}-25"
    assert errors_in(caplog) == []
    for _ in range(2):
        assert latest_checkpoint(without_state(tmp_path) if _ == 0 else str(tmp_path)) == f"{training.path}-25"
    (line,) = errors_in(caplog)
    run = lineage_of(tmp_path, 10).run_id
    assert f"-25' (step 25, save 3 of run {run}, saved at 1970-01-01 00:03:21 UTC)" in line
    assert f"-30' (step 30, save 3 of run {run}, saved at 1970-01-01 00:01:43 UTC)" in line
    assert f"move '{training.path}-25' away" in line
    state = get_checkpoint_state(str(tmp_path))
    assert [path.rpartition("-")[2] for path in state.all_model_checkpoint_paths] == ["10", "20", "25"]
    shutil.rmtree(f"{training.path}-25")
    assert latest_checkpoint(str(tmp_path)) == f"{training.path}-30"


def test_leftovers_of_an_older_run_are_logged(training, tmp_path, caplog):
    training.saves(10, 20, at=100)
    training.saves(5, at=200)
    assert latest_checkpoint(without_state(tmp_path)) == f"{training.path}-5"
    (line,) = errors_in(caplog)
    assert "-5' (step 5, save 1 of run" in line
    assert "-20' (step 20, save 2 of run" in line


def monitored(folder, last_step, every=10, **arguments):
    with hl.Graph().as_default():
        train_op = train.get_or_create_global_step().assign_add(1)
        saver = train.CheckpointSaverHook(str(folder), save_steps=every, scaffold=(scaffold := train.Scaffold()))
        creator = train.ChiefSessionCreator(scaffold, **({"checkpoint_dir": str(folder)} | arguments))
        with train.MonitoredSession(creator, [saver, train.StopAtStepHook(last_step=last_step)]) as session:
            start = session.run(train.get_global_step())
            while not session.should_stop():
                session.run(train_op)
    return start


def test_start_logs_the_lineages_and_records_its_choice(tmp_path, caplog):
    monitored(tmp_path, 30)
    monitored(tmp_path, 25, every=5, checkpoint_dir=None, checkpoint_filename_with_path=f"{tmp_path}/model.ckpt-20")
    without_state(tmp_path)
    assert errors_in(caplog) == []
    assert monitored(tmp_path, 27) == 25
    (line,) = errors_in(caplog)
    assert line.startswith(f"The training in '{tmp_path}' continues from '{tmp_path}/model.ckpt-25', because ")
    assert "model.ckpt-30' (step 30, save 4" in line
    assert monitored(tmp_path, 28) == 27
    assert len(errors_in(caplog)) == 1, "the state file says it again"
    assert os.path.isdir(tmp_path / "model.ckpt-30")


@pytest.mark.parametrize("lost", [True, False])
def test_often_resumed_run_is_one_lineage(tmp_path, caplog, lost):
    for last_step in (10, 20, 25, 30):
        monitored(tmp_path, last_step)
        if lost:
            without_state(tmp_path)
    assert lineage_of(tmp_path, 30).save_number == 5
    assert len(lineage_of(tmp_path, 30).sessions) == 4
    assert errors_in(caplog) == []


def test_copied_run_that_is_continued_twice_has_two_lineages(tmp_path, caplog):
    monitored(tmp_path / "a", 10)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    monitored(tmp_path / "a", 15)
    monitored(tmp_path / "b", 20)
    shutil.copytree(tmp_path / "b" / "model.ckpt-20", tmp_path / "a" / "model.ckpt-20")
    assert latest_checkpoint(without_state(tmp_path / "a")) == f"{tmp_path}/a/model.ckpt-20"
    assert ["model.ckpt-15" in line and "model.ckpt-20" in line for line in errors_in(caplog)] == [True]


def test_copies_of_checkpoints_under_other_names_do_not_count(tmp_path, caplog):
    monitored(tmp_path, 20)
    shutil.copytree(tmp_path / "model.ckpt-20", tmp_path / "exported-20")
    shutil.copytree(tmp_path / "model.ckpt-10", tmp_path / "best")
    shutil.copytree(tmp_path / "model.ckpt-20", tmp_path / "model.ckpt-900")
    state = get_checkpoint_state(without_state(tmp_path))
    assert state.model_checkpoint_path.endswith("-20")
    assert errors_in(caplog) == []


def test_clean_removes_nothing_while_the_newest_is_uncertain(training, tmp_path, capsys):
    training.saves(10, 20, 30, at=100)
    training.saves(25, at=200, after=20)
    without_state(tmp_path)
    for told in ([], ["--yes"]):
        assert main(["clean", str(tmp_path), "--keep", "1", *told]) == 1
        err = capsys.readouterr().err
        assert "model.ckpt-30' (step 30" in err
        assert "model.ckpt-25' (step 25" in err
    assert len(list(tmp_path.glob("model*"))) == 4


@given(st.lists(st.tuples(st.integers(-1, 30), st.booleans(), st.integers(0, 9)), min_size=1, max_size=20), st.data())
def test_chosen_lineage_is_the_ancestry_of_its_newest_checkpoint(restores, data):
    """A history of saves, each after the one before it, after a restore of any earlier one, or from the beginning."""
    saved: list[tuple[Lineage, int | None]] = []  # Each with its parent.
    for number, (after, is_new, _) in enumerate(restores):
        session = ((f"s{number}", 1),)
        parent = None if is_new or not saved else min(after, len(saved) - 1) if after >= 0 else len(saved) - 1
        if parent is None:
            saved.append((Lineage(f"r{number}", 1, session), None))
            continue
        before = saved[parent][0]
        goes_on = after < 0
        kept = before.sessions[:-1] if goes_on else before.sessions
        own = before.sessions[-1][0] if goes_on else f"s{number}"
        sessions = (*kept, (own, before.save_number + 1))
        saved.append((Lineage(before.run_id, before.save_number + 1, sessions), parent))

    def ancestors(index):
        while index is not None:
            yield index
            index = saved[index][1]

    there = data.draw(st.lists(st.sampled_from(range(len(saved))), min_size=1, unique=True))
    found = [
        Candidate(f"c-{index}", Manifest({}, saved[index][0], index, float(restores[index][2]))) for index in there
    ]
    choice = choose_newest(found)
    by_path = {f"c-{index}": index for index in there}
    line, heads = [by_path[each.path] for each in choice.ancestry], [by_path[each.path] for each in choice.others]
    assert set(line) == set(ancestors(line[-1])) & set(there)
    assert line == sorted(line)
    ends = {index for index in there if not any(index in list(ancestors(other))[1:] for other in there)}
    assert {line[-1], *heads} == ends


@pytest.mark.parametrize("what", ["recovery", "rollback"])
def test_recovery_and_rollback_stay_in_the_lineage(tmp_path, caplog, what):
    train_op = train.get_or_create_global_step().assign_add(1)
    weight = hl.Variable(0.0, name="weight")
    spoil = weight.assign(float("nan"))
    scaffold = train.Scaffold()
    failing = [True]

    def fail():
        if failing and failing.pop():
            raise hl.errors.UnavailableError(None, None, "gone for a moment")

    with hl.control_dependencies([train_op]):
        flaky = hl.host_op(fail).node()
    hooks = [
        train.CheckpointSaverHook(str(tmp_path), save_steps=2, scaffold=scaffold),
        train.NanTensorHook(weight, on_nan="rollback"),
    ]
    recovery = train.RecoveryPolicy(initial_backoff_secs=0.0)
    creator = train.ChiefSessionCreator(scaffold, checkpoint_dir=str(tmp_path))
    with train.MonitoredSession(creator, hooks, recovery=recovery) as session:
        for step in range(9):
            session.run([train_op, flaky] if step == 5 and what == "recovery" else train_op)
            if step == 5 and what == "rollback":
                session.run(spoil)
    steps = sorted(int(path.name.rpartition("-")[2]) for path in tmp_path.glob("model*"))
    numbers = [lineage_of(tmp_path, step).save_number for step in steps]
    assert numbers == list(range(numbers[0], numbers[0] + len(steps)))
    caplog.clear()
    assert latest_checkpoint(without_state(tmp_path)) == f"{tmp_path}/model.ckpt-{steps[-1]}"
    assert errors_in(caplog) == []


def test_checkpoint_of_another_run_in_the_state_file_is_kept(tmp_path, caplog):
    def train_to(folder, last_step, every=2):
        with hl.Graph().as_default():
            count = train.get_or_create_global_step().assign_add(1)
            hooks = [train.StopAtStepHook(last_step=last_step)]
            with train.MonitoredTrainingSession(
                checkpoint_dir=str(folder), hooks=hooks, save_checkpoint_steps=every
            ) as session:
                while not session.should_stop():
                    session.run(count)

    train_to(tmp_path / "run", 10)
    train_to(tmp_path / "other", 3)
    shutil.copytree(tmp_path / "other" / "model.ckpt-3", tmp_path / "run" / "model.ckpt-3")
    train_to(tmp_path / "run", 31, every=4)
    assert {"model.ckpt-2", "model.ckpt-4", "model.ckpt-8"} <= set(os.listdir(tmp_path / "run"))
    assert any("left alone" in record.getMessage() for record in caplog.records)
