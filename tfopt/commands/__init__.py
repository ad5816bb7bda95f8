"""The commands of ``tfopt``, one file each: its flags, and what it prints.

Guarantees: importing a command's file loads neither TensorFlow nor a renderer, so that every
``--help`` answers at once.
"""
