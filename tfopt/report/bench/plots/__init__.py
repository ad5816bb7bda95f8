"""The plots of a bench report, drawn by matplotlib into SVG that a page can hold as it is.

Guarantees: matplotlib's global settings are left alone; importing this package loads matplotlib,
and nothing else in ``tfopt.report`` does.
"""
