"""Quantization of a trained model: the file, and what is known about it."""
