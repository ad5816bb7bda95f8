"""Views for people: bars, lines, the live view at any width, the findings."""

import io
import json
import re
from datetime import UTC, datetime

import psutil
from rich.console import Console
from traces import HEALTHY, HEAT, HOST, POWER, GpuProcess, marks, trace

from tfopt.monitor.findings.findings import findings
from tfopt.monitor.outlets.live_view import (
    LiveView,
    Processes,
    ShownProcess,
    bar,
    findings_view,
    sparkline,
)
from tfopt.monitor.outlets.watching import json_line, plain_line
from tfopt.monitor.readings import Recording


def shown(what, width=80, **how):
    console = Console(width=width, height=60, force_terminal=False, **how)
    with console.capture() as capture:
        console.print(what)
    return capture.get()


def test_bars_are_full_at_1_empty_at_0_and_dotted_where_nothing_is_known():
    assert bar(1, 4) == "████"
    assert bar(0, 4) == "░░░░"
    assert bar(0.5, 4) == "██░░"
    assert bar(0.6, 4) == "██▍░"
    assert bar(None, 4) == "····"
    assert bar(7, 4) == bar(1, 4)
    assert bar(-1, 4) == bar(0, 4)
    assert [bar(x, 4, ascii_only=True) for x in (0.5, None)] == ["##--", "...."]
    assert all(len(bar(n / 97, 13)) == 13 for n in range(100))


def test_a_sparkline_has_the_newest_at_the_right_and_a_gap_for_none():
    assert sparkline([0, None, 1], 5) == "  ▁ █"
    assert sparkline([0.0, 0.5, 1, 2], 2) == "██"
    assert sparkline([0, 1], 2, ascii_only=True) == ".@"


BAD = {"clock_reasons": (HEAT,), "sm_clock_mhz": 900, "temperature_c": 89}


def test_the_live_view_fits_any_width():
    recording = trace(90, gpu=[{}, BAD], names=["NVIDIA A100-SXM4-80GB"] * 2)
    processes = [ShownProcess(77, "python" * 9, 101.0, 3000.0, ((0, 19000.0), (1, None)))]
    view = LiveView(recording, "tfopt monitor " * 5, processes, findings(recording))
    for width in (40, 60, 80, 120, 250):
        lines = shown(view, width).splitlines()
        assert max(map(len, lines)) <= width
        text = " ".join(" ".join(lines).split())
        assert all(each in text for each in ("97 %", "GPU 1", "serious"))


def test_eight_gpus_take_two_lines_each():
    recording = trace(gpu=[{}] * 7 + [BAD])
    lines = shown(LiveView(recording, "title")).splitlines()
    assert len(lines) <= 1 + 16 + 4
    assert max(map(len, lines)) <= 80
    assert sum("97 %" in line and "19.5/39.1 GiB" in line for line in lines) == 8
    assert "held down by heat" in shown(LiveView(recording, "title"), 140)


def test_what_is_not_known_is_a_dash_and_never_0():
    recording = trace(gpu=dict.fromkeys(HEALTHY), host=dict.fromkeys(HOST))
    text = shown(LiveView(recording, "title"))
    assert "- °C  -/- W  - MHz" in text
    assert "0 %" not in text
    assert "0.0" not in text
    assert "GPU 0 - % -/- MiB" in plain_line(recording.samples[0], datetime.now(UTC))


def test_the_live_view_of_nothing_and_of_no_gpu():
    assert "nothing was sampled yet" in shown(LiveView(Recording((), (), "x"), "title"))
    text = shown(LiveView(trace(), "title"))
    assert "No GPU to show: NVML: Driver Not Loaded." in text


def test_the_host_line_shows_a_container_s_limits_and_markup_in_names_is_text():
    host = {"memory_limit_mib": 8192, "memory_in_limit_mib": 4096, "cpu_limit_cores": 2}
    text = shown(LiveView(trace(host=host), "title"))
    assert "4.0/8.0 GiB" in text
    assert "4 cores, of which 2 may be used" in text
    recording = trace(gpu={}, names=["[red]GPU[/red] [/]"])
    assert "[red]GPU[/red] [/]" in shown(LiveView(recording, "[bold]"))


def test_the_view_in_ascii_has_no_other_characters():
    console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"), width=80)
    assert console.options.ascii_only
    lines = console.render_lines(LiveView(trace(gpu={}), "title"))
    drawn = "".join(segment.text for line in lines for segment in line)
    assert set(drawn.replace("°", "")) <= set(map(chr, range(128)))


def test_findings_with_evidence_and_short():
    found = findings(trace(gpu=[{}, {**BAD, "utilisation_percent": 88}], steps=marks(wait=0.3)))
    whole, short = shown(findings_view(found), 200), shown(findings_view(found, 1, short=True), 200)
    assert "temperature 89 °C" in whole
    assert "try: tfopt.Pipeline" in whole
    assert "temperature 89 °C" not in short
    assert f"and {len(found) - 1} more" in short
    lacking = findings(trace(gpu={**BAD, "clock_reasons": (HEAT, POWER)}))
    first = shown(findings_view(lacking, 1), 200)
    assert re.search(r"and \d+ more.*Not judged", first, re.DOTALL)
    assert "Nothing found" in shown(findings_view([]))
    few = findings(trace(1))
    assert "too few to judge" in shown(findings_view(few)) == shown(findings_view(few, short=True))


def test_json_lines_hold_every_metric_and_the_reasons():
    recording = trace(gpu={"power_w": None, "clock_reasons": (HEAT,)}, missing={"power_w": "why"})
    shown = json.loads(json_line(recording.samples[-1], recording, datetime.now(UTC)))
    assert shown["gpus"][0]["power_w"] is None
    assert shown["gpus"][0]["missing"] == {"power_w": "why"}
    assert shown["gpus"][0]["clock_reasons"] == [{"told": HEAT.description, "throttles": True}]
    assert set(HEALTHY) <= set(shown["gpus"][0])


def test_processes_on_gpus_come_first_and_then_the_busiest():
    me = psutil.Process()
    reading = trace(
        gpu={"processes": (GpuProcess(me.pid, None, 500), GpuProcess(4_190_001, "/a/b", None))}
    )
    processes = Processes()
    processes.top((), 3)
    sum(n * n for n in range(10**6))
    first, second, *rest = processes.top(reading.samples[0].gpus, 4)
    assert (first.pid, first.name, first.on_gpus) == (me.pid, me.name(), ((0, 500),))
    assert first.rss_mib > 20
    # One that is not to be seen from here, as in a container.
    assert (second.name, second.rss_mib, second.on_gpus) == ("b", None, ((0, None),))
    assert all(each.cpu_percent > 0 for each in rest)
