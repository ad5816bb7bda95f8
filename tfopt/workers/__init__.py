"""Training in several processes: who is there, one strategy, what must be alike, who is lost."""
