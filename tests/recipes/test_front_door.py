"""Which chain a recipe's flags choose: found on this machine, from a file, or its own."""

import sys
from types import SimpleNamespace

import pytest
from made_machine import Machine

from tfopt import Execution, LearningRate, Pipeline, Place, Prune, Quantize, chain
from tfopt.job.recipe_file import RecipeFile, read_recipe, write_recipe
from tfopt.recipes import recipe_main
from tfopt.report.bench_report import read_bench_report

FAST = Execution(steps_per_execution=20)
OWN = chain(Place(), FAST, Prune(0.5), Quantize())
FOUND = (LearningRate("sqrt"), Pipeline(batch_size=128))
LEFT = "Not everything was tried: the budget of 30 s was over."


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Run a recipe with flags; return its exit code, the search's settings, and the plan."""
    monkeypatch.setattr(recipe_main, "gpu_memories", list)

    def run(*flags, found=FOUND, interrupted=False):
        heard = SimpleNamespace(search=None, plan=None, arguments=None)

        def search(search, output, display, *, reports):
            heard.search, heard.arguments = search, search.target.arguments
            write_recipe(RecipeFile(chain=chain(*found)), output / "tuned.toml")
            return SimpleNamespace(chain=chain(*found), notes=(LEFT,), interrupted=interrupted)

        def measure(plan, output, display):
            heard.plan, heard.arguments = plan, plan.targets[0].arguments
            return None, 0

        monkeypatch.setattr(recipe_main, "tune_and_show", search)
        monkeypatch.setattr(recipe_main, "bench_and_show", measure)
        monkeypatch.setattr(sys, "argv", ["recipe", f"--output={tmp_path / 'out'}", *flags])
        heard.code = recipe_main.recipe_main("toy:job", OWN, title="toy")
        return heard

    return run


def test_the_chain_is_found_and_int8_comes_behind(asked, monkeypatch, tmp_path, capsys):
    heard = asked("--set", "width=8")
    assert (heard.code, heard.search.budget_s) == (0, 55)
    assert heard.plan.targets[0].chain.parts == (*FOUND, Quantize())
    assert (heard.plan.kind, heard.plan.tuned_parts, heard.plan.remarks) == ("prefixes", 2, (LEFT,))
    assert (heard.plan.whole, heard.plan.quick) == (True, True)
    assert heard.search.budget_s + heard.plan.budget_s <= 150
    assert not (tmp_path / "out" / "tuned.toml").exists()  # nothing was measured here
    assert "tuned.toml was removed: its chain was not shown" in capsys.readouterr().out
    assert (heard.arguments["width"], heard.arguments["batch_size"]) == (8, 32)
    heard = asked("--budget=30s", found=())
    assert (heard.search.budget_s, heard.plan.tuned_parts) == (30, 0)
    assert heard.plan.targets[0].chain.parts == (Quantize(),)
    assert "Nothing that was tried" in heard.plan.remarks[-1]
    # Each process takes longer to start on a GPU.
    monkeypatch.setattr(recipe_main, "gpu_memories", lambda: ["a GPU"])
    assert asked().search.budget_s == 90


def test_a_chain_that_is_given_needs_no_search(asked, tmp_path):
    write_recipe(RecipeFile(chain=chain(FAST)), tmp_path / "own.toml")
    for flags, parts in {
        ("--budget=0",): OWN.parts,
        ("--transforms=all",): OWN.parts,
        ("--transforms=prune,quantize",): (Prune(0.5), Quantize()),
        ("--skip=place,quantize",): (FAST, Prune(0.5)),
        (f"--chain={tmp_path / 'own.toml'}",): (FAST,),
    }.items():
        heard = asked(*flags)
        assert (heard.plan.targets[0].chain, heard.search) == (chain(*parts), None), flags
        assert (heard.plan.tuned_parts, heard.plan.remarks) == (0, ())
        assert heard.plan.budget_s == 135  # with the time of the search


def test_flags_that_make_no_sense_are_one_message(asked, capsys):
    for wrong in ("prine", "all"):
        assert asked(f"--skip={wrong}").code == 2
        assert f"received: {wrong}\n" in capsys.readouterr().err
    for flags in (["--budget=30", "--skip=place"], ["--chain=a.toml", "--transforms=all"]):
        assert asked(*flags).code == 2
        assert "more than one chain" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        asked("--budget=5")


def test_interrupted_in_the_search_nothing_else_is_measured(asked, capsys):
    heard = asked(interrupted=True)
    assert (heard.code, heard.plan) == (130, None)
    assert "Interrupted in the search" in capsys.readouterr().err


def test_what_was_found_together_is_one_row(monkeypatch, tmp_path, capsys):
    """From the search to the files, on a made-up machine."""
    machine = Machine(monkeypatch, jit_compile=0.7)
    monkeypatch.setattr(recipe_main, "gpu_memories", list)
    monkeypatch.setattr(sys, "argv", ["recipe", f"--output={tmp_path / 'out'}"])
    began = machine.now
    assert recipe_main.recipe_main("toy:job", chain(Quantize()), title="toy") == 0
    report = read_bench_report(tmp_path / "out" / "bench.json")
    assert [row.name for row in report.variants] == ["baseline", "+ tuned", "+ Quantize"]
    tuned = read_recipe(tmp_path / "out" / "tuned.toml").chain
    assert len(tuned.parts) > 1
    assert report.recommendation.keep == repr(chain(*tuned.parts, Quantize()))
    assert report.variants[1].whole.verdict == "faster"
    assert read_bench_report(tmp_path / "out" / "search" / "bench.json").asked.kind == "tune"
    assert machine.now - began < 150 + 15
    assert not machine.alive
    # A job that cannot be trained is one error.
    machine.failing = lambda asked: "the disk of the data is gone"
    assert recipe_main.recipe_main("toy:job", chain(Quantize()), title="toy") == 2
    assert "the disk of the data is gone" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--debug"])
    assert recipe_main.recipe_main("toy:job", chain(Quantize()), title="toy") == 2
    printed = capsys.readouterr().err
    assert "Traceback" in printed
    assert "The job as it is cannot be trained" in printed
