"""Turn a recording into findings, each with its evidence and what to try."""
