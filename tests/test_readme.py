"""The README's example runs unchanged, however it is started, and prints the shown output."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from tests import python
from tests.loop.devices import on_devices

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLE, SHOWN = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", README, re.DOTALL)[0]
OF_GRAPH = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "graph.md").read_text(encoding="utf-8"), re.DOTALL)[0]


def run(code: str, folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    done = python.run("-c", code, cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    return done


def progress(text: str) -> list[str]:
    """Returns the steps of the progress lines, such as "step 1/300"."""
    return re.findall(r"^(?:0 \| )?(step \d+/\d+)", text, re.MULTILINE)


def warnings(text: str) -> list[str]:
    """Returns the warnings of the chief, with or without the prefix that `logging.basicConfig` gives them."""
    return re.findall(r"^(?:0 \| )?(?:WARNING:hookline[\w.]*:)?((?:Loop|Nothing)\b.*)", text, re.MULTILINE)


def without_measurements(text: str) -> list[str]:
    """Returns lines without their losses, saves, speeds and times, which differ from one machine to the next."""
    text = re.sub(r"  (?:saved \d+|\S+ (?:steps|examples)/s)", "", text)
    return re.sub(r"(?<=loss )\S+|\d+(?= s:)", "...", text).splitlines()


@pytest.mark.parametrize(
    ("code", "folder", "shown_on"), [(EXAMPLE, "step", "stderr"), (OF_GRAPH, "line", "stdout")], ids=["step", "graph"]
)
def test_example_trains_resumes_and_logs_a_start_without_a_step_left(code, folder, shown_on, tmp_path, environment):
    first = run(code, tmp_path, environment())
    again = run(code, tmp_path, environment())
    further = run(code.replace("last_step=300", "last_step=400"), tmp_path, environment())

    assert [each.stdout.splitlines()[-1] for each in (first, again, further)] == ["[ 1. -2.  3.]"] * 3
    shown = [progress(getattr(each, shown_on)) for each in (first, again, further)]
    assert (shown[0][0], shown[0][-1]) == ("step 1/300", "step 300/300")
    assert shown[1] == []
    assert (shown[2][0], shown[2][-1]) == ("step 301/400", "step 400/400")
    assert (warnings(first.stderr), warnings(further.stderr)) == ([], [])
    assert [line.partition(",")[0] for line in warnings(again.stderr)] == [
        f"Nothing is trained: the training begins at global step 300 (restored from runs/{folder}/model.ckpt-300)"
    ]
    assert (tmp_path / "runs" / folder / "model.ckpt-400").is_dir()


def test_example_prints_the_output_in_the_readme(tmp_path, environment):
    done = run(EXAMPLE, tmp_path, environment())
    assert done.stdout.splitlines() == SHOWN.splitlines()[-1:]
    printed = iter(without_measurements(done.stderr))
    for line in without_measurements(SHOWN)[:-1]:
        assert line in printed, f"{line!r} is not printed, or not in this order: {done.stderr}"


def test_example_prints_what_the_page_about_loops_shows(tmp_path, environment):
    printed = without_measurements(run(EXAMPLE, tmp_path, environment()).stderr)
    _, *between, _ = [line for line in printed if line.startswith("step ")]
    page = (ROOT / "docs" / "loop.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"<!-- printed -->\n```\n(.*?)```", page, re.DOTALL)
    assert [line for line in printed if line not in between] == without_measurements(shown)


def test_example_on_one_of_four_devices_logs_how_to_use_all(tmp_path, environment):
    done = run(EXAMPLE, tmp_path, environment() | on_devices(4))
    assert done.stdout.splitlines()[-1] == "[ 1. -2.  3.]"
    assert warnings(done.stderr) == [
        "Loop: the state and the batches are on one device, cpu:0, of 4. To train on all of them: mesh = "
        "jax.make_mesh((4,), ('data',), axis_types=(jax.sharding.AxisType.Auto,)); Loop(..., "
        "sharding=jax.NamedSharding(mesh, jax.P())), which also splits the batches; see 'Many devices' in hookline's "
        "documentation. To stay on one: sharding=jax.devices()[0]."
    ]


@pytest.mark.parametrize(
    ("sharding", "is_split"),
    [
        ("jax.NamedSharding(jax.make_mesh((4,), ('data',), axis_types=(jax.sharding.AxisType.Auto,)), jax.P())", True),
        ("jax.devices()[0]", False),
    ],
    ids=["all", "one"],
)
def test_example_trains_on_four_devices_with_either_suggested_sharding(sharding, is_split, tmp_path, environment):
    code = EXAMPLE.replace("state, batches)", f"state, batches, sharding={sharding})")
    done = run(f"{code}\nprint(len(state['params'].devices()))", tmp_path, environment() | on_devices(4))
    assert done.stdout.splitlines() == ["[ 1. -2.  3.]", "4" if is_split else "1"]
    assert "one device" not in done.stderr


def test_example_runs_with_several_steps_per_run(tmp_path, environment):
    code = EXAMPLE.replace("state, batches)", "state, batches, steps_per_run=16)")
    assert run(code, tmp_path, environment()).stdout == "[ 1. -2.  3.]\n"


def test_example_runs_as_two_spmd_processes_and_resumes(tmp_path, environment):
    (tmp_path / "train.py").write_text(EXAMPLE)
    first, again = (
        python.run(
            *("-m", "hookline.cli", "launch", "--spmd", "--processes", "2", "train.py"),
            cwd=tmp_path,
            env=environment(),
        )
        for _ in range(2)
    )
    printed = first.stdout + first.stderr
    assert (first.returncode, again.returncode) == (0, 0), printed + again.stdout + again.stderr
    assert {"0 | [ 1. -2.  3.]", "1 | [ 1. -2.  3.]"} <= set(printed.splitlines())
    assert progress(printed)[-1] == "step 300/300"
    assert warnings(printed) == []
    assert [line.partition(":")[0] for line in warnings(again.stdout + again.stderr)] == ["Nothing is trained"]
    assert (again.stdout + again.stderr).count("Nothing is trained") == 1


def test_readme_is_short_and_has_its_three_lines():
    added = EXAMPLE.partition("# The training is three lines of hookline:\n")[2].partition("\n\n")[0]
    assert len(added.splitlines()) == 3
    assert len(README.splitlines()) <= 95
    assert all(f"make {target}" in README for target in ("demo", "test", "lint"))


def test_every_linked_document_exists():
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
