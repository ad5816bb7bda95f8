"""Find which task of which cluster this process is: by TF_CONFIG, else by Slurm.

TensorFlow is not loaded. A wrong entry is one error with its fix, where TensorFlow would wait for
ever or end with a trace.

TensorFlow's own SlurmClusterResolver does not serve here: it sorts the hosts by name, so that
`node[9-10]` gives a task the address of another node; it needs nvidia-smi, and it sets
CUDA_VISIBLE_DEVICES. Slurm's heterogeneous jobs have not been tried.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tfopt.errors import UserError

KINDS = ("chief", "worker", "ps")
_KINDS = ", ".join(KINDS)
_EXAMPLE = (
    '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'
)
_OTHER_ORDERS = ("cyclic", "plane", "arbitrary")


@dataclass(frozen=True)
class ClusterPlace:
    """One task of a cluster, and where the others are."""

    kind: str
    """"chief", "worker" or "ps"."""
    index: int
    """The number among those of its kind, from 0."""
    cluster: Mapping[str, tuple[str, ...]]
    """The addresses (``host:port``) by kind; kinds without a task are left out."""
    source: str
    """Where that was found: "TF_CONFIG" or "Slurm"."""

    @property
    def workers(self) -> int:
        """Count those that train: the workers, and the chief where there is one."""
        return len(self.cluster.get("chief", ())) + len(self.cluster.get("worker", ()))

    @property
    def is_chief(self) -> bool:
        """Return whether this is the one that writes files: the chief, or worker 0 without one."""
        return self.kind == "chief" or (
            self.kind == "worker" and self.index == 0 and "chief" not in self.cluster
        )

    @property
    def rank(self) -> int:
        """Return the number among all tasks: the chief, the workers, the ps."""
        before = KINDS[: KINDS.index(self.kind)]
        return sum(len(self.cluster.get(kind, ())) for kind in before) + self.index

    @property
    def address(self) -> str:
        """Return its ``host:port``."""
        return self.cluster[self.kind][self.index]

    @property
    def name(self) -> str:
        """Return what errors and logs call it: ``worker 0``."""
        return f"{self.kind} {self.index}"

    @property
    def addresses(self) -> dict[str, str]:
        """Return the address of each worker by its name, the chief's first."""
        return {
            f"{kind} {index}": address
            for kind in ("chief", "worker")
            for index, address in enumerate(self.cluster.get(kind, ()))
        }

    @property
    def tf_config(self) -> str:
        """Return the JSON text that TensorFlow reads from the variable TF_CONFIG."""
        cluster = {kind: list(addresses) for kind, addresses in self.cluster.items()}
        return json.dumps({"cluster": cluster, "task": {"type": self.kind, "index": self.index}})


def place_in_cluster(environment: Mapping[str, str] | None = None) -> ClusterPlace | None:
    """Return the place of this process by its environment variables; None outside any cluster.

    TF_CONFIG counts first. Without it the tasks of an ``srun`` of more than one task are the
    workers; their ports count up from TFOPT_PORT, or from a number made of the job's.
    """
    given = os.environ if environment is None else environment
    if given.get("TF_CONFIG", "").strip() not in ("", "{}"):
        return _from_tf_config(given["TF_CONFIG"])
    return _from_slurm(given)


def _from_tf_config(text: str) -> ClusterPlace:
    try:
        config = json.loads(text)
        listed, task = dict(config["cluster"]), dict(config["task"])
    except (ValueError, TypeError, KeyError) as error:
        what = f"{type(error).__name__}: {error}"
        raise _wrong(
            f"TF_CONFIG is not a JSON object of cluster and task ({what}).", text
        ) from error
    cluster = dict(_checked_addresses(listed, text))
    kind, index = task.get("type"), _number(task.get("index"))
    if kind not in KINDS or index is None:
        raise _wrong(f"TF_CONFIG's task is not one of {_KINDS}, with its index.", repr(task))
    count = len(cluster.get(kind, ()))
    if index >= count:
        raise UserError(
            f"TF_CONFIG says that this is {kind} {index}, and its cluster has {count} {kind}(s).",
            expected=f"an index below {count}, counted from 0" if count else f'"{kind}" in cluster',
            received=f"index {index}",
            fix="give every task the same cluster and its own index",
        )
    return ClusterPlace(kind, index, cluster, "TF_CONFIG")


def _checked_addresses(listed: dict[str, Any], text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    if not any(listed.values()) or not listed.keys() <= {*KINDS}:
        raise _wrong(f"TF_CONFIG's cluster has no tasks, or others than {_KINDS}.", text)
    found: list[str] = []
    for kind in KINDS:
        addresses = listed.get(kind, [])
        if not isinstance(addresses, list):
            raise _wrong(f'The "{kind}" of TF_CONFIG\'s cluster is not a list.', repr(addresses))
        for address in addresses:
            # An IPv6 address stands in brackets.
            parts = re.fullmatch(r"([^\s:/]+|\[[0-9A-Fa-f:.]+\]):(\d{1,5})", str(address))
            if parts is None or not 0 < int(parts[2]) < 65536:
                raise _wrong(
                    f"A {kind}'s address is not host:port, without http://.", repr(address)
                )
            if address in found:
                raise _wrong("TF_CONFIG gives two tasks the same address.", address)
            found.append(address)
        if addresses:
            yield kind, tuple(addresses)


def _number(value: Any) -> int | None:
    """Return a count from 0; scripts that fill TF_CONFIG in often leave the quotes on."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _wrong(what: str, received: Any) -> UserError:
    return UserError(
        what,
        expected=_EXAMPLE,
        received=received,
        fix="mend TF_CONFIG, or unset it to train in one process",
    )


def _from_slurm(given: Mapping[str, str]) -> ClusterPlace | None:
    # A batch script has SLURM_PROCID too, but only what srun has started is a step.
    if "SLURM_STEP_NODELIST" not in given or "SLURM_PROCID" not in given:
        return None
    of_step = "SLURM_STEP_NUM_TASKS" in given
    count = int(given["SLURM_STEP_NUM_TASKS" if of_step else "SLURM_NTASKS"])
    if count < 2:
        return None
    rank = int(given["SLURM_PROCID"])
    hosts = hosts_of(given["SLURM_STEP_NODELIST"])
    tasks = _tasks_per_node(given.get("SLURM_STEP_TASKS_PER_NODE", ""))
    if len(tasks) != len(hosts) or sum(tasks) != count or rank >= count:
        raise UserError(
            "Slurm's variables do not fit each other.",
            expected=f"{count} tasks on {len(hosts)} node(s), and this one's number below {count}",
            received=f"SLURM_STEP_TASKS_PER_NODE={given.get('SLURM_STEP_TASKS_PER_NODE')!r}, "
            f"SLURM_STEP_NODELIST={given['SLURM_STEP_NODELIST']!r}, SLURM_PROCID={rank}",
            fix="start each process by srun itself",
        )
    places = [(node, local) for node, here in enumerate(tasks) for local in range(here)]
    _check_blocks(given, places[rank], several=len(hosts) > 1 and max(tasks) > 1)
    base = _first_port(given)
    addresses = tuple(f"{hosts[node]}:{base + local}" for node, local in places)
    return ClusterPlace("worker", rank, {"worker": addresses}, "Slurm")


def _check_blocks(given: Mapping[str, str], place: tuple[int, int], several: bool) -> None:
    """Refuse tasks that are dealt out over the nodes otherwise than node by node."""
    numbers = (given.get("SLURM_NODEID", str(place[0])), given.get("SLURM_LOCALID", str(place[1])))
    # Task 0 is where it would be in any case, and must not wait for those that are not.
    order = given.get("SLURM_DISTRIBUTION", "block").partition(":")[0]
    if numbers != (str(place[0]), str(place[1])) or (several and order in _OTHER_ORDERS):
        raise UserError(
            "Slurm has not numbered the tasks node by node.",
            expected=f"task {given['SLURM_PROCID']} as number {place[1]} on node {place[0]}",
            received=f"number {numbers[1]} on node {numbers[0]}, in the order {order!r}",
            fix="srun --distribution=block",
        )


def _first_port(given: Mapping[str, str]) -> int:
    if "TFOPT_PORT" in given:
        port = _number(given["TFOPT_PORT"])
        if port is None or not 1024 <= port < 65000:
            raise UserError(
                "TFOPT_PORT is no port to count up from.",
                expected="a number from 1024 to 64999",
                received=repr(given["TFOPT_PORT"]),
            )
        return port
    # Two jobs on one node must not meet, and all tasks of a job must come to the same number;
    # above these Linux gives out ports to whoever connects.
    job, step = given.get("SLURM_JOB_ID", ""), given.get("SLURM_STEP_ID", "")
    return 12000 + 16 * (((_number(job) or 0) + 97 * (_number(step) or 0)) % 1250)


def hosts_of(hostlist: str) -> list[str]:
    """Return the names that Slurm's short form stands for: ``node[01-03,7],gpu2``."""
    # Split at those commas that are in no brackets.
    parts = re.findall(r"(?:\[[^\]]*\]|[^,\[])+", hostlist)
    return [name for part in parts for name in _expanded(part)]


def _expanded(part: str) -> list[str]:
    plain, bracket, rest = part.partition("[")
    if not bracket:
        return [part]
    inside, _, after = rest.partition("]")
    names = []
    for numbers in inside.split(","):
        first, _, last = numbers.partition("-")
        for number in range(int(first), int(last or first) + 1):
            # The first number's zeros say how wide all of them are.
            names += [f"{plain}{number:0{len(first)}}{end}" for end in _expanded(after)]
    return names


def _tasks_per_node(text: str) -> list[int]:
    """Read Slurm's ``2(x3),1``: two tasks on each of three nodes, then one; else nothing."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            return []
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def host_and_port(address: str) -> tuple[str, int]:
    """Return the two parts of ``host:port``, without the brackets of an IPv6 address."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
