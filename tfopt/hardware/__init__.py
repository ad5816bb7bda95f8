"""What a training would take on GPUs that are not here: ``tfopt hardware``."""
