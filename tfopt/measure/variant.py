"""A variant: a job by reference, under a chain, with a name for the report."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from tfopt.job.job import Transform
from tfopt.measure.targets import Target


@dataclass(frozen=True)
class Variant(Target):
    """A job under a chain, measured under one name.

    ``changed`` are the transforms that this variant adds to the one before it, or leaves out of
    the reference.
    """

    changed: tuple[Transform, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the variant as plain JSON values: two of the same are the same program."""
        return {"name": self.name, **super().to_dict()}

    @property
    def digest(self) -> str:
        """Return a short name for exactly this program."""
        text = json.dumps(self.to_dict(), sort_keys=True, default=repr)
        return hashlib.sha256(text.encode()).hexdigest()[:12]
