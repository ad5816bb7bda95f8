"""Sources of examples, one in each file."""
