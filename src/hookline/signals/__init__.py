"""Handles Ctrl-C and SIGTERM during a training.

`preemption` handles them and ends a training gracefully, `signal_listener` is a thread that receives them while the
main thread is busy, `interrupts` decides where Ctrl-C is raised, `notebooks` finds IPython's shell.
"""
