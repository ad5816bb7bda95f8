"""A batch trained in micro-batches: ``shares`` weighs their losses, ``step`` runs them in turn."""
