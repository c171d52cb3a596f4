"""The same scenarios on TensorFlow and on hookline, compared: `make conformance`.

A suite is a package like this one: `scenarios`, the two systems `on_tensorflow` and `on_hookline` that play them, and
beside it `docs/differences.md`.
"""
