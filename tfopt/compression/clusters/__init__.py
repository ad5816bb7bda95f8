"""Clustering: few values for many weights, and what keeps them so."""
