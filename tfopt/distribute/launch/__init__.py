"""Start distributed jobs: on this machine, on Slurm, Kubernetes and Ray."""
