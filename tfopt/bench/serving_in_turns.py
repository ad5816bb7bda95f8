"""What the rows of a walk would serve, each left by its own process and compared in one more.

Guarantees: a row whose model cannot be made into a file, or whose file does not run, loses nothing
else; why is told. Without the first row's file there are no ratios, rather than others.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from tfopt.bench.tasks import Done, Progress, Task
from tfopt.errors import UserError
from tfopt.files import write_atomically
from tfopt.job import Job, Transform
from tfopt.report.footprint import Footprints
from tfopt.report.strict import decode
from tfopt.runner import Outcome

_REASON = "reason.txt"
_DIED = "the process ended while its file was made"


def leave_serving_file(outcome: Outcome, folder: Path) -> None:
    """Writes the file that would serve the model, or why there is none."""
    from tfopt.bench.gpu_serving import first_gpu, leave_program
    from tfopt.bench.serving import made_file, trained_file

    try:
        trained_file("", outcome.model, outcome.artefacts).write(folder)
        if first_gpu() and made_file(outcome.artefacts) is None:
            leave_program(outcome.model, folder)
    # A converter may fail in its own words; what was measured before does not depend on it.
    except Exception as error:
        traceback.print_exc()
        told = error.what if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        # On a full disk there is no place for it; the row is then one that left nothing.
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / _REASON, (told.splitlines() or [""])[0])


@dataclass(frozen=True)
class ServingInTurns(Task[Footprints]):
    """Compares the files that were left in folders, by name; the job is not looked at."""

    folders: Mapping[str, str]

    kind: ClassVar[str] = "serving"

    def carry_out(self, job: Job, added: Transform | None, progress: Progress) -> Done:
        from tfopt.bench.footprint import compared
        from tfopt.bench.gpu_serving import GpuRuns, first_gpu, program_in
        from tfopt.bench.serving import ServingFile, one_inference

        files, missing, gpu = [], [], first_gpu()
        on_gpu = None if gpu is None else GpuRuns(gpu)
        for name, folder in self.folders.items():
            try:
                file = ServingFile.read(name, Path(folder))
                one_inference(file.content, 1)
                if on_gpu is not None:
                    file = on_gpu.with_program(file, program_in(Path(folder)))
                files.append(file)
            except FileNotFoundError:
                reason = Path(folder) / _REASON
                told = reason.read_text(encoding="utf-8") if reason.exists() else _DIED
                missing.append(f"{name}: {told}")
            # Of a file that is damaged anything can be wrong; the others are none the worse.
            except Exception as error:
                told = (str(error).splitlines() or [type(error).__name__])[0]
                missing.append(f"{name}: its file cannot be used: {told}")
        if not files:
            raise UserError(f"No row has a file for serving. {'; '.join(missing)}")
        first = next(iter(self.folders))
        if first not in {file.name for file in files}:
            missing.append(f"nothing is told against {first}, which has no file")
        found = asdict(compared(files, gpu=on_gpu, first=first))
        return Done({**found, "missing": missing}, (), "")

    def read(self, value: Mapping[str, Any]) -> Footprints:
        return decode(Footprints, dict(value))
