"""Where examples come from: one file a source, on the library that is made for it."""
