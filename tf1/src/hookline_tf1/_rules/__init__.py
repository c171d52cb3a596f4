"""The rules of shapes and constants: inference before a run, independent of the names in `tf`."""
