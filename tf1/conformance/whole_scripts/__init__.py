"""Whole scripts of TF 1.x, played on TensorFlow and on hookline_tf1 from the same random numbers."""
