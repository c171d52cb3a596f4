"""An interrupted cell leaves a session usable: no step is lost, and nothing is left over."""

from __future__ import annotations

import textwrap

import pytest

LEFT = "Interrupted: The training was left in order."
TRAINS = "last_step=100, hooks=[Slow()]"


@pytest.fixture
def whole(notebook):
    """Keeps the result of an uninterrupted training."""
    notebook.does("whole = make().run(last_step=100, progress=False)['w']")


def assert_nothing_is_left(notebook):
    notebook.does("assert_nothing_is_left()")


def test_next_cell_reads_the_trained_state_in_memory_and_continues(notebook, whole):
    cell = notebook.run(f"loop = make()\nloop.run({TRAINS})", interrupts=("step 1/100",))
    assert cell.error == LEFT
    assert "holds step " in cell.traceback
    assert len(cell.traceback.splitlines()) == 1  # A sentence in place of a stack trace.
    assert_nothing_is_left(notebook)
    notebook.does("reached = int(repr(loop).partition('step ')[2][:-1]); print(reached)")
    notebook.does("assert 0 < reached < 100 and loop.result['w'].shape == (4,), reached")
    notebook.does(f"assert (loop.run({TRAINS})['w'] == whole).all()")
    assert_nothing_is_left(notebook)


@pytest.mark.campaign
def test_same_cell_continues_from_its_folder(notebook, whole, tmp_path):
    source = f"loop = make()\nfinal = loop.run({str(tmp_path)!r}, {TRAINS})"
    assert notebook.run(source, interrupts=("step 1/100",)).error == LEFT
    assert_nothing_is_left(notebook)
    notebook.does("saved = int(train.latest_checkpoint(loop.logdir).rpartition('-')[2]); assert 0 < saved < 100, saved")
    notebook.does(f"{source}\nassert (final['w'] == whole).all()")


def test_second_interrupt_ends_at_once_and_the_cell_resumes_from_the_last_checkpoint(notebook, whole, tmp_path):
    notebook.does("""
class Stuck(train.SessionRunHook):
    def end(self, session):
        print("it is stuck", flush=True)
        time.sleep(60)
""")
    cell = notebook.run(
        f"saves = train.CheckpointOptions(save_steps=10)\n"
        f"make().run({str(tmp_path)!r}, last_step=100, checkpoints=saves, hooks=[Slow(), Stuck()])",
        interrupts=("step 1/100", "it is stuck"),
    )
    assert cell.error == "KeyboardInterrupt: "
    assert_nothing_is_left(notebook)
    notebook.does(f"assert (make().run({str(tmp_path)!r}, {TRAINS})['w'] == whole).all()")


def test_session_continues_in_other_cells_and_is_always_consistent(notebook, tmp_path):
    notebook.does(f"""
with hl.Graph().as_default():
    both = hl.Variable(0.0, name="weight")
    train_op = hl.group(train.get_or_create_global_step().assign_add(1), both.assign_add(1.0))
    session = train.MonitoredTrainingSession(checkpoint_dir={str(tmp_path)!r}, hooks=[Slow()])
""")
    for _ in range(2):
        cell = notebook.run("print('go', flush=True)\nwhile True: session.run(train_op)", interrupts=("go",))
        assert cell.error == "KeyboardInterrupt: "
        notebook.does("assert session.run(both) == session.raw_session().global_step >= 1")
    # An unrelated cell is interrupted as always.
    assert notebook.run("print('go', flush=True)\ntime.sleep(60)", interrupts=("go",)).error == "KeyboardInterrupt: "
    cell = notebook.run(
        "with session:\n    print('go', flush=True)\n    while not session.should_stop(): session.run(train_op)",
        interrupts=("go",),
    )
    assert cell.error == LEFT
    notebook.does("del session; assert_nothing_is_left()")


MOMENTS = {
    "while it is compiled": """
        def slow_step(state, batch, key):
            w = state["w"]
            for i in range(1500):
                w = jnp.sin(w) + jnp.cos(w * i)
            return {"w": w}, {"loss": w.sum()}
        loop = train.Loop(slow_step, {"w": jnp.zeros(4)}, rows)
        print("go", flush=True)
        loop.run(folder, last_step=10**9)
    """,
    "during a save": """
        class Save(train.CheckpointSaverListener):
            def before_save(self, session, step):
                if step == 3:
                    print("go", flush=True)
                    time.sleep(1)
        loop = make()
        saver = train.CheckpointSaverHook(folder, save_steps=3, listeners=[Save()])
        loop.run(folder, last_step=10**9, checkpoints=train.CheckpointOptions(save_secs=None), hooks=[saver])
    """,
    "while it waits for a batch": """
        def slow():
            for batch in np.ones((1000, 8, 4), "float32"):
                yield batch
                if loop is not None:
                    print("go", flush=True)
                    time.sleep(1)
        loop = None
        loop = train.Loop(noisy_step, {"w": jnp.zeros(4)}, slow)
        loop.run(folder)
    """,
    "while it restores": """
        class Restore(train.SessionRunHook):
            def after_create_session(self, session, coord):
                print("go", flush=True)
                time.sleep(1)
        loop = make()
        loop.run(folder, last_step=10**9, hooks=[Restore()])
    """,
    "while the lease is another's": """
        import subprocess
        code = "import sys, time; from hookline.checkpoint.directory import lease; lease.hold(sys.argv[1], 5)"
        code += "; print(flush=True); time.sleep(60)"
        other = subprocess.Popen([sys.executable, "-c", code, folder], stdout=subprocess.PIPE)
        other.stdout.readline()
        try:
            print("go", flush=True)
            loop = make()
            loop.run(folder)
        finally:
            other.kill(), other.wait(), other.stdout.close()
    """,
}


@pytest.mark.campaign
@pytest.mark.parametrize("moment", MOMENTS)
def test_interrupt_at_any_moment_leaves_cleanly(notebook, whole, moment, tmp_path):
    folder = f"folder = {str(tmp_path)!r}\n"
    cell = notebook.run(folder + textwrap.dedent(MOMENTS[moment]), interrupts=("go",))
    assert cell.error == LEFT, cell.traceback
    assert_nothing_is_left(notebook)
    if moment != "while it is compiled":
        notebook.does(f"assert (make().run({str(tmp_path / 'another')!r}, {TRAINS})['w'] == whole).all()")
    notebook.does("loop.run(folder, last_step=2, progress=False)")


def test_second_interrupt_of_a_compilation_ends_the_cell_and_not_the_kernel(notebook, tmp_path):
    notebook.does("""
def slow_to_compile(state, batch):
    constant = np.random.default_rng(0).random(20_000, np.float32)  # XLA sorts it in seconds.
    return state + jnp.sort(constant)[0], {}

class Says(train.SessionRunHook):
    def before_run(self, run_context):
        print("go", flush=True)
""")
    source = f"""
loop = train.Loop(slow_to_compile, np.float32(0), hl.data.from_arrays(np.ones(8), 1, epochs=None))
try:
    loop.run({str(tmp_path)!r}, 10, hooks=[Says()], progress=False)
except KeyboardInterrupt as error:
    print(type(error).__name__)
"""
    assert "KeyboardInterrupt\n" in notebook.run(source, interrupts=("go", "the training ends")).text
    assert_nothing_is_left(notebook)
