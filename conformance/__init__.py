"""The same scenarios on TensorFlow and on hookline, compared: `make conformance`."""
