"""Check a machine, a cluster and a job before hours are spent on them."""
