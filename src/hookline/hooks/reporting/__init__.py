"""Hooks that report the progress of a training to a log, a terminal, an event file or a sink.

One hook a file; `progress_output` writes the lines of `progress`.
"""
