"""Activations computed again in the backward pass, so that they need not be kept until then.

``recomputed`` does it to one function, ``state`` keeps what a function reads and writes the same
both times, ``unrepeatable`` finds what cannot be computed twice, ``segments`` cuts a graph of
layers into parts.
"""
