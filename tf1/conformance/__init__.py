"""What scripts of TF 1.x do on TensorFlow and on hookline_tf1: scenarios, and whole scripts.

`make conformance` plays the scenarios together with hookline's own: this package is a suite of `conformance`.
"""
