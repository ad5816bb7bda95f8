"""Which chain a recipe's flags choose: found on this machine, from a file, or its own."""

import sys
from types import SimpleNamespace

import fake_workers
import pytest
from fake_workers import FAST

from tfopt import LearningRate, Pipeline, Place, Prune, Quantize, UserError, chain
from tfopt.job.recipe_file import RecipeFile, write_recipe
from tfopt.measure.tuned import INTERRUPTED
from tfopt.monitor.nvml import GpuMemory
from tfopt.recipes import recipe_main
from tfopt.recipes.recipe_main import Links, measure_and_show
from tfopt.report.bench_report import read_bench_report

OWN = chain(Place(), FAST, Prune(0.5), Quantize())
FOUND = (LearningRate("sqrt"), Pipeline(batch_size=128))


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Run a recipe with flags; return its exit code, the search's budget, and the links."""

    # Others' tests may have left a made-up GPU behind.
    monkeypatch.setattr(recipe_main, "gpu_memories", lambda: "no GPU")

    def run(*flags, found=FOUND, stopped="", slower=("jit_compile True 0.58x",)):
        heard = SimpleNamespace(budget_s=None, links=None, arguments=None)

        def search(target, output, *, budget_s, **_):
            heard.budget_s, heard.arguments = budget_s, target.arguments
            return SimpleNamespace(
                chain=chain(*found),
                slower=slower,
                notes=(f"not everything was tried: {stopped}",) if stopped else (),
                interrupted=stopped == INTERRUPTED,
            )

        def measure(*, links, arguments, **_):
            heard.links, heard.arguments = links, arguments
            return 0

        monkeypatch.setattr(recipe_main, "tune_and_show", search)
        monkeypatch.setattr(recipe_main, "measure_and_show", measure)
        monkeypatch.setattr(sys, "argv", ["recipe", f"--output={tmp_path / 'out'}", *flags])
        heard.code = recipe_main.recipe_main("nowhere:job", OWN, title="toy")
        return heard

    return run


def test_the_chain_is_found_and_what_makes_it_small_comes_behind(asked, monkeypatch):
    heard = asked("--set", "width=8")
    assert (heard.code, heard.budget_s) == (0, recipe_main._TUNE_S)
    assert heard.links.chain.parts == (*FOUND, Prune(0.5), Quantize())
    assert heard.links.tuned_parts == 2
    assert "jit_compile True 0.58x" in heard.links.remarks[-1]
    assert (heard.arguments["width"], heard.arguments["batch_size"]) == (8, 32)
    # A trial takes longer on a GPU; one that is hidden is none.
    for gpus, budget_s in (([GpuMemory("GPU-1", "H200", 143771, 143000)], 300), ([], 60)):
        monkeypatch.setattr(recipe_main, "gpu_memories", lambda gpus=gpus: gpus)
        assert asked().budget_s == budget_s
    heard = asked("--tune=30", found=(), stopped="the budget of 30 s was over", slower=())
    assert (heard.budget_s, heard.links.tuned_parts) == (30, 0)
    assert heard.links.chain.parts == (Prune(0.5), Quantize())
    assert "30 s was over" in heard.links.remarks[0]
    assert "Nothing that was tried" in heard.links.remarks[1]


def test_a_chain_that_is_given_needs_no_search(asked, tmp_path):
    write_recipe(RecipeFile(chain=chain(FAST)), tmp_path / "own.toml")
    for flags, parts in {
        ("--tune=0",): OWN.parts,
        ("--transforms=all",): OWN.parts,
        ("--transforms=prune,quantize",): (Prune(0.5), Quantize()),
        ("--skip=place,quantize",): (FAST, Prune(0.5)),
        (f"--chain={tmp_path / 'own.toml'}",): (FAST,),
    }.items():
        heard = asked(*flags)
        assert (heard.links, heard.budget_s) == (Links(chain(*parts)), None), flags


def test_flags_that_make_no_sense_are_one_message(asked, capsys):
    assert asked("--skip=prine").code == 2
    assert "no transform 'prine'" in capsys.readouterr().err
    for flags in (["--tune=30", "--skip=place"], ["--chain=a.toml", "--transforms=all"]):
        assert asked(*flags).code == 2
        assert "more than one chain" in capsys.readouterr().err
    for flags in (["--tune=5"], ["--data=cloud"]):
        with pytest.raises(SystemExit, match="2"):
            asked(*flags)


def test_resumed_it_takes_what_the_search_has_found(asked, tmp_path):
    assert asked("--resume").budget_s == recipe_main._TUNE_S  # interrupted before its end
    write_recipe(RecipeFile(chain=chain(*FOUND)), tmp_path / "out" / "tuned.toml")
    heard = asked("--resume")
    assert (heard.budget_s, heard.links.tuned_parts) == (None, 2)
    assert heard.links.chain.parts == (*FOUND, Prune(0.5), Quantize())


def test_interrupted_in_the_search_nothing_else_is_measured(asked, tmp_path, capsys):
    heard = asked(stopped=INTERRUPTED)
    assert (heard.code, heard.links) == (130, None)
    assert "Interrupted in the search" in capsys.readouterr().err
    assert not (tmp_path / "out" / "tuned.toml").exists()


def test_what_was_found_together_is_one_row(monkeypatch, tmp_path, capsys):
    workers = fake_workers.install(monkeypatch, fake_workers.Workers())
    # Alone, the rate brings no speed: as a link it would be dropped, and the batch left without it.
    workers.shares = {Pipeline: 0.5}
    code = measure_and_show(
        title="toy",
        command="the command",
        job="nowhere:job",
        links=Links(chain(*FOUND, Quantize()), 2, ("Tried and slower: XLA.",)),
        output=tmp_path,
        arguments={},
    )
    report = read_bench_report(tmp_path / "bench.json")
    assert code == 0
    assert [row.name for row in report.variants] == ["baseline", "+ tuned", "+ Quantize"]
    assert report.recommendation.keep == repr(chain(*FOUND, Quantize()))
    assert "LearningRate" in report.variants[1].transform
    assert "Tried and slower: XLA." in " ".join(capsys.readouterr().out.split())
    with pytest.raises(UserError, match="another one"):
        measure_and_show(
            title="toy",
            command="the command",
            job="nowhere:job",
            links=Links(chain(*FOUND, Quantize())),
            output=tmp_path,
            arguments={},
            resume=True,
        )
