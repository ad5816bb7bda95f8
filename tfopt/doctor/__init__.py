"""Check a machine, a cluster and a job before a long training."""
