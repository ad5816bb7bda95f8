"""Channels truly removed: which belong together, which go, and the smaller model without them."""
