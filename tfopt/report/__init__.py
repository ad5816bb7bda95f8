"""The report as data (``schema``) and its renderers for terminal, Markdown and HTML.

Guarantees: nothing in this package loads TensorFlow, and importing the package loads no
renderer. All three renderers lay out the same :class:`tfopt.report.view.View`, so a figure
reads the same everywhere.
"""
