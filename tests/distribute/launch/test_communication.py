"""How the workers talk, chosen from made trees of /dev and /sys as machines have them."""

import pytest

from tfopt.distribute.launch.communication import choose

from .conftest import tfopt_launch


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

    def interface(self, name, *, hardware=False, state="up"):
        self.write(f"sys/class/net/{name}/operstate", f"{state}\n")
        if hardware:
            self.write(f"sys/class/net/{name}/device/vendor", "0x15b3\n")
        return self

    def port(self, name, *, state="4: ACTIVE", link="InfiniBand", rate="400 Gb/sec (4X NDR)"):
        adapter, port = name.split(":")
        folder = f"sys/class/infiniband/{adapter}/ports/{port}"
        for file, text in (("state", state), ("link_layer", link), ("rate", rate)):
            self.write(f"{folder}/{file}", f"{text}\n")
        return self

    def choose(self, environment=None, **how):
        return choose(environment or {}, root=self.root, **how)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def setting(communication, name):
    (found,) = [each for each in communication.settings if each.name == name]
    return found.value, found.reason


def test_without_a_gpu_the_processors_talk_by_ring(machine):
    chosen = machine.interface("eth0", hardware=True).choose()
    assert chosen.implementation == "RING"
    assert chosen.to_set == {}
    assert machine.choose(ps=True).to_set == {"GRPC_FAIL_FAST": "use_caller"}


def test_gpus_that_are_hidden_do_not_count(machine):
    machine.gpus(2)
    assert machine.choose().implementation == "NCCL"
    assert machine.choose({"CUDA_VISIBLE_DEVICES": "-1"}).implementation == "RING"
    assert machine.choose(gpus=0).implementation == "RING"


def test_a_machine_without_infiniband(machine):
    machine.gpus(1).interface("lo", state="unknown").interface("eth0", hardware=True)
    chosen = machine.interface("docker0").choose()
    assert chosen.to_set == {
        "NCCL_IB_DISABLE": "1",
        "NCCL_DEBUG": "WARN",
        "TF_GPU_THREAD_MODE": "gpu_private",
    }
    assert setting(chosen, "NCCL_SOCKET_IFNAME")[0] is None


def test_bridges_of_containers_are_not_talked_through(machine):
    machine.gpus(1).interface("lo", state="unknown").interface("virbr0").interface("cni0")
    machine.interface("ens1", hardware=True).interface("ens2", hardware=True, state="down")
    value, reason = setting(machine.choose(), "NCCL_SOCKET_IFNAME")
    assert (value, reason) == ("=ens1", "else NCCL might take cni0, virbr0")


def test_a_container_has_no_hardware_to_name(machine):
    machine.gpus(1).interface("lo", state="unknown").interface("eth0")
    value, reason = setting(machine.choose(), "NCCL_SOCKET_IFNAME")
    assert value is None
    assert "eth0" in reason


def test_equal_infiniband_ports_are_left_to_nccl(machine):
    machine.gpus(1).port("mlx5_0:1").port("mlx5_1:1").port("mlx5_2:1", state="1: DOWN")
    chosen = machine.choose()
    value, reason = setting(chosen, "NCCL_IB_HCA")
    assert (value, reason) == (None, "all 2 ports are alike (InfiniBand, 400 Gb/s)")
    assert "NCCL_IB_DISABLE" not in chosen.to_set


def test_the_slow_or_ethernet_port_of_a_mixed_machine_is_left_out(machine):
    machine.gpus(1).port("mlx5_0:1").port("mlx5_1:1")
    machine.port("mlx5_2:1", rate="100 Gb/sec (4X EDR)")
    machine.port("mlx5_bond_0:1", link="Ethernet", rate="25 Gb/sec (1X EDR)")
    value, reason = setting(machine.choose(), "NCCL_IB_HCA")
    assert value == "=mlx5_0:1,mlx5_1:1"
    assert "without mlx5_2:1 (InfiniBand, 100 Gb/s), mlx5_bond_0:1 (Ethernet, 25 Gb/s)" in reason


def test_ports_that_are_down_are_no_infiniband(machine):
    machine.gpus(1).port("mlx5_0:1", state="1: DOWN")
    assert machine.choose().to_set["NCCL_IB_DISABLE"] == "1"


def test_what_the_user_has_set_stays_and_the_table_says_so(machine):
    machine.gpus(1).interface("virbr0").interface("ens1", hardware=True)
    mine = {"NCCL_SOCKET_IFNAME": "ens9", "NCCL_DEBUG": "INFO"}
    chosen = machine.choose(mine)
    assert not set(chosen.to_set) & set(mine)
    lines = {line.split()[0]: line for line in chosen.table().splitlines()}
    assert lines["communication"].split()[1] == "NCCL"
    assert "1 GPU(s) a worker" in lines["communication"]
    for name, value in mine.items():
        assert value in lines[name]
        assert lines[name].endswith("set by you")
    assert "no InfiniBand port" in lines["NCCL_IB_DISABLE"]


def test_a_proxy_is_not_asked_for_the_other_tasks(machine):
    proxied = {"http_proxy": "http://proxy:3128", "no_proxy": "intranet"}
    chosen = machine.choose(proxied, hosts=["node1", "node2", "node1"])
    assert chosen.to_set == {"no_grpc_proxy": "intranet,node1,node2"}
    assert machine.choose(proxied).to_set == {}
    assert machine.choose({"no_proxy": "intranet"}, hosts=["node1"]).to_set == {}


def test_the_command_shows_it():
    shown = tfopt_launch("--show", env={"CUDA_VISIBLE_DEVICES": "0", "NCCL_DEBUG": "INFO"}).stdout
    assert shown.startswith("communication")
    assert "NCCL" in shown
    assert "set by you" in shown
