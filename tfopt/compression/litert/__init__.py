"""LiteRT files: how one is made, what is in it, how it runs."""
