"""Hooks that tell how a training goes: to a log, a terminal, an event file, a sink.

One hook a file; `progress_output` is where `progress` writes.
"""
