"""Examples: the embedded digits, their checks, and what turns any source into a tf.data one."""
