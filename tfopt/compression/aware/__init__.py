"""Quantization-aware training: where a model computes with rounded values, and how."""
