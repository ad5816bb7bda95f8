"""What ``tfopt bench`` measured, as data (``document``), and its renderers.

Guarantees: nothing in this package loads TensorFlow, and importing it loads no renderer.
"""
