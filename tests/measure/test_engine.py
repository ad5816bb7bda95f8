"""The engine: whose turn it is, what counts, who leaves and why, what fits; made up and real."""

import math
import os
import socket
import statistics
from pathlib import Path

import pytest
from made_machine import Machine
from processes import processes_in, wait_until

from tfopt import Execution, MixedPrecision, Pipeline, Place, chain
from tfopt.measure.engine import Candidate, Engine, compared, copies
from tfopt.measure.targets import Target
from tfopt.measure.turn_taking import Ready, Turn
from tfopt.report.display import Display

PLAIN = Target("baseline", "toy:job")


def variant(*parts):
    return Target(f"+ {type(parts[-1]).__name__}", "toy:job", chain(*parts), changed=parts[-1:])


FAST, HALF, BATCH = map(
    variant,
    (Execution(steps_per_execution=20), MixedPrecision("mixed_bfloat16"), Pipeline(batch_size=64)),
)


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch, policy=0.5)


PEAKS = {
    "host_peak_mib": 1.0,
    **dict.fromkeys(("gpu_peak_mib", "energy_per_example_j")),
    "gpus": (),
    "unavailable": dict.fromkeys(("gpu_peak_mib", "energy_per_example_j"), "no GPU"),
}


class Heard(Display):
    """A display that keeps what it is told."""

    def __init__(self):
        super().__init__(verbose=False)
        self.said = []

    def doing(self, what):
        pass

    def say(self, line):
        self.said.append(line)


def test_what_starts_is_said_before_its_process_is_there(machine):
    made = []

    class Counting(Heard):
        def doing(self, what):
            made.append((what, len(machine.children)))

    with Engine(Counting()) as engine:
        engine.admit([PLAIN, HALF])
    assert made[0] == ("starting baseline", 0)


def test_each_has_one_turn_a_round_in_random_order_and_the_first_is_not_kept(machine):
    turns = []
    machine.before = lambda child: turns.append(child.pid) if child.ready else None
    with Engine(seed=3) as engine:
        candidates = engine.admit([PLAIN, FAST, HALF])
        assert engine.take_rounds(candidates, 20) == 20
        rounds = [tuple(turns[n : n + 3]) for n in range(3, len(turns), 3)]
        assert turns[:3] == [0, 1, 2]
        assert {tuple(sorted(each)) for each in rounds} == {(0, 1, 2)}
        assert len(set(rounds)) > 3
        assert all(list(each.turns) == list(range(20)) for each in candidates)
        plain, _, half = candidates
        assert half.example_s() == pytest.approx(0.5 * plain.example_s(), rel=0.03)
        assert not any(each.ended for each in machine.children)
    assert not machine.alive


def test_who_dies_or_hangs_leaves_with_its_reason_and_its_turns_count_for_nothing(machine):
    display = Heard()
    machine.dying = lambda asked, turn: (
        "it gave no sign for 60 s\nmore" if turn > 4 and asked else None
    )
    with Engine(display) as engine:
        plain, half = engine.admit([PLAIN, HALF])
        engine.take_rounds([plain, half], 8)
        assert (len(plain.turns), half.turns, half.alive) == (8, {}, False)
        assert (half.status, half.out.splitlines()[0]) == ("failed", "it gave no sign for 60 s")
        assert machine.children[1].ended
        assert display.said == ["+ MixedPrecision: it gave no sign for 60 s"]
        assert plain.timed().rounds == tuple(range(8))
    # A step that takes a minute is waited for.
    longest = max(turn.lasted_s for turn in plain.turns.values())
    assert machine.children[0].patience >= 60 + 20 * longest


def test_no_round_begins_after_the_end_and_what_rounds_take_is_known(machine):
    with Engine() as engine:
        candidates = engine.admit([PLAIN, FAST])
        begun = machine.now
        done = engine.take_rounds(candidates, 100, until=begun + 5)
        assert 10 < done < 30
        each_s = sum(statistics.fmean(t.lasted_s for t in c.turns.values()) for c in candidates)
        assert engine.left_s(candidates, 10) == pytest.approx(10 * each_s)


def test_only_those_start_that_have_room_and_others_when_they_are_gone(machine):
    machine.free_mib = 500.0
    with Engine() as engine:
        first = engine.admit([PLAIN, FAST, HALF, BATCH, PLAIN])
        # Each holds 100 MiB and may grow by 30 %, and 80 % of what is free may be taken.
        assert len(first) == 4
        engine.take_rounds(first, 2)
        assert not engine.admit([BATCH])
        told = engine.no_room()
        assert "130 MiB" in told.expected
        assert "/made" in told.received
        engine.dismiss(first[1:])
        assert [each.variant for each in engine.admit([BATCH])] == [BATCH]


def test_no_more_start_at_once_than_there_are_cores_and_none_after_its_time(machine):
    starting = []
    machine.before = lambda child: starting.append(sum(not c.ready for c in machine.alive))
    with Engine() as engine:
        assert len(engine.admit(copies(PLAIN, 5))) == 5
        assert max(starting) == 2
        assert not engine.admit([FAST], until=machine.now)
        late = engine.admit(copies(FAST, 9), until=machine.now + 1.5)
        assert 0 < len(late) < 9
    with Engine() as engine:
        ready, late = engine.admit([FAST, BATCH], ready_by=machine.now + 1.5)
        assert (ready.alive, late.alive, late.out) == (True, False, "it was not ready in time")
        assert machine.alive == [ready.child]


def test_who_is_refused_fails_or_changes_nothing_is_not_among_those_that_take_turns(machine):
    machine.failing = lambda asked: {20: "refused: no", 64: "no disk"}.get(
        asked.get("steps_per_execution") or asked.get("batch_size")
    )
    with Engine() as engine:
        found = engine.admit([HALF, FAST, BATCH, variant(Place())], skip_if_idle=True)
        assert [each.status for each in found] == ["measured", "refused", "failed", "no_effect"]
        assert [each.out for each in found[1:]] == ["refused: no", "no disk", "Place is on"]
        engine.take_rounds(found, 3)
        assert [len(each.turns) for each in found] == [3, 0, 0, 0]
        engine.dismiss(found)
        assert not any(each.alive for each in found)


def test_as_many_start_and_train_as_the_memory_of_the_gpu_and_the_host_holds(machine):
    machine.gpu_mib = 500.0
    with Engine() as engine:
        assert engine.trainings_at_once == 3  # what they take is not known
        assert len(engine.admit(copies(PLAIN, 5))) == 4  # of 100 MiB each, a fifth might need 130
        assert (engine.trainings_at_once, engine.capacity) == (1, 4)
    machine.gpu_mib, machine.free_mib = 0.0, 600.0
    with Engine() as engine:
        engine.admit(copies(PLAIN, 2))
        # Of 130 MiB, in four fifths of 400 MiB.
        assert (engine.trainings_at_once, engine.capacity) == (2, 4)


def made(levels, rounds=range(8), batch=32):
    """Candidates that took so many seconds a step in the rounds in which they had turns."""
    ready = Ready(0.1, 0.5, 1, batch, 1, 100, 10, "toy", {}, frozenset())
    turns = [{n: Turn(10, 10 * level(n), 1.0, PEAKS) for n in rounds} for level in levels]
    return [Candidate(PLAIN, ready=ready, turns=each) for each in turns]


def test_only_rounds_that_all_were_in_are_compared():
    def slow_at_first(n):
        return 2.0 if n < 5 else 1.0

    reference = made([slow_at_first, lambda n: 1.01 * slow_at_first(n)])
    same = made([lambda n: 1.0, lambda n: 1.01], rounds=range(5, 9))
    found = compared(reference, same)
    assert (found.ratio, found.processes) == (pytest.approx(1.0), 2)
    half = made([lambda n: 1.0] * 3, rounds=range(5, 9), batch=64)
    assert compared(reference, half).ratio == pytest.approx(0.5, rel=0.01)
    assert compared(reference, made([lambda n: 1.0] * 2, rounds=range(8, 12))) is None
    assert compared(reference, same[:1]) is None
    # One that joined for a later variant takes nothing from those before.
    later = made([lambda n: 1.0], rounds=range(20, 25))
    assert compared([*reference, *later], same) == found
    same[1].turns.clear()  # it died
    assert compared(reference, same) is None


def candidate(**settings):
    """One that starts in 2.5 s, and takes a second for a step of 32 examples."""
    ready = Ready(0.5, 2.0, 1, 32, 1, 300, 100, "toy", {}, frozenset(), **settings)
    return Candidate(PLAIN, ready=ready, turns={0: Turn(4, 4.0, 4.5, PEAKS)})


def test_the_predicted_time_of_a_training():
    # The start, and all steps but those of the first execution.
    assert candidate().training_s(9600) == pytest.approx(2.5 + 299)
    alone = candidate()
    alone.alone_s = 1.0  # it started beside others
    assert alone.training_s(9600) == pytest.approx(1.0 + 299)
    # A last batch that is compiled anew takes a first step more.
    assert candidate(shapes=("a batch", "the rest")).start_s == candidate().start_s + 2.0
    # A hundred steps of a second: filling a cache for 250 s takes 150 s longer, for 50 s nothing.
    assert candidate(filled_s=250.0).training_s(9600, [0]) == pytest.approx(2.5 + 299 + 150)
    assert candidate(filled_s=50.0).training_s(9600) == pytest.approx(2.5 + 299)


# Real processes.


def toy(name, **arguments):
    return Target(name, f"toy_jobs:{'troubled' if arguments else 'job'}", arguments=arguments)


def test_real_processes_take_turns_and_those_in_trouble_leave(in_toy_folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        Path("port").write_text(str(free.getsockname()[1]))
    variants = [
        toy("plain"),
        toy("with workers", trouble="has workers"),
        toy("dying", trouble="dies in a step"),
        toy("killed", trouble="none"),
        toy("ends", trouble="ends"),
        toy("port", trouble="opens a port"),
        toy("port again", trouble="opens a port"),
    ]
    with Engine(turn_s=0.005) as engine:
        found = engine.admit(variants)
        by_name = {each.variant.name: each for each in found}
        # Two start at once: either may have the port.
        late, ends = sorted((name for name, each in by_name.items() if each.out), reverse=True)
        assert (late.removesuffix(" again"), ends) == ("port", "ends")
        assert "ddress already in use" in by_name[late].out
        assert "contained only 0 elements" in by_name["ends"].out
        assert "\n" not in by_name["ends"].out
        wait_until(lambda: set(processes_in(in_toy_folder).values()) == {"T"})
        engine.take_rounds(found, 2)
        Path("die").touch()
        os.kill(by_name["killed"].child.pid, 9)
        engine.take_rounds(found, 3)
        assert by_name["dying"].out.startswith("the process ended without a result: exit code 7")
        assert "SIGKILL" in by_name["killed"].out
        wait_until(lambda: set(processes_in(in_toy_folder).values()) == {"T"})
        measured = [each.timed() for each in found if each.turns]
        assert len(measured) == 3
        for process in measured:
            assert len(process.turns_ms) == 5
            assert (process.batch_size, process.replicas) == (32, 1)
            assert process.host_peak_mib > 10
            assert 0 < process.first_step_s < math.inf
            missing = {"gpu_peak_mib", "energy_per_example_j", "new_programs"}
            assert process.unavailable.keys() == missing
        assert engine.cost_s > 0
    wait_until(lambda: not processes_in(in_toy_folder))
