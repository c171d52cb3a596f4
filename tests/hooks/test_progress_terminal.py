"""ProgressHook on a real terminal: the final contents of the screen."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading

import pytest
from tests.terminal import Terminal

from hookline import train
from hookline.testing import FakeClock


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal = Terminal()
    yield terminal
    terminal.close()


@pytest.fixture
def log(terminal):
    """A logger whose handler writes to the terminal, as `logging.basicConfig` makes one."""
    logger, handler = logging.getLogger("on the terminal"), logging.StreamHandler(terminal.file)
    logger.addHandler(handler)
    yield logger
    logger.removeHandler(handler)


def drawn(terminal):
    """Returns the texts drawn one over the other, without colours."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", terminal.text)
    return [line.rstrip() for line in re.findall(r"\r(step [^\r\n\x1b]*)", text)]


def train_on(terminal, model, last_step=20, secs_a_step=0.1, at_step=lambda step: None, **arguments):
    with FakeClock() as clock:
        hooks = [train.StopAtStepHook(last_step=last_step), train.ProgressHook(file=terminal.file, **arguments)]
        with model.session(*hooks) as session:
            while not session.should_stop():
                clock.advance(secs_a_step)
                session.run(model.train)
                at_step(session.raw_session().global_step)


def test_line_is_drawn_five_times_a_second(terminal, model):
    train_on(terminal, model)
    (line, rest) = terminal.screen
    assert rest == ""
    assert re.fullmatch(r"step 20/20 +━+ +100%  10 steps/s", line)
    assert [int(re.match(r"step (\d+)/20", text)[1]) for text in drawn(terminal)] == [*range(1, 20, 2), 20]


def test_log_lines_appear_above_the_progress_line(terminal, model, log):
    train_on(terminal, model, at_step=lambda step: log.warning("at step %d", step))
    assert terminal.screen[:-2] == [f"at step {step}" for step in range(1, 21)]
    assert terminal.screen[-2].startswith("step 20/20")


def test_printed_text_appears_above_the_progress_line(terminal, model, monkeypatch):
    monkeypatch.setattr(sys, "stdout", terminal.file)
    monkeypatch.setattr(sys, "stderr", os.fdopen(os.dup(terminal.file.fileno()), "w"))

    def speak(step):
        print("one", step, end=" ")
        sys.stdout.writelines(["and ", "more\n"])
        print("another", step, file=sys.stderr)

    train_on(terminal, model, last_step=5, at_step=speak)
    sys.stderr.close()
    expected = [line for step in range(1, 6) for line in (f"one {step} and more", f"another {step}")]
    assert terminal.screen[:-2] == expected
    assert terminal.screen[-2].startswith("step 5/5")


def test_progress_line_waits_for_the_end_of_a_printed_line(terminal, model, monkeypatch):
    monkeypatch.setattr(sys, "stdout", terminal.file)
    words = iter(["Counting", " to", " four", " is done\n", "Not this one"])
    train_on(terminal, model, last_step=5, secs_a_step=1, at_step=lambda step: print(next(words), end=""))
    assert terminal.screen[:2] == ["Counting to four is done", "Not this one"]
    assert terminal.screen[2].startswith("step 5/5")


def test_other_threads_may_print(terminal, model, log):
    release = threading.Event()

    def speak():
        release.wait()
        for number in range(200):
            log.warning("thread says %d", number)

    threads = [threading.Thread(target=speak) for _ in range(3)]
    for thread in threads:
        thread.start()
    train_on(terminal, model, last_step=100, at_step=lambda step: release.set())
    for thread in threads:
        thread.join()
    *said, _, _ = [line for line in terminal.screen if not line.startswith("step 100/100")] + ["", ""]
    assert sorted(filter(None, said)) == sorted(f"thread says {n}" for n in range(200) for _ in threads)


def test_logging_thread_does_not_deadlock_with_the_end_of_the_line(terminal, model, log):
    holding, ending = threading.Event(), threading.Event()

    class Handler(logging.StreamHandler):
        def setStream(self, stream):
            if holding.is_set():
                ending.set()
            return super().setStream(stream)

    def speak():
        with handler.lock:  # as `emit` does
            holding.set()
            ending.wait()
            handler.stream.write("said\n")

    handler, thread = Handler(terminal.file), threading.Thread(target=speak, daemon=True)
    log.addHandler(handler)

    def start(step):
        if step == 5:
            thread.start()
            holding.wait()

    def run():
        with model.train.graph.as_default():
            train_on(terminal, model, 5, at_step=start)

    training = threading.Thread(target=run, daemon=True)
    training.start()
    training.join(60)
    assert not training.is_alive(), "each waits for what the other holds"
    log.removeHandler(handler)
    assert terminal.screen[1:] == ["said", ""]


def test_streams_are_restored_at_the_end(terminal, model, log, monkeypatch):
    monkeypatch.setattr(sys, "stdout", terminal.file)
    (handler,) = log.handlers
    kept = []
    train_on(terminal, model, last_step=5, at_step=lambda step: kept.append(sys.stdout))
    assert sys.stdout is handler.stream is terminal.file
    assert kept[0] is not terminal.file
    print("kept", file=kept[0])
    print("after")
    assert terminal.screen[1:] == ["kept", "after", ""]


def test_exception_ends_the_line(terminal, model, log):
    def fail(step):
        if step == 10:
            raise KeyError("failed")

    (handler,) = log.handlers
    with pytest.raises(KeyError, match="failed"):
        train_on(terminal, model, at_step=fail)
    assert handler.stream is terminal.file
    print("Traceback", file=terminal.file)
    assert [line.split("  ")[0] for line in terminal.screen] == ["step 9/20", "Traceback", ""]


def test_redirected_stream_is_not_changed(terminal, model, tmp_path, monkeypatch):
    def speak(step):
        assert sys.stderr is errors
        print("error", file=sys.stderr)

    with open(tmp_path / "errors", "w+") as errors:
        monkeypatch.setattr(sys, "stderr", errors)
        train_on(terminal, model, last_step=5, at_step=speak)
        errors.seek(0)
        assert errors.read() == "error\n" * 5
    assert len(terminal.screen) == 2


@pytest.mark.parametrize("columns", [20, 40, 60, 200])
def test_line_fits_into_the_terminal(model, columns, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal = Terminal(columns)
    train_on(terminal, model, last_step=5, values={"a name that is rather long": "weight", "loss": "loss"})
    line, rest = terminal.screen
    assert rest == ""
    assert line.startswith("step 5/5" if columns > 20 else "step")
    assert len(line) < columns
    assert ("100%  a name that is rather long 16.00  loss 8.000" in line) == (columns == 200)


def test_value_and_step_of_a_line_belong_together(terminal, model):
    train_on(terminal, model, values=["loss"], last_step=9)
    losses = [float(re.search(r"loss (\S+)", text)[1]) for text in drawn(terminal)]
    steps = [int(re.match(r"step (\d+)", text)[1]) for text in drawn(terminal)]
    assert losses == [2.0 ** (step - 2) for step in steps]
    assert steps[0] == 1
    assert steps[-1] == 9


def test_dumb_terminal_gets_plain_lines(terminal, model, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    train_on(terminal, model)
    assert terminal.screen == ["step 1/20  5%", "step 20/20  100%  10 steps/s", ""]


def test_line_is_drawn_on_the_standard_output_by_default(terminal, model, monkeypatch):
    monkeypatch.setattr(sys, "stdout", terminal.file)
    with FakeClock():
        model.train_until_stop(train.StopAtStepHook(last_step=3), train.ProgressHook())
    assert drawn(terminal)[-1].startswith("step 3/3")


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (100, r"[━╸╺]+ +\d+%  long name \d+  10 steps/s  320 examples/s  0:01 left"),
        (78, r"[━╸╺]+ +\d+%  long name \d+  10 steps/s  0:01 left"),
        (60, r"[━╸╺]+ +\d+%  long name \d+  0:01 left"),
        (45, r"\d+%  long name \d+  0:01 left"),
        (30, r"\d+%  long name.*…"),
    ],
)
def test_narrow_terminal_drops_whole_items_from_the_right(columns, shown, monkeypatch, model):
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal = Terminal(columns)
    train_on(terminal, model, values={"long name": "global_step"}, per_step={"examples": 32})
    terminal.close()
    line = next(text for text in drawn(terminal) if text.startswith("step 15/20"))
    assert re.fullmatch(rf"step 15/20 +{shown}", line), line


def test_last_drawing_after_the_end_of_the_data_keeps_the_values(terminal):
    with FakeClock():
        loop = train.Loop(lambda state, batch: (state, {"loss": state["n"]}), {"n": 0.5}, [1.0, 2.0, 3.0], seed=0)
        loop.run(progress=False, hooks=[train.ProgressHook(loop.metrics, last_step=9, file=terminal.file)])
    terminal.close()
    assert re.fullmatch(r"step 3/9 +━.* +33%  epoch 1/3  loss 0\.5000", drawn(terminal)[-1])
