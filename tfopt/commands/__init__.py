"""Offer the ``tfopt`` command, a file a subcommand."""
