"""Show or serve samples: terminal, TensorBoard, Prometheus."""
