"""Train on several replicas and workers with the weights that one device trains."""
