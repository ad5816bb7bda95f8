"""Find the place of this process in a cluster: by TF_CONFIG, else by Slurm, without TensorFlow.

TensorFlow's SlurmClusterResolver sorts the hosts by name, so that `node[9-10]` gives a task the
address of another node; it needs nvidia-smi, and it sets CUDA_VISIBLE_DEVICES. Slurm's
heterogeneous jobs have not been tried.
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
    """A task of a cluster, with the addresses of all tasks."""

    kind: str
    """"chief", "worker" or "ps"."""
    index: int
    """The number among the tasks of its kind, from 0."""
    cluster: Mapping[str, tuple[str, ...]]
    """The addresses (``host:port``) by kind, without empty kinds."""
    source: str
    """The source of this information: "TF_CONFIG" or "Slurm"."""

    @property
    def workers(self) -> int:
        """Return the number of tasks that train: the workers, and the chief if there is one."""
        return len(self.cluster.get("chief", ())) + len(self.cluster.get("worker", ()))

    @property
    def is_chief(self) -> bool:
        """Return whether this task writes files: the chief, or worker 0 without one."""
        return self.kind == "chief" or (
            self.kind == "worker" and self.index == 0 and "chief" not in self.cluster
        )

    @property
    def rank(self) -> int:
        """Return the number among all tasks, in the order chief, workers, ps."""
        before = KINDS[: KINDS.index(self.kind)]
        return sum(len(self.cluster.get(kind, ())) for kind in before) + self.index

    @property
    def address(self) -> str:
        """Return its ``host:port``."""
        return self.cluster[self.kind][self.index]

    @property
    def name(self) -> str:
        """Return the name in errors and logs: ``worker 0``."""
        return f"{self.kind} {self.index}"

    def tasks(self, *kinds: str) -> dict[str, str]:
        """Return the address of each task of these kinds by its name."""
        return {
            f"{kind} {index}": address
            for kind in kinds
            for index, address in enumerate(self.cluster.get(kind, ()))
        }

    @property
    def addresses(self) -> dict[str, str]:
        """Return the address of each worker by its name, the chief's first."""
        return self.tasks("chief", "worker")

    @property
    def others(self) -> dict[str, str]:
        """Return the address of each other worker by its name."""
        return {name: at for name, at in self.addresses.items() if name != self.name}

    @property
    def tf_config(self) -> str:
        """Return the value of the variable TF_CONFIG."""
        cluster = {kind: list(addresses) for kind, addresses in self.cluster.items()}
        return json.dumps({"cluster": cluster, "task": {"type": self.kind, "index": self.index}})


def place_in_cluster(environment: Mapping[str, str] | None = None) -> ClusterPlace | None:
    """Return the place of this process by its environment variables; None outside a cluster.

    TF_CONFIG has precedence. Without it the tasks of an ``srun`` of several tasks are the workers,
    with ports that depend on the job.
    """
    variables = os.environ if environment is None else environment
    if variables.get("TF_CONFIG", "").strip() not in ("", "{}"):
        return _from_tf_config(variables["TF_CONFIG"])
    return _from_slurm(variables)


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
            f"TF_CONFIG has the task {kind} {index}, but {count} {kind}(s) in its cluster.",
            expected=f"an index below {count}, counted from 0" if count else f'"{kind}" in cluster',
            received=f"index {index}",
            fix="give every task the same cluster and its own index",
        )
    return ClusterPlace(kind, index, cluster, "TF_CONFIG")


def _checked_addresses(listed: dict[str, Any], text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    if not any(listed.values()) or not listed.keys() <= {*KINDS}:
        raise _wrong(f"TF_CONFIG's cluster has no tasks, or others than {_KINDS}.", text)
    seen: list[str] = []
    for kind in KINDS:
        addresses = listed.get(kind, [])
        if not isinstance(addresses, list):
            raise _wrong(f'The "{kind}" of TF_CONFIG\'s cluster is not a list.', repr(addresses))
        for address in addresses:
            # An IPv6 address is in brackets.
            parts = re.fullmatch(r"([^\s:/]+|\[[0-9A-Fa-f:.]+\]):(\d{1,5})", str(address))
            if parts is None or not 0 < int(parts[2]) < 65536:
                raise _wrong(
                    f"A {kind}'s address is not host:port, without http://.", repr(address)
                )
            if address in seen:
                raise _wrong("TF_CONFIG gives two tasks the same address.", address)
            seen.append(address)
        if addresses:
            yield kind, tuple(addresses)


def _number(value: Any) -> int | None:
    """Return a whole number from 0, also from a text, as scripts often write it in TF_CONFIG."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _wrong(what: str, received: Any) -> UserError:
    return UserError(
        what,
        expected=_EXAMPLE,
        received=received,
        fix="correct TF_CONFIG, or unset it to train in one process",
    )


def _from_slurm(given: Mapping[str, str]) -> ClusterPlace | None:
    # A batch script has SLURM_PROCID too, but only srun starts a step.
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
            "Slurm's variables contradict each other.",
            expected=f"{count} tasks on {len(hosts)} node(s), and SLURM_PROCID below {count}",
            received=f"SLURM_STEP_TASKS_PER_NODE={given.get('SLURM_STEP_TASKS_PER_NODE')!r}, "
            f"SLURM_STEP_NODELIST={given['SLURM_STEP_NODELIST']!r}, SLURM_PROCID={rank}",
            fix="start each process by srun",
        )
    places = [(node, local) for node, here in enumerate(tasks) for local in range(here)]
    _check_blocks(given, places[rank], several=len(hosts) > 1 and max(tasks) > 1)
    base = _first_port(given)
    addresses = tuple(f"{hosts[node]}:{base + local}" for node, local in places)
    return ClusterPlace("worker", rank, {"worker": addresses}, "Slurm")


def _check_blocks(given: Mapping[str, str], place: tuple[int, int], several: bool) -> None:
    """Refuse tasks that are not numbered node by node."""
    numbers = (given.get("SLURM_NODEID", str(place[0])), given.get("SLURM_LOCALID", str(place[1])))
    # Task 0 has the same place in any order, and must not wait for the others.
    order = given.get("SLURM_DISTRIBUTION", "block").partition(":")[0]
    if numbers != (str(place[0]), str(place[1])) or (several and order in _OTHER_ORDERS):
        raise UserError(
            "Slurm has not numbered the tasks node by node.",
            expected=f"task {given['SLURM_PROCID']} as number {place[1]} on node {place[0]}",
            received=f"number {numbers[1]} on node {numbers[0]}, in the order {order!r}",
            fix="srun --distribution=block",
        )


def _first_port(given: Mapping[str, str]) -> int:
    # The same for all tasks of a job, different for two jobs on one node, and below the ports of
    # outgoing connections on Linux.
    job, step = given.get("SLURM_JOB_ID", ""), given.get("SLURM_STEP_ID", "")
    return 12000 + 16 * (((_number(job) or 0) + 97 * (_number(step) or 0)) % 1250)


def hosts_of(hostlist: str) -> list[str]:
    """Return the host names of Slurm's short form: ``node[01-03,7],gpu2``."""
    # Split at commas outside brackets.
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
            # The first number's zeros give the width of all.
            names += [f"{plain}{number:0{len(first)}}{end}" for end in _expanded(after)]
    return names


def _tasks_per_node(text: str) -> list[int]:
    """Parse Slurm's ``2(x3),1``: two tasks on each of three nodes, then one; [] if invalid."""
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
