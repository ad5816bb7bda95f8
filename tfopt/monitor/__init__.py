"""Sample GPUs and host during a training, and find what slows it down."""
