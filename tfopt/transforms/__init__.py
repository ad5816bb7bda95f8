"""One file a transform: a plain function on Keras objects, and the frozen value that calls it."""
