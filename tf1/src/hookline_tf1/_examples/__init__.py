"""The modules of `tensorflow.examples` that scripts import; `_tf/module_aliases.py` gives them their names."""
