"""Follow channels through a model's graph, choose some, and remove them."""
