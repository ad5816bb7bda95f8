"""The folder of blocks: what is in it is read back, or refused by the name of the file."""

import json
import signal
from dataclasses import asdict
from pathlib import Path

import pytest
from bench_reports import blocks

from tfopt import UserError
from tfopt.commands.cli import main
from tfopt.measure.blocks import BlockStore
from tfopt.measure.process import WorkerResult
from tfopt.measure.rehearsal import Rehearsal
from tfopt.measure.rounds import Budget, RoundsPlan, rounds
from tfopt.measure.study import Studies
from tfopt.measure.trainings import TrainingRounds, train_seeds
from tfopt.measure.variant import Variant
from tfopt.measure.watcher import Watcher

PLAN = {"seed": 0, "packages": {"keras": "3.15.1", "numpy": "2.2"}}
VARIANT = Variant("baseline", "nowhere:job")
KILLED = f"killed by {signal.Signals(9).name}"


@pytest.fixture
def store(tmp_path):
    made = BlockStore(tmp_path, PLAN)
    made.open(resume=False)
    return made


def rehearse(store):
    return Rehearsal(store, lambda variant: None).one(VARIANT)


def train(store):
    found = {}
    for _ in train_seeds(TrainingRounds((VARIANT,), (0,), {}), store, Watcher(), found):
        pass
    return found


def study(store):
    return Studies(store, 1).of(VARIANT, lambda number: None)


READERS = {
    f"rehearsal-{VARIANT.digest}": rehearse,
    f"training-{VARIANT.digest}-0": train,
    f"study-{VARIANT.digest}-0": study,
    "000-00": lambda store: store.blocks(0, 0),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("content", ["", "{}", "3", '[{"round": 0}]', "\ud800", "[" * 9999])
def test_a_damaged_file_is_one_error_that_names_it_and_the_way_out(store, name, content):
    path = store.folder / f"{name}.json"
    path.write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(UserError, match="is damaged") as caught:
        READERS[name](store)
    assert caught.value.what == f"{path} is damaged."
    assert "delete that file" in caught.value.fix
    assert caught.value.received


def test_an_edited_block_is_named_with_its_file_and_place(store):
    store.keep(3, 1, blocks(10, 2, round=3))
    path = store.folder / "003-01.json"
    content = json.loads(path.read_text())
    content[1]["windows_ms"][2] = -1
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="is damaged") as caught:
        store.blocks(3, 1)
    assert str(path) in caught.value.what
    assert caught.value.received == ("[1].windows_ms[2]: -1, where it should be greater than 0")


@pytest.mark.parametrize("content", ["", "[]"])
def test_a_damaged_plan_is_no_traceback(tmp_path, monkeypatch, capsys, content):
    monkeypatch.chdir(tmp_path)
    Path("out/blocks").mkdir(parents=True)
    Path("out/blocks/plan.json").write_text(content)
    assert main(["bench", "nowhere:job", "--resume", "--output", "out"]) == 2
    printed = capsys.readouterr().err
    assert "plan.json is damaged" in printed
    assert "run it without --resume" in printed


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({**PLAN, "packages": {"keras": "3.15.2", "numpy": "2.2"}}, "other packages (keras)"),
        ({**PLAN, "seed": 1}, "other seed"),
        ({"seed": 0}, "other packages"),
        ({**PLAN, "code": "x"}, "other code"),
    ],
)
def test_what_differs_from_the_plan_is_named(store, plan, words):
    with pytest.raises(UserError, match="was another one") as caught:
        BlockStore(store.folder, plan).open(resume=True)
    assert caught.value.received == words
    BlockStore(store.folder, PLAN).open(resume=True)


@pytest.mark.parametrize("look", [rehearse, train, study])
@pytest.mark.parametrize("status", ["failed", "refused"])
def test_a_failure_is_not_kept(store, workers, look, status):
    """Memory that ran out may be there next time; a refusal says so every time."""
    workers.answer = lambda asked: WorkerResult(status, None, KILLED, {})
    again = [str(look(store)), str(look(store))]
    assert all(KILLED in each for each in again)
    assert len(workers.asked) == (1 if (look, status) == (rehearse, "refused") else 2)


def test_rounds_with_another_variant_in_them_are_other_rounds(store, workers):
    """One that failed in the rehearsal may run when it is resumed: nobody gets its places."""

    def measure(*names):
        variants = tuple(Variant(name, f"jobs:{name}") for name in names)
        *_, last = rounds(RoundsPlan(variants, budget=Budget(2, 2)), store, Watcher())
        return {name: [asdict(block) for block in last.blocks(name)] for name in names}

    two = measure("a", "c")
    assert len(workers.asked) == 4
    three = measure("a", "b", "c")
    assert len(workers.asked) == 10
    assert [asked.job for asked in workers.asked].count("jobs:b") == 2
    assert measure("a", "b", "c") == three
    assert measure("a", "c") == two
    assert len(workers.asked) == 10
