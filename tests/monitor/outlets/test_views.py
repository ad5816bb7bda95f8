"""Views for people: the table, the findings, lines."""

from rich.console import Console
from traces import HEAT, marks, trace

from tfopt.monitor.findings import findings
from tfopt.monitor.outlets.terminal import findings_text, machine_table


def shown(what, width=80):
    console = Console(width=width, height=60, force_terminal=False)
    with console.capture() as capture:
        console.print(what)
    return capture.get()


BAD = {"clock_reasons": (HEAT,), "sm_clock_mhz": 900, "temperature_c": 89}


def test_the_table_fits_any_width_and_shortens_names_before_figures():
    recording = trace(90, gpu=[{}, BAD], names=["NVIDIA A100-SXM4-80GB"] * 2)
    view = machine_table(recording, "tfopt monitor " * 5, findings(recording))
    for width in (50, 80, 120, 250):
        lines = shown(view, width).splitlines()
        assert max(map(len, lines)) <= width
        text = " ".join(" ".join(lines).split())
        wanted = ("97 %", "19.5/39.1", "240/400", "900", "GPU 1", "throttled by heat", "serious")
        assert [each for each in wanted if each not in text] == []


def test_the_host_s_row_shows_a_container_s_limits_and_markup_in_names_is_text():
    host = {"memory_limit_mib": 8192, "memory_in_limit_mib": 4096, "cpu_limit_cores": 2}
    text = shown(machine_table(trace(host=host), "title"))
    assert "host, 2 cores" in text
    assert "4.0/8.0" in text
    recording = trace(gpu={}, names=["[red]GPU[/red] [/]"])
    assert "[red]GPU[/red] [/]" in shown(machine_table(recording, "[bold]"))


def test_findings_are_shown_with_their_evidence_and_what_to_do():
    found = findings(trace(gpu=[{}, {**BAD, "utilisation_percent": 88}], steps=marks(wait=0.3)))
    text = shown(findings_text(found), 200)
    assert "temperature 89 °C" in text
    assert "do: improve the cooling" in text
    assert "try: tfopt.Pipeline" in text
    assert "Nothing found" not in text
    assert "Nothing found" in shown(findings_text([]))
    assert "Nothing found" in shown(findings_text(findings(trace(gpu={}))))
    assert "too few to judge" in shown(findings_text(findings(trace(1))))
