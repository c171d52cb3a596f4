"""Hooks that delay, feed, stop or save a training.

One hook a file.
"""
