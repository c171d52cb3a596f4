"""Hooks that hold a training back, feed it, end it or save it.

One hook a file.
"""
