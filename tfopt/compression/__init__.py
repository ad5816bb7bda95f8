"""What pruning and quantization are made of: plain functions on real Keras objects."""
