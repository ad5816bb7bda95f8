"""Reading the GPUs: the only room that talks to NVIDIA's management library (NVML)."""
