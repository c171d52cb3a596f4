"""What Ctrl-C, SIGTERM and SIGUSR1 do to a training.

`preemption` hears them and ends a training in order, `signal_listener` is the thread that hears them while Python is
busy, `interrupts` says where Ctrl-C is raised, `notebooks` whether a cell runs.
"""
