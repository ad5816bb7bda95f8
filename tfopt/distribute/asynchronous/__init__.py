"""Train without waiting for other workers, through parameter servers."""
