"""Search for what trains fastest: the chain of a job, and its batch size."""
