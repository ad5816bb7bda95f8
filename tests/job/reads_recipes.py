"""Reads every recipe file in the current folder and prints what that imported and started."""

import json
import sys
from pathlib import Path

STARTING = ("os.system", "os.exec", "os.posix_spawn", "subprocess", "socket")


def outcome(path: Path) -> str:
    from tfopt.job.recipe_file import read_recipe

    try:
        read_recipe(path, trust_functions=True)
    except ValueError:
        return "refused"
    return "read"


def main() -> None:
    events: list[str] = []
    sys.addaudithook(lambda event, _: events.append(event))
    outcomes = {path.stem: outcome(path) for path in Path.cwd().glob("*.toml")}
    started = [event for event in events if event.startswith(STARTING)]
    imported = sorted({name.split(".")[0] for name in sys.modules})
    sys.stdout.write(json.dumps({"outcomes": outcomes, "started": started, "imported": imported}))


if __name__ == "__main__":
    main()
