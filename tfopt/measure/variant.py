"""A variant: a job by reference, under a chain, with a name for the report."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tfopt.job.job import Chain, Transform
from tfopt.job.recipe_file import chain_to_toml


@dataclass(frozen=True)
class Variant:
    """A job under a chain, measured under one name.

    ``changed`` are the transforms that this variant adds to the one before it, or leaves out of
    the reference.
    """

    name: str
    job: str
    chain: Chain = field(default_factory=Chain)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    changed: tuple[Transform, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the variant as plain JSON values: two of the same are the same program."""
        return {
            "name": self.name,
            "job": self.job,
            "arguments": dict(self.arguments),
            "chain": chain_to_toml(self.chain),
        }

    @property
    def digest(self) -> str:
        """Return a short name for exactly this program."""
        text = json.dumps(self.to_dict(), sort_keys=True, default=repr)
        return hashlib.sha256(text.encode()).hexdigest()[:12]
