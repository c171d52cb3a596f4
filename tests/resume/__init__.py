"""The run that was interrupted ends as the one that was not."""
