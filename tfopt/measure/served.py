"""Compare what variants would serve: one process runs the files that their trainings left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from tfopt.job.job import Job
from tfopt.report.footprint import Footprints


@dataclass(frozen=True)
class CompareServed:
    """Compare the files that were left in folders, by name; the job is not looked at."""

    folders: Mapping[str, str]

    def carry_out(self, job: Job, pipe: Connection) -> Footprints:
        """Run each file in turns with the others."""
        from tfopt.export.model_footprint import compared_folders

        return compared_folders({name: Path(folder) for name, folder in self.folders.items()})
