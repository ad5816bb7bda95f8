"""The serving formats, one file each, behind one base class."""
