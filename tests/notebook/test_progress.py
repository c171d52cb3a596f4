"""Progress in a notebook is one output of the cell, which the notebook keeps."""

from __future__ import annotations

import re

import pytest

nbformat = pytest.importorskip("nbformat", reason="no nbclient: pip install nbclient ipykernel")


def test_progress_is_one_updated_output_beside_the_log(notebook):
    cell = notebook.does("""
class Log(train.SessionRunHook):
    trigger = train.every(steps=10)
    def on_trigger(self, firing):
        logging.getLogger("hookline").warning("at %d", firing.global_step)

make().run(last_step=120, hooks=[Slow(), Log()]);
""")
    (shown,) = cell.shown
    line = shown["text/plain"]
    assert re.fullmatch(r"step 120/120  100%  epoch (\d+)/\1  loss \S+  \S+ steps/s  \S+ examples/s", line)
    assert '<progress value="120" max="120"></progress> step 120/120  100%' in shown["text/html"]
    assert re.search(r'<figcaption>loss</figcaption><svg .* d="M[^"]*L[^"]*" class="line', shown["text/html"])
    assert cell.text.count("WARNING:hookline:at") == 12
    first, *_, last = cell.text.splitlines()
    assert first.startswith("starts at step 0; on 1 x cpu")
    assert re.fullmatch(r"stopped at step 120 after \d+ s: the last step, 120, is reached", last)
    assert "steps/s" not in cell.text
    assert 2 <= notebook.updates <= 20  # About two seconds, five times a second.
    nbformat.validate(notebook.saved)


def test_later_cell_has_its_own_progress_output(notebook):
    notebook.does("""
with hl.Graph().as_default():
    train_op = train.get_or_create_global_step().assign_add(1)
    session = train.MonitoredSession(hooks=[train.ProgressHook(last_step=10)])
""")
    (first,) = notebook.does("for _ in range(4): session.run(train_op)").shown
    (second,) = notebook.does("session.run(train_op); time.sleep(0.3)\nfor _ in range(5): session.run(train_op)").shown
    (last,) = notebook.does("session.close()").shown or [second]
    assert first["text/plain"].startswith("step 1/10  10%")
    assert last["text/plain"].startswith("step 10/10  100%")
    notebook.does("del session; gc.collect(); assert_nothing_is_left()")


def test_line_stays_after_a_failure_and_its_values_are_escaped(notebook):
    cell = notebook.run("""
with hl.Graph().as_default():
    train_op = train.get_or_create_global_step().assign_add(1)
    text = hl.Variable(np.float32(1.5), name="w")
    class Fails(train.SessionRunHook):
        def after_run(self, run_context, run_values):
            raise ZeroDivisionError("on purpose")
    with train.MonitoredSession(hooks=[train.ProgressHook({"a<b": text}), Fails()]) as session:
        session.run(train_op)
""")
    assert cell.error == "ZeroDivisionError: on purpose"
    assert "on purpose" in cell.traceback
    (shown,) = cell.shown
    assert "a&lt;b 1.500" in shown["text/html"]
    assert "a<b 1.500" in shown["text/plain"]


@pytest.mark.campaign
def test_progress_in_a_file_is_plain_lines(notebook, tmp_path):
    path = tmp_path / "progress.txt"
    cell = notebook.does(f"""
with open({str(path)!r}, "w") as file:
    make().run(last_step=3, hooks=[train.ProgressHook(file=file)]);
""")
    assert cell.shown == []
    assert path.read_text().splitlines()[-1].startswith("step 3/3")


@pytest.mark.campaign
def test_output_is_updated_a_few_times_per_second_for_fast_steps(notebook):
    notebook.does("make().run(last_step=5000);")
    assert notebook.updates <= 40
