"""What the monitor says where there is no driver."""

from tfopt.monitor import nvml


def test_why_no_gpu_names_the_cause(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert "CUDA_VISIBLE_DEVICES hides" in nvml.why_no_gpu()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(nvml, "gpu_memories", lambda: "NVML: Driver Not Loaded")
    assert "Driver Not Loaded" in nvml.why_no_gpu()
    monkeypatch.setattr(nvml, "gpu_memories", lambda: [nvml.GpuMemory("u", "H100", 1, 1)])
    assert "tfopt[gpu]" in nvml.why_no_gpu()
