"""Where samples go: a terminal, TensorBoard, Prometheus; one, all or none of them."""
