"""Layers in the forms that LiteRT computes well in integers."""
