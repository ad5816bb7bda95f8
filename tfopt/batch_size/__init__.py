"""The largest batch that trains, found by training: each trial in a process of its own.

``sizes`` chooses what to try next; ``rebatched`` is the job with another batch; ``trial`` is what a
process does, ``watch`` what is looked at meanwhile; ``attempts`` keeps what was tried; ``find`` is
the search, ``found`` its result, with ``rates`` and ``plot``.
"""
