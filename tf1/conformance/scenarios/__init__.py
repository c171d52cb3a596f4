"""The scenarios, a file a group."""
