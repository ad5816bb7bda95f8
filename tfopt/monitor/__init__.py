"""Sample GPUs and host while a training runs, and find what holds it up."""
