"""The variables by which workers talk, chosen from made trees of /dev and /sys as machines have."""

from tfopt.distribute.launch.communication import communication_variables

NCCL = {"NCCL_DEBUG": "WARN", "TF_GPU_THREAD_MODE": "gpu_private"}


def test_gpus_talk_by_nccl(tmp_path):
    def chosen(environment=None, **how):
        return communication_variables(environment or {}, root=tmp_path, **how)

    assert chosen() == {}
    assert chosen(ps=True) == {"GRPC_FAIL_FAST": "use_caller"}
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    assert chosen() == NCCL
    assert chosen({"CUDA_VISIBLE_DEVICES": "-1"}) == chosen(gpus=0) == {}
    # What the user has set stays.
    assert chosen({"NCCL_DEBUG": "INFO"}).keys() == {"TF_GPU_THREAD_MODE"}


def test_a_proxy_is_not_asked_for_the_other_tasks():
    proxied = {"http_proxy": "http://proxy:3128", "no_proxy": "intranet"}
    chosen = communication_variables(proxied, gpus=0, hosts=["node1", "node2", "node1"])
    assert chosen == {"no_grpc_proxy": "intranet,node1,node2"}
    assert communication_variables(proxied, gpus=0) == {}
    assert communication_variables({"no_proxy": "intranet"}, gpus=0, hosts=["node1"]) == {}
