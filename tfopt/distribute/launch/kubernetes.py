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
        quoted = {
            "name": self.name,
            "image": json.dumps(self.image),
            # Kubernetes replaces $(NAME) by a variable.
            "command": json.dumps([word.replace("$(", "$$(") for word in self.command]),
            "tf_config": json.dumps(self._tf_config()),
            "resources": json.dumps(self._resources()),
            "shared_memory": json.dumps(self.shared_memory),
        }
        mounts, volumes = self._mounted_claim()
        return _MANIFEST.format(
            **quoted,
            workers=self.workers,
            # All pods end when one does, and each counts.
            failures=self.restarts * self.workers,
            grace=self.grace,
            preempted=PREEMPTED,
            port=_PORT,
            gpu_variables=_GPU_VARIABLES if self.gpus_per_worker else "",
            mounts=mounts,
            volumes=volumes,
        )

    def _tf_config(self) -> str:
        # Kubernetes inserts the pod's index.
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

    def _mounted_claim(self) -> tuple[str, str]:
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
# Gives the workers host names, also before they are ready.
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
      # A pod that was evicted, or whose node is lost, restarts and does not count.
      - action: Ignore
        onPodConditions: [{{type: DisruptionTarget, status: "True"}}]
      # A pod that has saved and requests a restart.
      - action: Ignore
        onExitCodes: {{containerName: train, operator: In, values: [{preempted}]}}
  template:
    metadata:
      labels: {{tfopt-job: {name}}}
    spec:
      subdomain: {name}
      restartPolicy: Never
      terminationGracePeriodSeconds: {grace}
      # Otherwise the command is process 1, which ignores SIGTERM without a handler.
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
        # For NCCL and processes of a data loader; the default is 64 MiB.
        - {{name: shared-memory, emptyDir: {{medium: Memory, sizeLimit: {shared_memory}}}}}{volumes}
"""
