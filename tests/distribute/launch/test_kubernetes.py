"""The manifest for Kubernetes, held against Kubernetes's own schemas, and the Dockerfile."""

import pytest
import yaml

from tfopt.distribute.launch.kubernetes import KubernetesJob
from tfopt.distribute.launch.place import place_in_cluster
from tfopt.errors import UserError

kubernetes_validate = pytest.importorskip("kubernetes_validate")
PLAIN = {"command": ("python", "train.py"), "name": "train", "image": "train:1", "workers": 2}
FULL = PLAIN | {
    "command": ("sh", "-c", 'echo "it\'s $(HOSTNAME)" {} # not a comment: no'),
    "image": "registry.example.com:5000/team/train@sha256:abc",
    "workers": 12,
    "gpus_per_worker": 8,
    "cpus_per_worker": "1500m",
    "memory": "64Gi",
    "shared_memory": "16Gi",
    "claim": "checkpoints:/checkpoints",
    "restarts": 2,
}


def parts(fields):
    service, job = yaml.safe_load_all(KubernetesJob(**fields).manifest())
    return service, job


@pytest.mark.parametrize("release", ["1.29", "1.37"])
def test_kubernetes_takes_it(release):
    for part in (*parts(PLAIN), *parts(FULL)):
        kubernetes_validate.validate(part, release, strict=True)


def test_each_pod_finds_its_place():
    service, job = parts(FULL)
    pod = job["spec"]["template"]["spec"]
    variables = {each["name"]: each for each in pod["containers"][0]["env"]}
    # Kubernetes replaces $(NAME) by a variable that stands before.
    assert list(variables).index("TFOPT_INDEX") < list(variables).index("TF_CONFIG")
    text = variables["TF_CONFIG"]["value"].replace("$(TFOPT_INDEX)", "11")
    place = place_in_cluster({"TF_CONFIG": text})
    assert place.workers == 12
    # NAME-INDEX is what an Indexed Job calls its pods, and the subdomain is the Service.
    assert place.address == "train-11.train:2222"
    assert pod["subdomain"] == service["metadata"]["name"] == "train"
    assert service["spec"]["selector"] == job["spec"]["template"]["metadata"]["labels"]
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (12, 12)
    assert job["spec"]["completionMode"] == "Indexed"


def test_what_was_asked_for_is_in_it():
    _, job = parts(FULL)
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    # "$$(" is how Kubernetes writes a "$(" that it shall leave alone.
    assert container["command"] == [*FULL["command"][:2], FULL["command"][2].replace("$(", "$$(")]
    assert container["resources"] == {
        "limits": {"nvidia.com/gpu": 8, "memory": "64Gi"},
        "requests": {"cpu": "1500m"},
    }
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert volumes["shared-memory"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}
    assert volumes["claim"]["persistentVolumeClaim"] == {"claimName": "checkpoints"}
    places = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert places == {"shared-memory": "/dev/shm", "claim": "/checkpoints"}
    assert job["spec"]["backoffLimit"] == 24
    assert pod["restartPolicy"] == "Never"


def test_preemption_is_no_failure():
    _, job = parts(PLAIN)
    disrupted, asked = job["spec"]["podFailurePolicy"]["rules"]
    assert disrupted["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert asked["onExitCodes"]["values"] == [75]
    names = {each["name"] for each in job["spec"]["template"]["spec"]["containers"]}
    assert asked["onExitCodes"]["containerName"] in names
    assert {disrupted["action"], asked["action"]} == {"Ignore"}
    assert job["spec"]["backoffLimit"] == 0


def test_what_kubernetes_would_not_take_is_refused():
    for fields, words in (
        *(
            ({"name": name}, "--name is not a valid name")
            for name in ("Train", "t" * 62, "t\nkind: Secret")
        ),
        ({"claim": "checkpoints"}, "--claim is not"),
        ({"command": ()}, "no command"),
    ):
        with pytest.raises(UserError, match=words):
            KubernetesJob(**PLAIN | fields)
