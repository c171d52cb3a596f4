"""`hookline inspect`, on runs that are whole, going, broken or not there."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests import python, spmd
from tests.cli.conftest import trained_in
from tests.loop.devices import on_devices

import hookline as hl
from hookline.cli import main
from hookline.errors import DataLossError
from hookline.train import verify

JOB = Path(__file__).with_name("job.py")


def inspected(capsys, *words):
    assert main(["inspect", "--json", *map(str, words)]) == 0
    return json.loads(capsys.readouterr().out)


def flip_the_table(checkpoint):
    """Changes a number of the variable "table", and no other byte of it."""
    number = np.arange(64 * 40, dtype=np.float32)[100:104] + int(checkpoint.name.partition("-")[2])
    flipped = 0
    for file in (file for file in checkpoint.rglob("*") if file.is_file()):
        data = file.read_bytes()
        flipped += data.count(number.tobytes())
        file.write_bytes(data.replace(number.tobytes(), (number + 1).tobytes()))
    assert flipped == 1


def test_inspect_shows_the_checkpoints_and_the_newest_ones_variables(shared_run, capsys):
    assert main(["inspect", str(shared_run)]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert err == ""
    assert lines[0] == f"{shared_run}: 3 complete checkpoints, the newest is model.ckpt-6."
    assert lines[1].startswith("Account: 1 start since ")
    assert [line.split()[:2] for line in lines[4:7]] == [[f"model.ckpt-{step}", str(step)] for step in (6, 4, 2)]
    assert [line.split()[-1] for line in lines[4:7]] == ["newest", "complete", "complete"]
    table = next(line.split() for line in lines if line.startswith("table"))
    norm = np.linalg.norm(np.arange(64 * 40, dtype=np.float64) + 6)
    assert table == ["table", "(64,", "40)", "float32", "10.2", "kB", "whole", f"{norm:.6g}"]
    assert next(line for line in lines if line.startswith("global_step")).endswith("= 6")
    assert next(line for line in lines if line.startswith("params/kernel")).split()[3] == "float16"
    assert re.fullmatch(r"--all shows the \d+ values of hooks", lines[-1])
    assert main(["inspect", str(shared_run), "--all"]) == 0
    assert "\nhooks/hookline.CheckpointSaverHook[model.ckpt]/" in capsys.readouterr().out


def test_global_step_comes_first_and_the_position_in_the_data_is_in_words(tmp_path, capsys):
    batches = hl.data.from_arrays(np.ones(1200, "float32"), 100, shuffle_seed=0)
    loop = hl.train.Loop(lambda state, batch: ({"w": state["w"] + batch.sum()}, {}), {"w": np.zeros(3)}, batches)
    loop.run(str(tmp_path), last_step=22, epochs=2, progress=False)
    assert main(["inspect", str(tmp_path)]) == 0
    *_, step, weights, count, position, _ = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in (step, weights, count)] == ["global_step", "state/w", "batches/count"]
    assert re.fullmatch(r"batches/state/json .* = 1 epoch and 1,000 of 1,200 examples", position)


def test_json_has_all_facts(shared_run, capsys):
    found = inspected(capsys, shared_run)
    assert (found["newest"], found["inspected"], found["max_to_keep"], found["writer"]) == ("model.ckpt-6",) * 2 + (
        3,
        None,
    )
    first = found["checkpoints"][0]
    files = [file for file in (shared_run / "model.ckpt-6").rglob("*") if file.is_file()]
    assert first["bytes"] == sum(file.stat().st_size for file in files)
    assert (first["state"], first["step"], first["why"], first["read"]) == ("complete", 6, "", True)
    assert 0 < first["age_secs"] < 3600
    variables = {variable["name"]: variable for variable in found["variables"]}
    assert variables["table"]["shape"] == [64, 40]
    assert variables["params/bias"]["value"] == 0.5


def test_one_checkpoint_may_be_named(shared_run, capsys):
    found = inspected(capsys, shared_run / "model.ckpt-4")
    assert [each["name"] for each in found["checkpoints"]] == ["model.ckpt-4"]
    assert {variable["name"]: variable["value"] for variable in found["variables"]}["global_step"] == 4


def test_no_values_reads_no_arrays(own_run, capsys):
    for file in own_run.rglob("d/*"):
        file.unlink()
    found = inspected(capsys, own_run, "--no-values")
    assert {each["state"] for each in found["checkpoints"]} == {"complete"}
    assert {variable["norm"] for variable in found["variables"]} == {None}


@pytest.mark.usefixtures("failed_reads")
def test_flipped_bits_are_found_and_the_newest_readable_is_shown(own_run, capsys):
    flip_the_table(own_run / "model.ckpt-6")
    assert main(["inspect", str(own_run)]) == 0
    out, err = capsys.readouterr()
    assert "model.ckpt-6, is broken; the newest that can be read is model.ckpt-4." in out.splitlines()[0]
    assert "\nmodel.ckpt-6 is broken: table cannot be read: " in out
    assert "\nmodel.ckpt-4 holds " in out
    assert err == ""


@pytest.mark.usefixtures("failed_reads")
def test_every_checkpoint_is_read_on_request(own_run, capsys):
    flip_the_table(own_run / "model.ckpt-2")
    assert main(["inspect", str(own_run)]) == 0
    assert "broken" not in capsys.readouterr().out
    assert main(["inspect", str(own_run), "--verify"]) == 1
    out = capsys.readouterr().out
    assert "\nmodel.ckpt-2 is broken: table cannot be read: " in out
    assert out.endswith("\nRead and compared: 3 checkpoints. Broken: 1.\n")


@pytest.mark.usefixtures("failed_reads")
def test_broken_variable_is_named_beside_readable_ones(own_run, capsys):
    flip_the_table(own_run / "model.ckpt-6")
    found = inspected(capsys, own_run / "model.ckpt-6")
    broken = {variable["name"]: variable["broken"] for variable in found["variables"] if variable["broken"]}
    assert broken.keys() == {"table"}
    assert "checksum" in broken["table"].lower()
    assert found["checkpoints"][0]["state"] == "broken"


@pytest.mark.usefixtures("failed_reads")
def test_failed_read_prints_no_stack_trace(own_run, environment):
    index = own_run / "model.ckpt-6" / "state" / "manifest.ocdbt"
    data = bytearray(index.read_bytes())
    data[30:38] = b"hookline"
    index.write_bytes(data)
    for words in (["inspect", own_run], ["diff", own_run, own_run]):
        done = python.run("-m", "hookline.cli", *words, env=environment())
        assert "state/manifest.ocdbt is damaged" in done.stdout
        assert done.stderr == ""


def test_error_of_a_training_is_shown_for_its_checkpoint(own_run, capsys):
    manifest = own_run / "model.ckpt-6" / "hookline.json"
    manifest.write_bytes(manifest.read_bytes().replace(b"step", b"st\xffp", 1))
    with pytest.raises(DataLossError, match=r"model\.ckpt-6"):
        trained_in(own_run, 8)
    found = inspected(capsys, own_run)
    assert {each["name"]: each["why"] for each in found["checkpoints"] if each["why"]} == {
        "model.ckpt-6": "its hookline.json is damaged: it is not text"
    }
    assert main(["inspect", str(own_run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "The newest, model.ckpt-6, is broken; the newest that can be read is model.ckpt-4." in lines[0]
    assert lines[1] == 'A training stops at model.ckpt-6, unless it has restore="latest-valid".'
    assert next(line for line in lines if line.startswith("model.ckpt-4")).endswith("newest that can be read")


def test_missing_names_in_the_state_file_are_noted(own_run, capsys):
    state = own_run / "checkpoint"
    state.write_text(state.read_text().replace('"model.ckpt-2"', '"model.ckpt-r"'))
    assert inspected(capsys, own_run)["note"] == (
        "its state file names model.ckpt-r, which is not there; "
        "its state file does not list model.ckpt-2, so no training removes it"
    )


def without_data(checkpoint):
    for file in checkpoint.rglob("d/*"):
        file.unlink()


def half_a_manifest(checkpoint):
    manifest = checkpoint / "hookline.json"
    manifest.write_text(manifest.read_text()[:300])


def another_manifest(checkpoint):
    manifest = checkpoint / "hookline.json"
    manifest.write_text(manifest.read_text().replace("float32", "float64"))


def of_the_future(checkpoint):
    manifest = checkpoint / "hookline.json"
    manifest.write_text(re.sub(r'"format": \d+', '"format": 9', manifest.read_text()))


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (without_data, r"its file state/d/\w+ is missing"),
        (lambda checkpoint: (checkpoint / "hookline.json").unlink(), "it has no hookline.json"),
        (half_a_manifest, "its hookline.json is damaged"),
        (another_manifest, "its hookline.json is damaged"),
        (of_the_future, "it has format 9"),
        (lambda checkpoint: [shutil.rmtree(checkpoint), checkpoint.mkdir()], "it is empty"),
        (lambda checkpoint: [shutil.rmtree(checkpoint), checkpoint.write_text("")], "it is a file"),
    ],
    ids=["data", "no-manifest", "half-manifest", "another-manifest", "future", "empty", "file"],
)
@pytest.mark.usefixtures("failed_reads")
def test_broken_checkpoint_is_described_in_a_sentence(own_run, capsys, harm, why):
    harm(own_run / "model.ckpt-6")
    assert main(["inspect", str(own_run)]) == 0
    out, err = capsys.readouterr()
    assert re.search(rf"^model\.ckpt-6 is broken: .*{why}", out, re.MULTILINE), out
    assert "model.ckpt-4 holds " in out
    assert err == ""


LOCKED = """
import contextlib, io, json, os, sys
from hookline.cli import main

def said(locked, *words):
    mode, text = os.stat(locked).st_mode, io.StringIO()
    os.chmod(locked, 0)
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        main(words)
    os.chmod(locked, mode)
    return text.getvalue()

print(json.dumps([said(*words) for words in json.loads(sys.argv[1])]))
"""


@pytest.mark.usefixtures("failed_reads")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv takes root's right to read everything")
def test_unreadable_permissions_are_not_called_damage(own_run):
    rights = "-dac_override,-dac_read_search"
    command = ["setpriv", "--bounding-set", rights, "--inh-caps", rights, sys.executable, "-c", LOCKED]
    folder = str(own_run)
    looks = [
        [f"{folder}/model.ckpt-4", "inspect", folder, "--no-values"],
        [f"{folder}/model.ckpt-6/state", "inspect", folder],
        [folder, "inspect", folder],
    ]
    done = subprocess.run([*command, json.dumps(looks)], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    checkpoint, state, run = said = json.loads(done.stdout)
    assert not any("Traceback" in each or "is broken" in each for each in said)
    shown = r"^model\.ckpt-6 .*\nmodel\.ckpt-4 .* cannot be read\nmodel\.ckpt-2 "
    assert re.search(shown, checkpoint, re.MULTILINE), checkpoint
    assert "The newest, model.ckpt-6, cannot be read; the newest that can be read is model.ckpt-4." in state
    assert "cannot be read: its file state cannot be read: Permission denied" in state
    assert run == f"hookline inspect: '{folder}/.hookline-owner' cannot be read: Permission denied.\n"


def test_pending_save_is_no_checkpoint(own_run, capsys):
    for suffix in ("writing-ab12", "writing-cd34", "removed", "broken"):
        (own_run / f"model.ckpt-8.hookline-{suffix}").mkdir()
    os.rename(own_run / "model.ckpt-4", own_run / "model.ckpt-4.hookline-saving")  # Complete, but for its name.
    found = inspected(capsys, own_run)
    by_state = {}
    for each in found["checkpoints"]:
        by_state.setdefault(each["state"], []).append(each["name"])
    assert by_state["complete"] == ["model.ckpt-6", "model.ckpt-4", "model.ckpt-2"]
    assert len(by_state["unfinished"]) == 4
    assert found["newest"] == "model.ckpt-6"


@pytest.mark.parametrize("text", ["{", "", "[]", "\x00"])
def test_unreadable_state_file_is_no_problem(own_run, capsys, text):
    (own_run / "checkpoint").write_text(text)
    assert main(["inspect", str(own_run), "--no-values"]) == 0
    out = capsys.readouterr().out
    assert "the newest is model.ckpt-6." in out
    assert "Note: its state file" in out


def test_run_without_a_complete_checkpoint_is_shown(own_run, capsys):
    (own_run / "checkpoint").write_text("{")
    for manifest in own_run.rglob("hookline.json"):
        manifest.unlink()
    found = inspected(capsys, own_run)
    assert (found["newest"], found["inspected"]) == (None, None)
    assert [each["why"] for each in found["checkpoints"]] == ["it has no hookline.json"] * 3


def test_missing_run_is_an_error(shared_run, tmp_path, capsys):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("")
    (tmp_path / "empty-1").mkdir()
    for path, why in [
        (tmp_path / "nowhere", "does not exist."),
        (tmp_path / "empty-1", "is empty."),
        (tmp_path / "other", "is not a run: it has no checkpoint and no event file."),
        (tmp_path / "other" / "notes.txt", "is a file, not a folder."),
        (shared_run.parent, f"Did you mean {shared_run}?"),
    ]:
        assert main(["inspect", str(path)]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"hookline inspect: '{path}' ")
        assert err.endswith(f"{why}\n")


@pytest.mark.parametrize("words", [["inspect", ""], ["diff", "", "."], ["events", ""], ["clean", ""]])
def test_empty_string_is_no_folder(capsys, words):
    assert main(words) == 2
    assert capsys.readouterr().err == f"hookline {words[0]}: a folder is required, got ''. The current one is '.'.\n"


def test_checkpoint_of_eight_devices_needs_one(tmp_path, capsys, environment):
    python.run(JOB, tmp_path, "on_devices", env=environment() | on_devices(8), check=True)
    found = inspected(capsys, tmp_path)
    assert len(found["checkpoints"][0]["devices"]) == 8
    rows = found["variables"][0]
    assert rows["norm"] == pytest.approx(np.linalg.norm(np.arange(512)))
    assert len(rows["pieces"]) == 8
    assert main(["inspect", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "8 devices (" in out
    assert "8 of (2, 32)" in out


def test_checkpoint_of_two_processes_needs_one(tmp_path, capsys):
    ended = spmd.run(str(JOB), str(tmp_path), "on_devices")
    assert [each.status for each in ended] == [0, 0], ended
    found = inspected(capsys, tmp_path)
    assert [len(found["variables"][0]["pieces"]), len(found["checkpoints"][0]["devices"])] == [2, 2]
    assert found["variables"][0]["norm"] == pytest.approx(np.linalg.norm(np.arange(512)))


def test_64_bit_values_are_shown_as_saved(tmp_path, capsys, environment):
    python.run(JOB, tmp_path, "wide", env=environment(), check=True)
    variables = {variable["name"]: variable for variable in inspected(capsys, tmp_path)["variables"]}
    assert variables["whole"]["norm"] == 2.0**40 + 1
    assert variables["real"]["value"] == 1 + 2**-40
    assert (variables["odd"]["norm"], variables["odd"]["nans"], variables["odd"]["infs"]) == ("NaN", 1, 1)
    assert main(["inspect", str(tmp_path)]) == 0
    assert "nan (1 NaN, 1 infinite)" in capsys.readouterr().out


MEASURED = """
import json, pathlib, sys
from hookline.checkpoint.restoring import inspection
from hookline.cli import main
inspection.AT_ONCE_BYTES = 2**20
def most(): return int(pathlib.Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024
assert main(["inspect", sys.argv[1]]) == 0
before = most()
assert main(sys.argv[2:]) == 0
print(most() - before)
"""


@pytest.mark.campaign
@pytest.mark.skipif(sys.platform != "linux", reason="/proc says how much memory was used")
def test_few_variables_are_in_memory_at_once(shared_run, tmp_path, environment):
    python.run(JOB, tmp_path, "large", env=environment(), check=True)
    for words, most in ((["inspect", tmp_path], 110), (["diff", tmp_path, tmp_path], 130)):
        done = python.run("-c", MEASURED, shared_run, *words, env=environment(), check=True)
        assert float(done.stdout.split()[-1]) < most, "each checkpoint has 128 MiB"


def test_running_training_is_not_disturbed(tmp_path, capsys, environment):
    """Inspects it in every way, while it saves and removes checkpoints, until it ends."""
    folder = tmp_path / "going"
    with python.Python("-u", JOB, folder, "going", env=environment()) as process:
        assert process.stdout is not None
        while int(process.stdout.readline()) < 20:
            pass
        for _ in range(2):
            found = inspected(capsys, folder)
            assert found["writer"] == {"process": process.pid, "host": os.uname().nodename, "runs": True}
            assert found["inspected"] is not None
            assert "broken" not in {each["state"] for each in found["checkpoints"]}
            assert main(["inspect", str(folder)]) == 0
            assert f"Process {process.pid} on " in capsys.readouterr().out
            assert main(["diff", str(folder), str(folder)]) == 0
            assert main(["events", str(folder)]) == 0
            assert main(["clean", str(folder), "--keep", "1"]) == 0
            out, err = capsys.readouterr()
            assert "--yes is refused until it ends; --wait SECS waits." in out
            assert "half-written" not in out
            assert main(["clean", str(folder), "--keep", "1", "--yes"]) == 1
            out, err = capsys.readouterr()
            assert f"process {process.pid} on " in err
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT, err
    assert "lease" not in err
    last = int(out.split()[-1])
    verify(str(folder))
    assert inspected(capsys, folder)["checkpoints"][0]["step"] == last
    assert main(["clean", str(folder), "--keep", "1", "--yes"]) == 0
    assert sorted(path.name for path in folder.glob("model*")) == [f"model.ckpt-{last}"]


def test_killed_run_is_distinguished_from_a_running_one(tmp_path, capsys, environment):
    with python.Python("-u", JOB, tmp_path, "going", env=environment(writes=False)) as process:
        assert process.stdout is not None
        while int(process.stdout.readline()) < 6:
            pass
        process.kill()
        process.wait()
    assert inspected(capsys, tmp_path)["writer"]["runs"] is False
    assert main(["clean", str(tmp_path), "--keep", "1", "--yes"]) == 0
    capsys.readouterr()
    assert inspected(capsys, tmp_path)["writer"] is None


def test_training_resumes_after_clean(own_run, capsys):
    assert main(["clean", str(own_run), "--keep", "1", "--yes"]) == 0
    trained_in(own_run, 8)
    capsys.readouterr()
    assert [each["step"] for each in inspected(capsys, own_run)["checkpoints"]] == [8, 6]


def test_foreign_files_are_not_opened(own_run, capsys, monkeypatch):
    def looks():
        paths = []
        with monkeypatch.context() as patched:
            for name in ("stat", "lstat"):
                real = getattr(os, name)
                patched.setattr(os, name, lambda path, *a, real=real, **k: paths.append(path) or real(path, *a, **k))
            assert main(["inspect", "--no-values", str(own_run)]) == 0
            assert main(["clean", str(own_run)]) == 0
        capsys.readouterr()
        return len(paths)

    before = looks()
    for number in range(300):
        (own_run / f"image-{number:05d}").touch()
    assert looks() <= before
