"""What is held on a model's weights while it trains: what masks and clusters have in common."""
