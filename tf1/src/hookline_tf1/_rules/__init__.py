"""The rules of shapes and constants: everything known of a tensor before a run. Nothing here knows a name of `tf`."""
