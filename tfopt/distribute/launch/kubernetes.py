"""Write a manifest for Kubernetes: an Indexed Job of the workers, and the Service for their names.

It sets TF_CONFIG, so the image needs only what the script needs. The tests validate it by
Kubernetes's schemas from 1.29 on; it has not been run on a cluster.

A pod that is evicted, whose node is lost, or that ends with exit code 75 is restarted and does not
count as a failure. Kubernetes restarts single pods: with tfopt.distribute() the others end when a
worker is lost, and each of them counts; so ``restarts`` is multiplied by the workers.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from tfopt.distribute.launch.task import PREEMPTED, require_command
from tfopt.distribute.launch.templates import rendered
from tfopt.errors import UserError, require_count

_PORT = 2222
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


@dataclass(frozen=True)
class KubernetesJob:
    """The settings of the manifest; Kubernetes checks images and quantities when it is applied."""

    command: tuple[str, ...]
    name: str
    image: str
    workers: int
    gpus_per_worker: int = 0
    cpus_per_worker: str | None = None
    memory: str | None = None
    shared_memory: str = "8Gi"
    claim: str | None = None
    """A volume claim and its mount path, such as ``checkpoints:/checkpoints``."""
    restarts: int = 0
    grace: int = 120

    def __post_init__(self) -> None:
        require_count("--workers", self.workers)
        require_count("--gpus-per-worker", self.gpus_per_worker, 0)
        require_count("--restarts", self.restarts, 0)
        require_count("--grace", self.grace)
        before = "tfopt launch kubernetes --name train --image IMAGE --workers 2"
        require_command(self.command, before)
        # Pods are named train-0, train-1.
        longest = 63 - len(f"-{self.workers - 1}")
        if not _LABEL.fullmatch(self.name) or len(self.name) > longest:
            raise UserError(
                "--name is not a valid name of a Job and its Service.",
                expected="lower-case letters, digits and dashes, beginning with a letter, without "
                f"a dash at the end, of at most {longest} characters",
                received=repr(self.name),
            )
        if self.claim is not None and not re.fullmatch(r"[a-z0-9][-.a-z0-9]*:/[^:]+", self.claim):
            raise UserError(
                "--claim is not a volume claim with its mount path.",
                expected="NAME:/PATH, such as checkpoints:/checkpoints",
                received=repr(self.claim),
            )

    def manifest(self) -> str:
        """Return the text for ``kubectl apply -f``."""
        return rendered(
            "kubernetes.yaml.j2",
            job=self,
            # Kubernetes replaces $(NAME) by a variable.
            command=[word.replace("$(", "$$(") for word in self.command],
            tf_config=self._tf_config(),
            resources=self._resources(),
            preempted=PREEMPTED,
            port=_PORT,
        )

    def _tf_config(self) -> str:
        # Kubernetes inserts the pod's index.
        hosts = [f"{self.name}-{index}.{self.name}:{_PORT}" for index in range(self.workers)]
        text = json.dumps({"cluster": {"worker": hosts}, "task": {"type": "worker", "index": 0}})
        return text.replace('"index": 0', '"index": $(TFOPT_INDEX)')

    def _resources(self) -> dict[str, Any]:
        limits: dict[str, Any] = {"nvidia.com/gpu": self.gpus_per_worker, "memory": self.memory}
        wanted = {"limits": limits, "requests": {"cpu": self.cpus_per_worker}}
        return {
            kind: {name: value for name, value in values.items() if value}
            for kind, values in wanted.items()
        }
