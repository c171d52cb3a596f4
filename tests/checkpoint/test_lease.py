"""One writer a directory, with real processes: held, waited for, refused, inherited from the dead, taken over."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from tests.python import Python

import hookline as hl
from hookline import train

# File systems without locks, and a short heartbeat.
from hookline.checkpoint.directory import lease
from hookline.errors import FailedPreconditionError, InvalidArgumentError
from hookline.testing import FakeClock
from hookline.train import Saver

# A process that saves on request, and reports the result.
SAVES = """
import logging, os, sys
import hookline as hl
from hookline.checkpoint.directory import lease
from hookline.train import Saver
logging.basicConfig(stream=sys.stderr)
options = dict(item.split("=") for item in sys.argv[2:])
if "beat" in options:
    lease.try_lock = lambda descriptor: lease.LockResult.UNSUPPORTED
    lease._HEARTBEAT_SECS = float(options["beat"])
w = hl.Variable([1.0, 2.0], name="w")
bump = w.assign_add([1.0, 1.0])
sess = hl.Session()
sess.run(hl.global_variables_initializer())
saver = Saver(max_to_keep=3, lock_timeout_secs=float(options.get("wait", 120)))
print("started", flush=True)
for line in sys.stdin:
    word, _, step = line.strip().partition(" ")
    if word == "fork":
        child = os.fork()
        if child == 0:
            os.execvp("sleep", ["sleep", "120"]) if step == "exec" else os.kill(os.getpid(), 19)
        print("forked", child, flush=True)
        continue
    try:
        sess.run(bump)
        print("saved", saver.save(sess, sys.argv[1] + "/model.ckpt", int(step)), flush=True)
    except Exception as error:
        print("refused", type(error).__name__, error, flush=True)
"""


class Process:
    def __init__(self, directory, *prefix, **options):
        arguments = [f"{key}={value}" for key, value in options.items()]
        given = ["-c", SAVES, str(directory), *arguments]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        if prefix:
            self.popen = subprocess.Popen([*prefix, sys.executable, *given], text=True, **pipes)
        else:
            self.popen = Python(*given, **pipes)
        assert self.says() == "started"

    def tell(self, line):
        self.popen.stdin.write(line + "\n")
        self.popen.stdin.flush()

    def says(self):
        return self.popen.stdout.readline().strip()

    def save(self, step):
        self.tell(f"save {step}")
        return self.says()

    def end(self):
        return self.popen.communicate(timeout=60)


@pytest.fixture
def process(tmp_path) -> Iterator:
    """Starts processes that save into one directory."""
    started = []

    def start(*prefix, directory=".", **options):
        started.append(Process(os.path.normpath(tmp_path / directory), *prefix, **options))
        return started[-1]

    yield start
    for each in started:
        with contextlib.suppress(ProcessLookupError):
            each.popen.send_signal(signal.SIGCONT)
            each.popen.kill()
        each.popen.communicate()


@pytest.fixture
def session():
    w = hl.Variable([0.0, 0.0], name="w")
    with hl.Session() as session:
        session.run(w.initializer)
        yield session


def names_in(directory):
    return sorted(name for name in os.listdir(directory) if not name.startswith(".hookline-"))


def test_second_process_is_refused_with_the_owners_name(process, session, tmp_path):
    first = process()
    assert first.save(1) == f"saved {tmp_path}/model.ckpt-1"
    with pytest.raises(FailedPreconditionError) as caught:
        Saver(lock_timeout_secs=0).save(session, str(tmp_path / "model.ckpt"), 2)
    assert re.match(
        rf"'{tmp_path}' has a writer: process {first.popen.pid} on .* saves .* has not ended within 0 s",
        str(caught.value),
    )
    train.get_or_create_global_step()
    with pytest.raises(FailedPreconditionError, match=f"process {first.popen.pid} on "):
        train.MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path), checkpoints=train.CheckpointOptions(lock_timeout_secs=0)
        )
    # Readers are free.
    assert train.latest_checkpoint(str(tmp_path)) == f"{tmp_path}/model.ckpt-1"
    Saver(session.graph.get_collection("variables")[:1]).restore(session, f"{tmp_path}/model.ckpt-1")
    train.verify(str(tmp_path))
    assert first.save(3).startswith("saved")
    first.end()
    assert names_in(tmp_path) == sorted(os.listdir(tmp_path))


def test_second_process_logs_that_it_waits_for_the_first(process, tmp_path):
    first = process()
    first.save(1)
    second = process()
    second.tell("save 7")
    while f"process {first.popen.pid}" not in second.popen.stderr.readline():
        pass
    assert first.save(2).startswith("saved")
    first.end()
    assert second.says() == f"saved {tmp_path}/model.ckpt-7"


@pytest.mark.parametrize("saves", [5, pytest.param(20, marks=pytest.mark.campaign)])
def test_saves_of_two_processes_succeed_or_are_refused(process, tmp_path, saves):
    first, second = process(), process(wait=0)
    said = [first.save(0), second.save(100)]
    for step in range(1, saves):
        for each, number in ((first, step), (second, 100 + step)):
            each.tell(f"save {number}")
        said += [first.says(), second.says()]
    saved = [line.split()[1] for line in said if line.startswith("saved")]
    refused = [line for line in said if line.startswith("refused")]
    assert len(saved) == len(refused) == saves
    assert all("has a writer: process" in line for line in refused)
    assert names_in(tmp_path) == ["checkpoint", *sorted(path.rpartition("/")[2] for path in saved[-3:])]
    for path in saved[-3:]:
        train.verify(path)


@pytest.mark.parametrize("how", ["exec", pytest.param("stopped", marks=pytest.mark.campaign)])
def test_fork_that_outlives_a_killed_owner_does_not_hold_the_lease(process, session, tmp_path, how):
    owner = process()
    owner.save(1)
    owner.tell(f"fork {how}")
    child = int(owner.says().split()[1])
    try:
        owner.popen.kill()
        owner.popen.wait()
        os.kill(child, 0)
        assert Saver(lock_timeout_secs=0).save(session, str(tmp_path / "model.ckpt"), 2)
    finally:
        os.kill(child, signal.SIGKILL)


def test_new_owner_waits_for_a_stopped_owner_on_this_host_and_is_refused(process, session, tmp_path):
    owner = process()
    owner.save(1)
    owner.popen.send_signal(signal.SIGSTOP)
    with FakeClock() as clock:
        before = clock.monotonic()
        with pytest.raises(FailedPreconditionError, match="has not ended within 300 s"):
            Saver(lock_timeout_secs=300).save(session, str(tmp_path / "model.ckpt"), 2)
        assert clock.monotonic() - before >= 300
    owner.popen.send_signal(signal.SIGCONT)
    assert owner.save(3).startswith("saved")


def test_without_locks_a_silent_owner_is_replaced_and_writes_no_more(process, tmp_path):
    first, second = process(beat=0.2), process(beat=0.2)
    assert first.save(1).startswith("saved")
    second.tell("save 5")
    first.popen.send_signal(signal.SIGSTOP)
    assert second.says() == f"saved {tmp_path}/model.ckpt-5"
    first.popen.send_signal(signal.SIGCONT)
    before = names_in(tmp_path)
    for step in (6, 7):
        answer = first.save(step)
        assert answer.startswith("refused FailedPreconditionError")
        assert f"was taken over by process {second.popen.pid}" in answer
    assert names_in(tmp_path) == before == ["checkpoint", "model.ckpt-1", "model.ckpt-5"]
    assert second.save(8).startswith("saved")
    first.end()
    assert second.save(9).startswith("saved")


def test_replaced_owner_is_refused_even_after_the_other_has_ended(process, tmp_path):
    first, second = process(beat=0.2), process(beat=0.2)
    assert first.save(1).startswith("saved")
    first.popen.send_signal(signal.SIGSTOP)
    assert second.save(5).startswith("saved")
    second.end()
    first.popen.send_signal(signal.SIGCONT)
    answer = first.save(6)
    assert "were removed or replaced, and checkpoints are there. Another process may have saved them" in answer
    assert re.search(r"; this process sent no heartbeat for \d+ s\. Was it suspended\? If no other ", answer)
    assert train.latest_checkpoint(str(tmp_path)).endswith("-5")


def test_owner_that_reads_its_lock_file_keeps_the_lease(process, session, tmp_path):
    """To read a locked file, and close it, drops the lock."""
    other = process(wait=0)
    saver = Saver()
    saver.save(session, str(tmp_path / "model.ckpt"), 1)
    for path in tmp_path.glob(".hookline*"):
        path.read_bytes()
    assert other.save(5).startswith("refused")
    saver.save(session, str(tmp_path / "model.ckpt"), 2)
    assert other.save(6).startswith("refused")


def test_without_locks_a_live_owner_is_not_replaced(process, tmp_path):
    first, second = process(beat=0.2), process(beat=0.2, wait=1)
    assert first.save(1).startswith("saved")
    assert second.save(2).startswith("refused")
    assert first.save(3).startswith("saved")
    first.popen.kill()
    assert second.save(4).startswith("saved")


def test_two_pid_namespaces_share_the_lock(process, session, tmp_path):
    unshare = shutil.which("unshare")
    if unshare is None or os.geteuid() != 0:
        assert os.geteuid() != 0 or sys.platform != "linux", "unshare is needed"
        pytest.skip("new namespaces are made by root on Linux")
    inside = process(unshare, "--pid", "--fork", "--kill-child", "--mount-proc")
    assert inside.save(1).startswith("saved")
    with pytest.raises(FailedPreconditionError, match=r"has a writer: process \d+ on "):
        Saver(lock_timeout_secs=0).save(session, str(tmp_path / "model.ckpt"), 2)
    inside.popen.kill()
    inside.popen.wait()
    assert Saver(lock_timeout_secs=5).save(session, str(tmp_path / "model.ckpt"), 2)


def test_sessions_and_savers_of_one_process_share_the_lease_until_the_last_closes(process, tmp_path):
    other = process(wait=0)
    train.get_or_create_global_step()
    init = hl.global_variables_initializer()
    first = train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path))
    second = train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path))
    with hl.Session() as raw:
        raw.run(init)
        Saver().save(raw, str(tmp_path / "best"), 1)
        first.close()
        second.close()
        assert other.save(1).startswith("refused")
    assert other.save(2).startswith("saved")


def test_failed_session_creation_releases_the_lease(tmp_path):
    for_others = beating()
    train.get_or_create_global_step()
    with pytest.raises(ValueError, match="no"):
        train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), scaffold=train.Scaffold(init_fn=fail))
    assert lease.get_lease(str(tmp_path)) is None
    assert ".hookline-lock" not in os.listdir(tmp_path)
    for thread in beating() - for_others:
        thread.join(30)
        assert not thread.is_alive()


def beating():
    return {thread for thread in threading.enumerate() if thread.name == "hookline-leases"}


def fail(scaffold, session):
    raise ValueError("no")


def test_removed_directory_is_created_again(session, tmp_path):
    saver, directory = Saver(), tmp_path / "run"
    saver.save(session, str(directory / "model.ckpt"), 1)
    shutil.rmtree(directory)
    saver.save(session, str(directory / "model.ckpt"), 2)
    assert names_in(directory) == ["checkpoint", "model.ckpt-2"]


def tidied(directory):
    """Removes the files of the lease, as one that tidies may."""
    for path in directory.glob(".hookline-*"):
        path.unlink()


def replaced(directory):
    """Replaces a directory by a copy."""
    original = directory.rename(directory.with_name("original"))
    shutil.copytree(original, directory)


NOBODY = (
    "The lease files in '{0}' ({1}, {2}) were removed or replaced, and checkpoints are there. Another process may have "
    "saved them, or somebody has restored a copy: this process saves nothing more there. If no other training saves "
    "there, start this one again: it goes on from the newest checkpoint."
)


@pytest.mark.parametrize("happens", [tidied, replaced])
def test_lease_with_removed_files_is_lost_if_there_are_checkpoints(process, session, tmp_path, happens):
    directory = tmp_path / "run"
    saver, other = Saver(), process(directory="run", wait=0)
    saver.save(session, str(directory / "model.ckpt"), 1)
    happens(directory)
    for step in (2, 3):
        with pytest.raises(FailedPreconditionError) as caught:
            saver.save(session, str(directory / "model.ckpt"), step)
        assert str(caught.value) == NOBODY.format(directory, ".hookline-lock", ".hookline-owner")
    assert names_in(directory) == ["checkpoint", "model.ckpt-1"]
    # The copy names this process, which is alive: the next process waits for it.
    assert other.save(8).startswith("saved") == (happens is tidied)


def test_lease_is_acquired_again_if_there_is_no_checkpoint(process, session, tmp_path, caplog):
    other = process(wait=0)
    give_back = lease.acquire_lease(str(tmp_path))
    (tmp_path / "events.out.tfevents.1").write_text("")
    tidied(tmp_path)
    Saver().save(session, str(tmp_path / "model.ckpt"), 2)
    assert "has taken the lease again" in caplog.text
    assert other.save(7).startswith("refused")
    give_back()
    session.close()
    assert other.save(8).startswith("saved")


@pytest.mark.parametrize("earlier", [0, 1])
def test_after_the_directory_is_removed_one_of_two_processes_saves(process, tmp_path, earlier):
    both = process(wait=0, directory="run"), process(wait=0, directory="run")
    assert both[0].save(1).startswith("saved")
    shutil.rmtree(tmp_path / "run")
    assert both[earlier].save(2).startswith("saved")
    answer = both[1 - earlier].save(3)
    assert answer.startswith("refused FailedPreconditionError")
    assert f"process {both[earlier].popen.pid} on" in answer
    assert names_in(tmp_path / "run") == ["checkpoint", "model.ckpt-2"]


def test_directory_recreated_by_another_process_is_not_written_to(process, session, tmp_path):
    saver, other = Saver(), process(wait=0, directory="run")
    saver.save(session, str(tmp_path / "run" / "model.ckpt"), 1)
    shutil.rmtree(tmp_path / "run")
    assert other.save(100).startswith("saved")
    other.end()
    with pytest.raises(FailedPreconditionError, match="checkpoints are there. Another process may have saved them"):
        saver.save(session, str(tmp_path / "run" / "model.ckpt"), 2)
    assert names_in(tmp_path / "run") == ["checkpoint", "model.ckpt-100"]


def test_waiting_process_does_not_take_the_lease_of_an_owner_without_lock(process, session, tmp_path):
    saver = Saver()
    saver.save(session, str(tmp_path / "model.ckpt"), 1)
    for name in os.listdir(tmp_path):  # Drops the lock.
        if name.startswith(".hookline"):
            (tmp_path / name).read_bytes()
    other = process()
    other.tell("save 100")
    while "has a writer" not in other.popen.stderr.readline():
        pass
    for step in range(2, 6):
        saver.save(session, str(tmp_path / "model.ckpt"), step)
    session.close()
    assert other.says() == f"saved {tmp_path}/model.ckpt-100"


def taken_over(directory, who):
    return (
        rf"^'{directory}' was taken over by {who}, because the files of this process's lease there .* were removed or "
        r"replaced, or this host was suspended: this process saves nothing more there\.$"
    )


@pytest.mark.parametrize("then", ["lives", "ends", pytest.param("is killed", marks=pytest.mark.campaign)])
def test_lease_taken_by_another_process_is_not_acquired_again(process, session, tmp_path, then):
    saver, other = Saver(), process(wait=0)
    saver.save(session, str(tmp_path / "model.ckpt"), 1)
    tidied(tmp_path)
    assert other.save(100).startswith("saved")
    if then == "ends":
        other.end()
        said = re.escape(NOBODY.format(tmp_path, ".hookline-lock", ".hookline-owner"))
    elif then == "is killed":
        other.popen.kill()
        other.popen.wait()
        said = taken_over(tmp_path, rf"process {other.popen.pid} on \S+, which has ended")
    else:
        said = taken_over(tmp_path, rf"process {other.popen.pid} on \S+")
    for step in (2, 3):
        with pytest.raises(FailedPreconditionError, match=said):
            saver.save(session, str(tmp_path / "model.ckpt"), step)
    assert names_in(tmp_path) == ["checkpoint", "model.ckpt-1", "model.ckpt-100"]


@pytest.mark.parametrize("locks", [True, pytest.param(False, marks=pytest.mark.campaign)])
def test_checkpoint_saved_by_another_during_a_change_is_not_adopted(process, session, tmp_path, locks, monkeypatch):
    if not locks:
        monkeypatch.setattr(lease, "try_lock", lambda descriptor: lease.LockResult.UNSUPPORTED)
    saver, other = Saver(), process(wait=0, **({} if locks else {"beat": 0.2}))
    saver.save(session, str(tmp_path / "model.ckpt"), 1)
    with lease.get_lease(str(tmp_path)).ensure_held():
        tidied(tmp_path)
        assert other.save(50).startswith("saved")
        other.end()
    for step in (2, 3):
        with pytest.raises(FailedPreconditionError, match="Another process may have saved them"):
            saver.save(session, str(tmp_path / "model.ckpt"), step)
    assert names_in(tmp_path) == ["checkpoint", "model.ckpt-1", "model.ckpt-50"]


@pytest.mark.parametrize("times", [3, pytest.param(19, marks=pytest.mark.campaign)])
def test_two_processes_never_save_in_a_directory_that_is_removed_often(process, tmp_path, times):
    first, second = process(wait=0, directory="run"), process(wait=0, directory="run")
    said = []
    for step in range(1, times + 1):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        for each, number in ((first, step), (second, 100 + step)):
            each.tell(f"save {number}")
        said.append(sorted(each.says().split()[0] for each in (first, second)))
    assert said == [["refused", "saved"]] * times


def test_unfinished_owner_file_is_removed(session, tmp_path):
    (tmp_path / f".hookline-owner.{'0123abcd' * 4}").write_text("{")
    Saver().save(session, str(tmp_path / "model.ckpt"), 1)
    session.close()
    assert sorted(os.listdir(tmp_path)) == ["checkpoint", "model.ckpt-1"]


def test_failed_save_releases_the_lease(tmp_path):
    hl.Variable(1.0, name="w")
    session = hl.Session()
    session.run(hl.global_variables_initializer())
    session.backend.hook_states = lambda: {"mine": object()}
    with pytest.raises(InvalidArgumentError):
        Saver().save(session, str(tmp_path / "model.ckpt"), 1)
    session.close()
    assert lease.get_lease(str(tmp_path)) is None


def test_background_save_keeps_the_lease_after_the_session_closes(session, tmp_path):
    pending = Saver().save_async(session, str(tmp_path / "model.ckpt"), 1)
    session.close()
    pending.wait()
    assert lease.get_lease(str(tmp_path)) is None
    assert names_in(tmp_path) == ["checkpoint", "model.ckpt-1"]


def test_earlier_session_does_not_reclaim_the_lease_of_a_later_one(tmp_path):
    def session():
        with hl.Graph().as_default():
            step = train.get_or_create_global_step().assign_add(1)
            return train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), save_checkpoint_steps=10), step

    earlier, step = session()
    earlier.run(step)
    later, step = session()
    with later:
        for _ in range(5):
            later.run(step)
    with pytest.raises(FailedPreconditionError, match="a session that was opened later in this process saves"):
        earlier.close()
    assert train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-5")
