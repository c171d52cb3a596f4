"""Whole scripts of TF 1.x, played on TensorFlow and on hookline.compat.v1 from the same random numbers."""
