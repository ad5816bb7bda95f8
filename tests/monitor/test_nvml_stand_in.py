"""The GPUs as the real nvidia-ml-py tells them from a library in C that plays a trace.

Each test is a process of its own, in which the loader finds that library. It has not run on GPUs.
"""

import json
import subprocess
import sys
import textwrap
import time

import pytest
from nvml_stand_in.library import MIB, gpu, part

OPENING = """
    import ctypes, json, os, threading, warnings
    from dataclasses import asdict
    from tfopt.monitor import gpus as gpu_watch, nvml, sampler as samplers
    from tfopt.monitor.gpus import GpuWatch
    from tfopt.monitor.sampler import Sampler, sampling

    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        os.environ.pop(name, None)
    library = ctypes.CDLL("libnvidia-ml.so.1")
    library.nvml_stand_in_at.argtypes = [ctypes.c_double]
    library.nvml_stand_in_calls.restype = ctypes.c_ulong
    now = [0.0]

    def at(moment):
        now[0] = moment
        library.nvml_stand_in_at(moment)

    def calls(name):
        return library.nvml_stand_in_calls(name.encode())

    def sampler(wanted="visible"):
        watch = GpuWatch(os.getpid(), wanted, lambda: now[0])
        return Sampler(os.getpid(), lambda: now[0], watch)

    def show(value):
        print(json.dumps(value))

    at(0.0)
"""


@pytest.fixture
def played(nvml_stand_in, fresh_python):
    """Runs code on the GPUs of a trace, under CUDA's variables, and returns what it showed."""

    def run(trace, code, **variables):
        opening = textwrap.dedent(OPENING) + f"os.environ.update({variables!r})\n"
        told = fresh_python(opening + textwrap.dedent(code), env=nvml_stand_in(trace))
        return json.loads(told)

    return run


def test_every_metric_of_the_table_comes_in_its_unit(played):
    shown = played(
        gpu(0) + "1 0 field.138 1126400\n1 0 field.139 2560000\n1 0 energy_mj 10300000\n",
        """
        taking = sampler()
        first = taking.take()
        for moment in (1.0, 1.5):
            taking._gpus.ask_slow()
            at(moment)
        second = taking.take()
        recording = taking.recording()
        show({"first": asdict(first.gpus[0]), "second": asdict(second.gpus[0]),
              "missing": recording.gpus[0].missing, "me": os.getpid()})
        """,
    )
    first, second = shown["first"], shown["second"]
    assert {name: value for name, value in second.items() if value is None} == {}
    assert (second["device_mib"], second["total_mib"], second["process_mib"]) == (
        30000,
        40960,
        2000,
    )
    assert (second["utilisation_percent"], second["memory_utilisation_percent"]) == (97, 41)
    assert (second["sm_clock_mhz"], second["max_sm_clock_mhz"]) == (1380, 1410)
    assert second["memory_clock_mhz"] == 1215
    assert (second["temperature_c"], second["memory_temperature_c"]) == (61, 74)
    assert second["slowdown_temperature_c"] == 92
    assert (second["power_w"], second["power_limit_w"]) == (312.45, 400)
    assert second["energy_j"] - first["energy_j"] == 300
    assert (second["pcie_generation"], second["pcie_max_generation"]) == (4, 4)
    assert (second["pcie_width"], second["pcie_max_width"]) == (16, 16)
    assert (second["pcie_sent_mib_per_s"], second["pcie_received_mib_per_s"]) == (50, 100)
    # Of three links two are active; 100 and 500 MiB in one and a half seconds.
    assert second["nvlinks"] == 2
    assert second["nvlink_sent_mib_per_s"] == pytest.approx(100 / 1.5)
    assert second["nvlink_received_mib_per_s"] == pytest.approx(500 / 1.5)
    assert (second["ecc_corrected"], second["ecc_uncorrected"]) == (3, 0)
    assert (second["fan_percent"], second["clock_reasons"]) == (30, [])
    assert second["processes"] == [
        {"pid": shown["me"], "name": "python3.11", "mib": 2000},
        {"pid": 99, "name": "train", "mib": 500},
    ]
    # What came later only says why it was not there at first.
    assert {name for name in first if first[name] is None} >= set(shown["missing"])
    assert set(shown["missing"].values()) == {
        "a rate needs two readings of its counter",
        "not asked at once: the answer takes long",
    }


def test_what_is_not_there_or_not_allowed_is_none_with_the_reason_and_asked_once(played):
    nothing = {
        "fan": None,
        "field.82": None,
        "link.0": None,
        "field.138": None,
        "field.139": None,
        # As newer GPUs: a distance in place of the temperature, which it must not be taken for.
        "threshold.1": None,
        "field.194": 2,
    }
    shown = played(
        gpu(0, nothing) + "0 0 nvmlDeviceGetTotalEccErrors !4\n0 0 nvmlDeviceGetPowerUsage !10\n",
        """
        taking = sampler()
        for moment in range(100):
            at(float(moment))
            sample = taking.take()
        show({"reading": asdict(sample.gpus[0]), "missing": taking.recording().gpus[0].missing,
              "fan": calls("nvmlDeviceGetFanSpeed"), "ecc": calls("nvmlDeviceGetTotalEccErrors"),
              "power": calls("nvmlDeviceGetPowerUsage")})
        """,
    )
    reading, missing = shown["reading"], shown["missing"]
    for name in (
        "fan_percent",
        "memory_temperature_c",
        "slowdown_temperature_c",
        "nvlinks",
        "nvlink_sent_mib_per_s",
    ):
        assert (reading[name], missing[name]) == (None, "NVML: Not Supported")
    assert (reading["ecc_corrected"], reading["ecc_uncorrected"]) == (None, None)
    assert missing["ecc_corrected"] == "NVML: Insufficient Permissions"
    assert (reading["utilisation_percent"], reading["device_mib"]) == (97, 30000)
    # Both counts of errors were refused for good; a driver that is late is asked on.
    assert (shown["fan"], shown["ecc"]) == (1, 2)
    assert (missing["power_w"], shown["power"]) == ("NVML: Timeout", 100)


def test_a_gpu_that_falls_off_the_bus_is_empty_while_the_others_go_on_and_may_come_back(played):
    shown = played(
        gpu(0) + gpu(1, {"uuid": "GPU-bbbb"}) + "10 1 * !15\n60 1 * ok\n",
        """
        taking = sampler()
        told = []
        for moment in (0.0, 10.0, 11.0, 59.0, 61.0, 67.0, 68.0):
            at(moment)
            told.append([gpu.power_w for gpu in taking.take().gpus])
            if moment == 11.0:
                lost = asdict(taking.newest().gpus[1])
                asked = calls("nvmlDeviceGetPowerUsage")
        gpus = taking.recording().gpus
        show({"told": told, "lost": lost, "missing": [gpu.missing for gpu in gpus]})
        """,
    )
    there, lost = [312.45, 312.45], [312.45, None]
    assert shown["told"] == [there, lost, lost, lost, lost, lost, there]
    assert set(shown["lost"].values()) == {None}
    assert {shown["missing"][1][name] for name in ("power_w", "fan_percent")} == {
        "NVML: GPU is lost"
    }
    assert "power_w" not in shown["missing"][0]


def test_a_gpu_that_is_lost_before_the_beginning_keeps_its_place(played):
    shown = played(
        gpu(0, {"uuid": "GPU-aaaa"}) + gpu(1, {"uuid": "GPU-bbbb"}) + "0 0 * !15\n",
        """
        taking = sampler("all")
        taking.take()
        recording = taking.recording()
        show({"uuids": [gpu.uuid for gpu in recording.gpus],
              "power": [gpu.power_w for gpu in recording.samples[0].gpus],
              "why": recording.gpus[0].missing["power_w"],
              "second": [gpu.uuid for gpu in sampler("visible").recording().gpus]})
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
        assert nvml.gpu_memories() == "NVML: GPU is lost"
        """,
        CUDA_VISIBLE_DEVICES="1",
    )
    assert shown["uuids"] == ["GPU number 0", "GPU-bbbb"]
    assert (shown["power"], shown["why"]) == ([None, 312.45], "NVML: GPU is lost")
    assert shown["second"] == ["GPU-bbbb"]


def test_a_gpu_that_is_lost_at_the_beginning_may_come_back_at_its_place(played):
    shown = played(
        gpu(0, {"uuid": "GPU-aaaa"})
        + gpu(1, {"uuid": "GPU-bbbb"})
        + "0 0 * !15\n10 0 * ok\n20 0 * !15\n30 0 * ok\n",
        """
        taking = sampler("all")
        told = []
        for moment in (0.0, 9.0, 15.0, 16.0, 20.0, 31.0, 32.0):
            at(moment)
            told.append(taking.take().gpus[0].power_w)
        gpus = taking.recording().gpus
        show({"told": told, "gpus": [[gpu.uuid, gpu.name] for gpu in gpus]})
        """,
    )
    # It comes back twice, and keeps the name that its first samples were told under.
    assert shown["told"] == [None, None, None, 312.45, None, None, 312.45]
    assert shown["gpus"] == [["GPU number 0", "NVIDIA Stand-In"], ["GPU-bbbb", "NVIDIA Stand-In"]]


@pytest.mark.parametrize(("code", "told"), [(4, "Insufficient Permissions"), (999, "Unknown")])
def test_a_gpu_that_refuses_its_handle_hides_no_other(played, code, told):
    shown = played(
        gpu(0, {"uuid": "GPU-aaaa"})
        + gpu(1, {"uuid": "GPU-bbbb"})
        + f"0 1 nvmlDeviceGetHandleByIndex_v2 !{code}\n"
        + gpu(2, {"uuid": "GPU-cccc"}),
        """
        from tfopt.monitor.nvml import device_facts
        taking = sampler("all")
        taking.take()
        recording = taking.recording()
        shown = {
            "power": [gpu.power_w for gpu in recording.samples[0].gpus],
            "why": recording.gpus[1].missing["power_w"],
            "memories": [gpu.uuid for gpu in nvml.gpu_memories()],
            "facts": [gpu.uuid for gpu in device_facts()],
        }
        os.environ["CUDA_VISIBLE_DEVICES"] = "1"
        told = sampler("visible").recording()
        show(shown | {"second": [gpu.uuid for gpu in told.gpus]})
        """,
    )
    assert shown["power"] == [312.45, None, 312.45]
    assert told in shown["why"]
    assert shown["memories"] == ["GPU-aaaa", "GPU-cccc"]
    # CUDA does not count what this process may not open.
    forbidden = code == 4
    assert shown["second"] == ["GPU-cccc" if forbidden else "GPU number 1"]
    assert ("GPU number 1" in shown["facts"]) != forbidden


def test_gpus_that_are_all_forbidden_are_no_gpu_with_the_reason(played):
    shown = played(
        gpu(0) + "0 0 nvmlDeviceGetHandleByIndex_v2 !4\n",
        "show([sampler().recording().no_gpu_reason, nvml.gpu_memories()])",
    )
    assert shown == ["NVML: Insufficient Permissions"] * 2


def test_a_driver_that_goes_and_comes_back_is_found_again_in_a_new_session(played):
    shown = played(
        gpu(0) + "10 - * !9\n30 - * ok\n",
        """
        taking = sampler()
        told, host = [], []
        for moment in (0.0, 10.0, 16.0, 22.0, 31.0, 32.0):
            at(moment)
            sample = taking.take()
            told.append(sample.gpus[0].device_mib)
            host.append(sample.host.rss_mib)
        opened = calls("nvmlInitWithFlags")
        missing = dict(taking.recording().gpus[0].missing)
        taking._gpus.close()
        show({"told": told, "host": host, "missing": missing, "opened": opened,
              "sessions": library.nvml_stand_in_sessions()})
        """,
    )
    assert shown["told"] == [30000, None, None, None, None, 30000]
    assert min(shown["host"]) > 0
    assert shown["missing"]["device_mib"] == "NVML: Driver Not Loaded"
    # At 10, 16 and 22 in vain, at 31 with success: its GPUs are told from the next sample on.
    assert (shown["opened"], shown["sessions"]) == (5, 0)


def test_no_driver_at_all_is_a_reason_and_the_host_is_told(played):
    shown = played(
        "0 - nvmlInitWithFlags !9\n",
        """
        taking = sampler()
        sample = taking.take()
        show([taking.recording().no_gpu_reason, len(sample.gpus), sample.host.rss_mib > 0])
        """,
    )
    assert shown == ["NVML: Driver Not Loaded", 0, True]


CHOOSE = """
    chosen = {}
    for visible, order in json.loads(os.environ["CHOICES"]):
        os.environ["CUDA_VISIBLE_DEVICES"], os.environ["CUDA_DEVICE_ORDER"] = visible, order
        taken = sampler().recording()
        chosen[f"{visible} {order}".strip()] = taken.no_gpu_reason or [gpu.uuid for gpu in taken.gpus]
    show(chosen)
"""


def test_cuda_s_variables_choose_the_gpus_that_cuda_would(played):
    names = ["GPU-a1", "GPU-a2", "GPU-b1"]
    choices = {
        "": "NVML lists no visible GPU",
        "-1": "NVML lists no visible GPU",
        "2,0": ["GPU-b1", "GPU-a1"],
        "1,-1,0": ["GPU-a2"],
        "1,7,0": ["GPU-a2"],
        "0,0": "NVML lists no visible GPU",
        "0,7,0": ["GPU-a1"],
        "GPU-b": ["GPU-b1"],
        "GPU-b1, GPU-a2": ["GPU-b1", "GPU-a2"],
        "GPU-a": "NVML lists no visible GPU",  # there are two of them
        "GPU-a2,GPU-zz,0": ["GPU-a2"],
    }
    trace = "".join(gpu(n, {"uuid": uuid}) for n, uuid in enumerate(names))
    asked = json.dumps([[choice, ""] for choice in choices])
    shown = played(trace, CHOOSE, CHOICES=asked)
    assert shown == {choice.strip(): told for choice, told in choices.items()}


def test_places_among_boards_of_several_kinds_are_certain_in_the_bus_s_order_only(played):
    trace = gpu(0, {"uuid": "GPU-s", "name": "Slow"}) + gpu(1, {"uuid": "GPU-f", "name": "Fast"})
    asked = json.dumps([["1", ""], ["1", "PCI_BUS_ID"], ["1", "FASTEST_FIRST"], ["GPU-f", ""]])
    shown = played(trace, CHOOSE, CHOICES=asked)
    assert (shown["1 PCI_BUS_ID"], shown["GPU-f"]) == (["GPU-f"], ["GPU-f"])
    for unsure in (shown["1"], shown["1 FASTEST_FIRST"]):
        assert "set CUDA_DEVICE_ORDER=PCI_BUS_ID" in unsure


DIVIDED = (
    gpu(0, {"uuid": "GPU-whole"})
    + gpu(1, {"uuid": "GPU-apart", "mig": 1, "utilisation": None})
    + part(
        5, 1, uuid="MIG-1111", name="Stand-In MIG 1g.5gb", instance=7, compute=0, processes="none"
    )
    + part(
        6, 1, uuid="MIG-2222", name="Stand-In MIG 1g.5gb", instance=8, compute=0, processes="none"
    )
)


def test_a_part_of_a_gpu_is_found_by_both_spellings_and_is_the_only_one(played):
    choices = {
        "MIG-2222": ["MIG-2222"],
        "MIG-2": ["MIG-2222"],
        "MIG-GPU-apart/7/0": ["MIG-1111"],
        "MIG-GPU-apart/9/0": "NVML lists no visible GPU",
        # CUDA takes one part, and no other GPU beside it.
        "MIG-1111,MIG-2222": ["MIG-1111"],
        "GPU-apart": ["MIG-1111"],
        "0,1": ["MIG-1111"],
        "0": ["GPU-whole"],
    }
    asked = json.dumps([[choice, "PCI_BUS_ID"] for choice in choices])
    shown = played(DIVIDED, CHOOSE, CHOICES=asked)
    assert shown == {f"{choice} PCI_BUS_ID": told for choice, told in choices.items()}


def test_of_a_part_memory_is_its_own_and_power_the_whole_gpu_s(played):
    shown = played(
        DIVIDED,
        """
        taking = sampler()
        reading = asdict(taking.take().gpus[0])
        recording = taking.recording()
        show({"reading": reading, "gpu": asdict(recording.gpus[0]),
              "all": [gpu.uuid for gpu in sampler("all").recording().gpus],
              "memories": [asdict(each) for each in nvml.gpu_memories()]})
        """,
        CUDA_VISIBLE_DEVICES="MIG-2222",
    )
    reading, told = shown["reading"], shown["gpu"]
    assert (reading["device_mib"], reading["total_mib"], reading["processes"]) == (1000, 4864, [])
    assert (reading["power_w"], reading["temperature_c"]) == (312.45, 61)
    assert (reading["utilisation_percent"], told["part_of"]) == (None, "GPU-apart")
    assert told["missing"]["utilisation_percent"] == "NVML: Not Supported"
    assert shown["all"] == ["GPU-whole", "GPU-apart", "MIG-1111", "MIG-2222"]
    assert [each["total_mib"] for each in shown["memories"]] == [4864]


def test_tensorflow_s_names_find_boards_that_nvml_counts_otherwise(played):
    shown = played(
        gpu(0, {"uuid": "GPU-s", "name": "Slow"})
        + gpu(1, {"uuid": "GPU-f", "name": "Fast"})
        + gpu(2, {"uuid": "GPU-t", "name": "Slow"}),
        """
        def uuids(wanted):
            told = sampler(wanted).recording()
            return told.no_gpu_reason or [gpu.uuid for gpu in told.gpus]
        show([uuids({0: "Fast"}), uuids({1: "Slow"}), uuids({0: "Slow"}), uuids({0: "Slow GPU"})])
        """,
    )
    assert shown[0] == ["GPU-f"]
    assert "set CUDA_DEVICE_ORDER=PCI_BUS_ID" in shown[1]
    assert shown[2:] == [["GPU-s"], ["GPU-s"]]


def test_the_thread_samples_and_asks_slow_questions_seldom(played):
    shown = played(
        gpu(0) + gpu(1, {"uuid": "GPU-bbbb"}),
        """
        import time
        with sampling(os.getpid(), clock=time.perf_counter, period_s=0.1) as taking:
            begun = time.perf_counter()
            while len(taking.recording().samples) < 12 and time.perf_counter() - begun < 60:
                time.sleep(0.05)
        last = taking.newest()
        show({"sent": [gpu.pcie_sent_mib_per_s for gpu in last.gpus],
              "asked": calls("nvmlDeviceGetPcieThroughput"),
              "limits": calls("nvmlDeviceGetEnforcedPowerLimit"),
              "power": calls("nvmlDeviceGetPowerUsage"),
              "spent_s": time.perf_counter() - begun,
              "threads": [thread.name for thread in threading.enumerate()],
              "sessions": library.nvml_stand_in_sessions()})
        """,
    )
    rounds = 1 + shown["spent_s"] // 5
    assert shown["sent"] == [50, 50]
    assert shown["asked"] <= 4 * rounds
    assert shown["limits"] <= 2 * rounds
    assert shown["power"] >= 24
    assert (shown["threads"], shown["sessions"]) == (["MainThread"], 0)


def test_a_driver_that_does_not_answer_is_left_behind_with_a_warning(played):
    shown = played(
        gpu(0) + "1 0 nvmlDeviceGetPowerUsage ~8\n",
        """
        import time
        samplers._LAST_ANSWER_S = 0.3
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            with sampling(os.getpid(), clock=time.perf_counter, period_s=0.01) as taking:
                at(2.0)
                asked = calls("nvmlDeviceGetPowerUsage")
                while calls("nvmlDeviceGetPowerUsage") == asked:
                    time.sleep(0.01)  # the thread is not there yet, where the driver hangs
                begun = time.perf_counter()
                empty = taking.take()
                recorded = len(taking.recording().samples)
        spent = time.perf_counter() - begun
        show({"spent": spent, "heard": [str(each.message) for each in heard],
              "empty": len(empty.gpus), "recorded": recorded})
        """,
    )
    assert shown["spent"] < 6
    assert ["has not answered" in told for told in shown["heard"]] == [True]
    assert (shown["empty"], shown["recorded"] >= 1) == (0, True)


def test_a_forked_process_samples_nothing_and_ends_like_any_other(played):
    shown = played(
        gpu(0),
        """
        import time
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads, on purpose
        children = []
        with sampling(os.getpid(), clock=time.perf_counter, period_s=0.005) as taking:
            for _ in range(20):
                child = os.fork()
                if child == 0:
                    break
                children.append(os.waitpid(child, 0)[1])
            if child == 0:
                kept = len(taking.recording().samples)
                told = taking.take()
                fine = told.gpus == () and len(taking.recording().samples) == kept
        if child == 0:
            os._exit(0 if fine and threading.active_count() == 1 else 3)
        taken = len(taking.recording().samples)
        show({"children": children, "taken": taken, "told": taking.newest().gpus[0].device_mib,
              "sessions": library.nvml_stand_in_sessions()})
        """,
    )
    assert shown["children"] == [0] * 20
    assert (shown["told"], shown["sessions"]) == (30000, 0)


def test_the_command_line_s_processes_find_the_library_too(nvml_stand_in):
    """Nothing of the test's own process is used: a shell would find these GPUs."""
    env = {"PATH": "/usr/bin:/bin", **nvml_stand_in(gpu(0, {"memory.used": 1024 * MIB}))}
    code = "from tfopt.monitor import nvml; print(nvml.gpu_memories()); print(nvml.newest_cuda())"
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**env, "PYTHONPATH": ":".join(path for path in sys.path if path)},
        timeout=120,
    )
    assert "free_mib=39936.0" in done.stdout
    assert done.stdout.endswith("12.8\n"), time.monotonic() - begun
