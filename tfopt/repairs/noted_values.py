"""What is known of values in a graph from where they were made, kept with the graph.

Guarantees: a note lives as long as its graph, and says which replica of the graph it is of.
"""

from __future__ import annotations

import threading
from typing import Any

COUNTED = "tfopt_counted_losses"
"""Losses that are noted as a replica's part of the whole."""
OF_PARTS = "tfopt_values_of_parts"
"""Data that has no row for each example, but one for each of its parts, as ragged data has."""


def note_counted(loss: Any) -> None:
    """Keeps that this loss is a replica's part of the whole."""
    # Each replica of a trace has a thread of its own.
    loss.graph.add_to_collection(COUNTED, (loss.name, threading.get_ident()))


def counted_in(graph: Any) -> set[str]:
    """The names of the losses that were noted as counted, on whichever replica."""
    return {name for name, _ in graph.get_collection(COUNTED)}


def is_counted(term: Any) -> bool:
    """Whether a term was noted as counted, on whichever replica."""
    return term.name in counted_in(term.graph)


def is_of_this_replica(term: Any) -> bool:
    """Whether a term was noted as counted here, and not on another replica of the same graph."""
    return (term.name, threading.get_ident()) in term.graph.get_collection(COUNTED)


def note_of_parts(values: Any) -> None:
    """Keeps that these are values of parts of examples, of which each has as many as it has."""
    values.graph.add_to_collection(OF_PARTS, values.name)


def of_parts_in(graph: Any) -> set[str]:
    """The names of those."""
    return set(graph.get_collection(OF_PARTS))
