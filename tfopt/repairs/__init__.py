"""One file for each defect of Keras or TensorFlow that tfopt mends.

Each says what is wrong, since when and where it is known, has a probe that sees whether the
defect is there, and a mend that is active only inside a context. A mend whose probe finds the
defect gone does nothing.
"""
