"""Start distributed jobs: on this machine, on Slurm and Kubernetes."""
