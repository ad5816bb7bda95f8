"""What lies in the folder of blocks: read back, or refused by the name of the file."""

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
from tfopt.measure.study import Studies, train_seeds
from tfopt.measure.variant import Variant

TOLD = {"seed": 0, "packages": {"keras": "3.15.1", "numpy": "2.2"}}
VARIANT = Variant("baseline", "nowhere:job")
KILLED = f"killed by {signal.Signals(9).name}"


@pytest.fixture
def store(tmp_path):
    made = BlockStore(tmp_path, TOLD)
    made.open(resume=False)
    return made


def rehearse(store):
    return Rehearsal(store, lambda variant: None).one(VARIANT)


def train(store):
    return train_seeds(VARIANT, [0], store, lambda variant, seed: None)


def study(store):
    return Studies(store, 1).of(VARIANT, lambda number: None)


READERS = {
    f"rehearsal-{VARIANT.digest}": rehearse,
    f"training-{VARIANT.digest}-0": train,
    f"study-{VARIANT.digest}-0": study,
    "000-00": lambda store: store.blocks(0, 0),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    "content", ["", "[{", "{}", "3", "null", '[{"round": 0}]', '{"seen": 3}', "\ud800", "[" * 9999]
)
def test_a_damaged_file_is_one_error_that_names_it_and_the_way_out(store, name, content):
    path = store.folder / f"{name}.json"
    path.write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(UserError, match="is damaged") as caught:
        READERS[name](store)
    assert caught.value.what == f"{path} is damaged."
    assert "delete that file" in caught.value.fix
    assert caught.value.received


def test_an_edited_block_tells_the_file_and_the_place(store):
    store.keep(3, 1, blocks(10, 2, round=3))
    path = store.folder / "003-01.json"
    content = json.loads(path.read_text())
    content[1]["windows_ms"][2] = -1
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="is damaged") as caught:
        store.blocks(3, 1)
    assert str(path) in caught.value.what
    assert caught.value.received == (
        "[1].windows_ms[2]: -1.0, where it should be a finite number above 0"
    )


def test_a_block_of_another_round_than_its_file_is_damage(store):
    store.keep(0, 0, blocks(10, 1, round=0))
    (store.folder / "000-00.json").rename(store.folder / "001-00.json")
    with pytest.raises(UserError, match=r"001-00.json is damaged") as caught:
        store.blocks(1, 0)
    assert "[0].round: 0, where it should be 1" in caught.value.received


@pytest.mark.parametrize("content", ["", '{"seed": 0', "[]", "null"])
def test_a_damaged_plan_is_no_traceback(tmp_path, monkeypatch, capsys, content):
    monkeypatch.chdir(tmp_path)
    Path("out/blocks").mkdir(parents=True)
    Path("out/blocks/plan.json").write_text(content)
    assert main(["bench", "nowhere:job", "--resume", "--output", "out"]) == 2
    told = capsys.readouterr().err
    assert "plan.json is damaged" in told
    assert "run it without --resume" in told


def test_another_plan_tells_what_differs(store):
    packages = {"keras": "3.15.2", "numpy": "2.2"}
    for told, words in (
        ({**TOLD, "packages": packages}, "other packages (keras)"),
        ({**TOLD, "seed": 1}, "other seed"),
        ({"seed": 0}, "other packages"),
        ({**TOLD, "code": "x"}, "other code"),
    ):
        with pytest.raises(UserError, match="was another one") as caught:
            BlockStore(store.folder, told).open(resume=True)
        assert caught.value.received == words
    BlockStore(store.folder, TOLD).open(resume=True)


@pytest.mark.parametrize("home", ["rehearsal", "seeds", "study"])
@pytest.mark.parametrize("status", ["failed", "refused"])
def test_a_failure_is_not_kept(store, monkeypatch, home, status):
    """Memory that ran out may be there next time; a refusal says so every time."""
    asked = []

    def ended(task, **given):
        asked.append(task)
        return WorkerResult(status, None, KILLED, {})

    file = {"rehearsal": "rehearsal", "seeds": "study", "study": "study"}[home]
    monkeypatch.setattr(f"tfopt.measure.{file}.run_worker", ended)
    look = {"rehearsal": rehearse, "seeds": train, "study": study}[home]
    again = [str(look(store)), str(look(store))]
    assert all(KILLED in each for each in again)
    assert len(asked) == (1 if (home, status) == ("rehearsal", "refused") else 2)


def test_rounds_with_another_variant_in_them_are_other_rounds(store, monkeypatch):
    """One that failed in the rehearsal may run when it is resumed: nobody gets its places."""
    measured = []

    def block(task, **given):
        measured.append(given["job"])
        (made,) = blocks(10 + len(measured), 1)
        return WorkerResult("measured", made, None, {})

    monkeypatch.setattr("tfopt.measure.rounds.run_worker", block)

    class Silent:
        def __getattr__(self, name):
            return lambda *_: None

    def measure(*names):
        variants = tuple(Variant(name, f"jobs:{name}") for name in names)
        plan = RoundsPlan(variants, budget=Budget(2, 2))
        *_, last = rounds(plan, store, Silent())
        return {name: [asdict(block) for block in last.blocks(name)] for name in names}

    two = measure("a", "c")
    assert len(measured) == 4
    three = measure("a", "b", "c")
    assert len(measured) == 10
    assert measured.count("jobs:b") == 2
    assert measure("a", "b", "c") == three
    assert measure("a", "c") == two
    assert len(measured) == 10
