"""Write a manifest for Kubernetes: an Indexed Job of the workers, and the Service that names them.

TF_CONFIG stands in it, so the image needs no more than the script does. The tests hold it against
Kubernetes's own schemas from 1.29 on; no cluster has run it.

A pod that its node has lost or evicted, or that ends with exit code 75, is started again and does
not count as a failure. Kubernetes starts a single pod again: the others must end by themselves when
a peer is gone, as tfopt.distribute() sees to, and each ending counts; ``restarts`` allows as many
as there are workers, each time.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from tfopt.distribute.launch.task import PREEMPTED, require_command
from tfopt.errors import UserError, require_count

_PORT = 2222
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


@dataclass(frozen=True)
class KubernetesJob:
    """What the manifest asks for; ``manifest()`` is its text.

    Kubernetes itself refuses wrong images and quantities when it is applied.
    """

    command: tuple[str, ...]
    name: str
    image: str
    workers: int
    gpus_per_worker: int = 0
    cpus_per_worker: str | None = None
    memory: str | None = None
    shared_memory: str = "8Gi"
    claim: str | None = None
    """A volume claim and where it appears, such as ``checkpoints:/checkpoints``."""
    restarts: int = 0
    grace: int = 120

    def __post_init__(self) -> None:
        require_count("--workers", self.workers)
        require_count("--gpus-per-worker", self.gpus_per_worker, 0)
        require_count("--restarts", self.restarts, 0)
        require_count("--grace", self.grace)
        before = "tfopt launch kubernetes --name train --image IMAGE --workers 2"
        require_command(self.command, before)
        # The pods are called after it: train-0, train-1.
        longest = 63 - len(f"-{self.workers - 1}")
        if not _LABEL.fullmatch(self.name) or len(self.name) > longest:
            raise UserError(
                "--name is no name for a Job and its Service.",
                expected="small letters, digits and dashes, a letter first, no dash last, at most "
                f"{longest} in all",
                received=repr(self.name),
            )
        if self.claim is not None and not re.fullmatch(r"[a-z0-9][-.a-z0-9]*:/[^:]+", self.claim):
            raise UserError(
                "--claim is not a volume claim and its place.",
                expected="NAME:/PATH, such as checkpoints:/checkpoints",
                received=repr(self.claim),
            )

    def manifest(self) -> str:
        """Return the text for ``kubectl apply -f``."""
        quoted = {
            "name": self.name,
            "image": json.dumps(self.image),
            # Kubernetes would replace $(NAME) by a variable.
            "command": json.dumps([word.replace("$(", "$$(") for word in self.command]),
            "tf_config": json.dumps(self._tf_config()),
            "resources": json.dumps(self._resources()),
            "shared_memory": json.dumps(self.shared_memory),
        }
        mounts, volumes = self._claimed()
        return _MANIFEST.format(
            **quoted,
            workers=self.workers,
            # Every pod of the job ends when one does, and each ending counts.
            failures=self.restarts * self.workers,
            grace=self.grace,
            preempted=PREEMPTED,
            port=_PORT,
            gpu_variables=_GPU_VARIABLES if self.gpus_per_worker else "",
            mounts=mounts,
            volumes=volumes,
        )

    def _tf_config(self) -> str:
        # Kubernetes puts the pod's number in.
        hosts = [f"{self.name}-{index}.{self.name}:{_PORT}" for index in range(self.workers)]
        text = json.dumps({"cluster": {"worker": hosts}, "task": {"type": "worker", "index": 0}})
        return text.replace('"index": 0', '"index": $(TFOPT_INDEX)')

    def _resources(self) -> dict[str, Any]:
        limits: dict[str, Any] = {}
        if self.gpus_per_worker:
            limits["nvidia.com/gpu"] = self.gpus_per_worker
        if self.memory:
            limits["memory"] = self.memory
        requests = {"cpu": self.cpus_per_worker} if self.cpus_per_worker else {}
        return {key: value for key, value in (("limits", limits), ("requests", requests)) if value}

    def _claimed(self) -> tuple[str, str]:
        if self.claim is None:
            return "", ""
        name, _, path = self.claim.partition(":")
        return (
            f"\n            - {{name: claim, mountPath: {json.dumps(path)}}}",
            f"\n        - {{name: claim, persistentVolumeClaim: {{claimName: {name}}}}}",
        )


_GPU_VARIABLES = """
            - {name: NCCL_DEBUG, value: WARN}
            - {name: TF_GPU_THREAD_MODE, value: gpu_private}"""
_MANIFEST = """\
# The workers find each other by the names that this gives them, also before they are ready.
apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {{tfopt-job: {name}}}
  ports:
    - {{name: tensorflow, port: {port}}}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {name}
spec:
  completionMode: Indexed
  completions: {workers}
  parallelism: {workers}
  backoffLimit: {failures}
  podFailurePolicy:
    rules:
      # A pod that was evicted, or whose node has gone, starts again and does not count.
      - action: Ignore
        onPodConditions: [{{type: DisruptionTarget, status: "True"}}]
      # One that has saved and asks to be started again.
      - action: Ignore
        onExitCodes: {{containerName: train, operator: In, values: [{preempted}]}}
  template:
    metadata:
      labels: {{tfopt-job: {name}}}
    spec:
      subdomain: {name}
      restartPolicy: Never
      terminationGracePeriodSeconds: {grace}
      # Else the command is process 1, which SIGTERM does not end unless it listens.
      shareProcessNamespace: true
      containers:
        - name: train
          image: {image}
          command: {command}
          env:
            - name: TFOPT_INDEX
              valueFrom:
                fieldRef:
                  fieldPath: metadata.annotations['batch.kubernetes.io/job-completion-index']
            - name: TF_CONFIG
              value: {tf_config}
            - {{name: PYTHONUNBUFFERED, value: "1"}}{gpu_variables}
          ports:
            - {{containerPort: {port}}}
          resources: {resources}
          volumeMounts:
            - {{name: shared-memory, mountPath: /dev/shm}}{mounts}
      volumes:
        # NCCL and the processes of a data loader talk through it; 64 MiB is what there is else.
        - {{name: shared-memory, emptyDir: {{medium: Memory, sizeLimit: {shared_memory}}}}}{volumes}
"""
