"""What the monitor says where there is no driver."""

from tfopt.monitor import nvml


def test_without_a_driver_nothing_raises(fresh_python):
    code = """
        from tfopt.monitor import nvml
        print(nvml.gpu_memories(), nvml.driver_version(), nvml.newest_cuda())
    """
    # An empty library path hides a driver, where the test machine has one.
    printed = fresh_python(code, env={"LD_LIBRARY_PATH": "", "CUDA_VISIBLE_DEVICES": "0"})
    if "GpuMemory" not in printed:
        assert printed.startswith("NVML: ")
        assert printed.endswith("None None\n")


def test_why_no_gpu_names_the_cause(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert "CUDA_VISIBLE_DEVICES hides" in nvml.why_no_gpu()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(nvml, "gpu_memories", lambda: "NVML: Driver Not Loaded")
    assert "Driver Not Loaded" in nvml.why_no_gpu()
    monkeypatch.setattr(nvml, "gpu_memories", lambda: [nvml.GpuMemory("u", "H100", 1, 1)])
    assert "tfopt[gpu]" in nvml.why_no_gpu()
