"""How the workers talk, chosen from made trees of /dev and /sys as machines have them."""

import pytest

from tfopt.distribute.launch.communication import choose


class Machine:
    """Files as the kernel shows them."""

    def __init__(self, root):
        self.root = root

    def write(self, path, text=""):
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    def gpus(self, count):
        for index in range(count):
            self.write(f"dev/nvidia{index}")
        return self

    def port(self, name, *, state="4: ACTIVE"):
        adapter, port = name.split(":")
        self.write(f"sys/class/infiniband/{adapter}/ports/{port}/state", f"{state}\n")
        return self

    def choose(self, environment=None, **how):
        return choose(environment or {}, root=self.root, **how)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_without_a_gpu_the_processors_talk_by_ring(machine):
    chosen = machine.choose()
    assert chosen.implementation == "RING"
    assert chosen.to_set == {}
    assert machine.choose(ps=True).to_set == {"GRPC_FAIL_FAST": "use_caller"}


def test_gpus_talk_by_nccl_and_hidden_ones_do_not_count(machine):
    machine.gpus(2)
    assert machine.choose().implementation == "NCCL"
    assert machine.choose({"CUDA_VISIBLE_DEVICES": "-1"}).implementation == "RING"
    assert machine.choose(gpus=0).implementation == "RING"


def test_infiniband_is_left_to_nccl_and_turned_off_where_no_port_is_up(machine):
    machine.gpus(1).port("mlx5_2:1", state="1: DOWN")
    assert machine.choose().to_set == {
        "NCCL_IB_DISABLE": "1",
        "NCCL_DEBUG": "WARN",
        "TF_GPU_THREAD_MODE": "gpu_private",
    }
    chosen = machine.port("mlx5_0:1").port("mlx5_1:1").choose()
    assert not [name for name in chosen.to_set if name.startswith("NCCL_IB")]


def test_what_the_user_has_set_stays(machine):
    machine.gpus(1)
    mine = {"NCCL_IB_DISABLE": "0", "NCCL_DEBUG": "INFO"}
    chosen = machine.choose(mine)
    assert not set(chosen.to_set) & set(mine)


def test_a_proxy_is_not_asked_for_the_other_tasks(machine):
    proxied = {"http_proxy": "http://proxy:3128", "no_proxy": "intranet"}
    chosen = machine.choose(proxied, hosts=["node1", "node2", "node1"])
    assert chosen.to_set == {"no_grpc_proxy": "intranet,node1,node2"}
    assert machine.choose(proxied).to_set == {}
    assert machine.choose({"no_proxy": "intranet"}, hosts=["node1"]).to_set == {}
