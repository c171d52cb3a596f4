"""A cell that is run again works as it did the first time, and leaks nothing, also where it has failed before."""

from __future__ import annotations

import json
import os

import pytest

# Objects that a training cell leaves, without its results: IPython keeps those.
LEFT = """
while gc.collect():
    pass
objects = gc.get_objects()
print(json.dumps({
    # The threads of sessions that have just been collected end by themselves.
    "threads": min(threading.active_count() for _ in range(10) if time.sleep(0.02) is None),
    # A session that is open looks at its lease now and then, with a file that is open for a moment.
    "files": min(len(os.listdir("/proc/self/fd")) for _ in range(10) if time.sleep(0.02) is None),
    "graphs": sum(isinstance(each, hl.Graph) for each in objects),
    "loops": sum(isinstance(each, train.Loop) for each in objects),
    "sessions": sum(isinstance(each, train.MonitoredSession) for each in objects),
    "arrays": len(jax.live_arrays()),
    "programs": len(jax.devices()[0].client.live_executables()),
    "handlers": sum(len(getattr(each, "handlers", ())) for each in logging.root.manager.loggerDict.values()),
    "operations": len(hl.get_default_graph().get_operations()),
}))
del objects
"""

DEFINES = """
def step(state, batch):
    loss, grads = jax.value_and_grad(lambda w: ((batch @ w - batch.sum(1)) ** 2).mean())(state["w"])
    return {"w": state["w"] - 0.01 * grads}, {"loss": loss}

loop = train.Loop(step, {"w": jnp.zeros(4)}, rows)
"""
OPENS = """
with hl.Graph().as_default():
    train_op = train.get_or_create_global_step().assign_add(1)
    session = train.MonitoredTrainingSession(checkpoint_dir=folder)
for _ in range(3):
    session.run(train_op)
"""
FAILS = "class Fails(train.SessionRunHook):\n    def after_run(self, run_context, run_values): 1 / 0\n"
CELLS = {
    "in memory": (DEFINES + "state = loop.run(last_step=5)", None),
    "with a folder": (DEFINES + "state = loop.run(folder, last_step=5)", None),
    "failing in a hook": (FAILS + DEFINES + "loop.run(folder, last_step=5, hooks=[Fails()])", "ZeroDivisionError"),
    "failing in the step": (DEFINES.replace(": loss}", ": float(loss)}"), "TypeError"),
    "never closed": (OPENS, None),
    "never closed, failing": (OPENS + "1 / 0", "ZeroDivisionError"),
}


@pytest.mark.parametrize(
    ("kind", "times"),
    [("with a folder", 8), *[pytest.param(kind, 20, marks=pytest.mark.campaign) for kind in CELLS]],
)
def test_repeated_cell_leaks_nothing(notebook, kind, times, tmp_path):
    if not os.path.exists("/proc/self/fd"):
        pytest.skip("what a process has open is read from /proc")
    source, error = CELLS[kind]
    notebook.does(f"import json\nfolder = {str(tmp_path)!r}")
    samples = []
    for count in range(times):
        cell = notebook.run(source)
        assert (cell.error or "no error").startswith(error or "no error"), cell.traceback
        if count in (4, times - 1):
            samples.append(json.loads(notebook.does(LEFT).text))
    assert samples[0] == samples[1]
    assert samples[0]["operations"] == 0
    notebook.does("if 'session' in globals(): session.close(); del session\ngc.collect(); time.sleep(0.2)")
    notebook.does("assert_nothing_is_left()")


@pytest.mark.campaign
def test_folder_is_released_after_a_failure_although_the_traceback_keeps_the_session(notebook, tmp_path):
    notebook.does(f"folder = {str(tmp_path)!r}")
    assert notebook.run(CELLS["failing in a hook"][0]).error.startswith("ZeroDivisionError")
    notebook.does("""
import subprocess
assert sys.last_traceback is not None
code = "import sys, fcntl; fcntl.lockf(open(sys.argv[1] + '/.hookline-lock', 'a'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
subprocess.run([sys.executable, "-c", code, folder], check=True)
assert_nothing_is_left()
""")
    notebook.does(DEFINES + "assert loop.run(folder, last_step=5)['w'].shape == (4,)")


def test_redefined_step_is_trained(notebook):
    for by in (1, 2):
        notebook.does(f"""
def step(state, batch):
    return {{"n": state["n"] + {by}}}, {{}}
assert train.Loop(step, {{"n": 0}}, rows).run(last_step=3, nan_check=None)["n"] == {3 * by}
""")


def test_errors_name_the_cell_and_the_line(notebook):
    cell = notebook.run(CELLS["failing in the step"][0])
    number = cell.traceback.partition("Cell In[")[2].partition("]")[0]
    assert f"step reads a value at Cell In[{number}], line 3 (`return" in cell.error
    notebook.does("with hl.Graph().as_default():\n    a = hl.Variable(np.zeros(3), name='a')")
    assert "/tmp/" not in notebook.run("hl.get_default_graph().get_tensor_by_name('none:0')").error


def test_repr_of_a_loop_is_one_line(notebook):
    assert notebook.does("make()").result == "<Loop of noisy_step: a dict of 4 values; not run yet>"
    notebook.does("loop = make(); loop.run(last_step=3);")
    assert notebook.does("loop").result == "<Loop of noisy_step: a dict of 4 values; stopped at step 3>"


@pytest.mark.campaign
def test_graph_built_twice_by_a_cell_is_an_error_with_a_remedy(notebook, tmp_path):
    source = f"""
train_op = train.get_or_create_global_step().assign_add(1)
weight = hl.Variable(0.0, name="weight")
session = train.MonitoredTrainingSession(checkpoint_dir={str(tmp_path)!r})
session.run(train_op)
"""
    notebook.does(source)
    cell = notebook.run(source)
    assert "Graph is finalized" in cell.error
    assert "If an earlier cell opened a session on it, call the session's close()" in cell.error
    notebook.does("session.close()")
    cell = notebook.run(source)
    assert "so that 'weight_1' is a second one? Call hookline.reset_default_graph() first" in cell.error
    notebook.does(f"hl.reset_default_graph()\n{source}\nsession.close(); del session; hl.reset_default_graph()")
    notebook.does("assert_nothing_is_left()")
