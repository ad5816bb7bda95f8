"""Compress tf_keras (Keras 2) models with tfmot."""
