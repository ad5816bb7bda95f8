"""``tfopt doctor``: checks of a machine, a cluster and a job, before hours are spent on them.

The package is not called ``doctor``, since it would hide the function ``tfopt.doctor``.
"""
