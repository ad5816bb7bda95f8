"""Compute layers in the forms that LiteRT has in integers."""
