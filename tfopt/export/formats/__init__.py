"""The formats that models are served in: one file each, behind one protocol."""
