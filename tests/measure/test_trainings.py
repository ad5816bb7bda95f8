"""Whole trainings: what is read of one, that they run beside each other, and how they compare."""

from dataclasses import replace
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import toy_jobs
from bench_reports import half_width, processes, training
from made_machine import Machine

import tfopt
from tfopt import Data, Execution, Pipeline, Prune, Quantize, chain
from tfopt.measure import scores
from tfopt.measure.rows import Row, trained_by
from tfopt.measure.scores import TrainWhole, worst_accuracy
from tfopt.measure.targets import Target
from tfopt.measure.trainings import Order, Trainings, compare_trainings, quality, train
from tfopt.report.display import Display
from tfopt.report.training import Reading
from tfopt.run import Prepared, prepared

SAMPLES = 960


def trained(*transforms, **settings):
    job = toy_jobs.job(samples=SAMPLES)
    return TrainWhole(**settings)(job, chain(*transforms), None)


@pytest.mark.parametrize(
    ("transforms", "steps", "readings"),
    [
        ((), 60, 10),
        ((Pipeline(batch_size=64, cache="memory"), Execution(steps_per_execution=5)), 30, 6),
    ],
)
def test_the_score_is_read_ten_times_at_equal_examples(transforms, steps, readings):
    found = trained(*transforms).training
    assert (found.steps, found.epochs, len(found.readings)) == (steps, 2, readings)
    tenths = [round(10 * each.examples / (2 * SAMPLES)) for each in found.readings]
    assert tenths == sorted(set(tenths))
    assert found.readings[-1].examples == 2 * SAMPLES
    assert found.readings[-1].accuracy == found.test_accuracy


def test_without_an_accuracy_it_is_evaluated_no_more_often(monkeypatch):
    evaluate, calls = Prepared.evaluate, []
    monkeypatch.setattr(
        Prepared, "evaluate", lambda *own, **given: calls.append(given) or evaluate(*own, **given)
    )
    job = toy_jobs.job(samples=SAMPLES)
    settings = {key: value for key, value in job.compile().items() if key != "metrics"}
    bare = job.with_(compile=lambda: settings)
    assert TrainWhole()(bare, chain(), None).training.readings == ()
    assert len(calls) == 10  # nine times on some batches, and on all at the end


def test_reading_leaves_weights_and_metrics_as_they_are():
    def build():
        layers = [keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.5), keras.layers.Dense(2)]
        return keras.Sequential([keras.Input((6,)), *layers, keras.layers.Softmax()])

    job = toy_jobs.job(samples=SAMPLES, epochs=3).with_(build=build)
    with prepared(job) as ready:
        watching = scores._Scores(ready, 10)
        read = ready.fit(callbacks=[watching.callback()])
    assert len(watching.readings) == 9  # and the last one by the evaluation at the end
    plain = tfopt.run(job.with_(data=lambda: Data(train=job.data().train)))
    assert read.history == plain.history
    for own, other in zip(read.model.get_weights(), plain.model.get_weights(), strict=True):
        np.testing.assert_array_equal(own, other)


def test_ends_of_epochs_are_a_share_without_validation_and_reading(monkeypatch):
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    monkeypatch.setattr(scores, "time", clock)
    job = SimpleNamespace(epochs=3)
    ready = SimpleNamespace(facts=SimpleNamespace(steps_per_epoch=4), job=job)
    ready.data, ready.model = SimpleNamespace(test=None), SimpleNamespace(steps_per_execution=1)
    watching = scores._Scores(ready, 10)
    callback = watching.callback()
    clock.now = 50.0  # the first execution compiles
    for epoch in range(3):
        callback.on_epoch_begin(epoch, None)
        for batch in range(4):
            clock.now += 1.0
            callback.on_train_batch_end(batch, None)
        clock.now += 2.0
        callback.on_test_begin()
        clock.now += 30.0
        callback.on_test_end()
        callback.on_epoch_end(epoch, None)
    assert watching.steps == 12
    # Nine executions within an epoch; two after an end of two seconds.
    assert watching.epoch_end_share == pytest.approx(2 * 2 / (9 + 2 * 3), abs=1e-4)


def test_what_a_training_leaves(tmp_path):
    found = trained(output=str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {"model.keras"}
    one = found.training
    assert one.model_kib > one.model_gzip_kib > 0
    assert one.unavailable.keys() == {"artefact", "artefact_kib", "artefact_accuracy"}
    untested = toy_jobs.job().with_(data=lambda: Data(train=toy_jobs.data(64).train))
    heads = {"a_accuracy": 0.9, "b_acc": 0.8, "sparse_top_k": 0.1, "loss": 0.2, "c_accuracy_2": 7}
    assert worst_accuracy(heads) == 0.8
    none = TrainWhole()(untested, chain(), None).training
    assert (none.readings, none.test_accuracy) == ((), None)
    assert none.unavailable["test_accuracy"] == "the job has no test data"


# Several at a time.

VARIANTS = [Target("baseline", "toy:job"), Target("+ batch", "toy:job", chain(Pipeline(64)))]


def ordered():
    """Three trainings of each variant, the first of which leaves its files; and where they go."""
    found = {each.name: Trainings() for each in VARIANTS}
    first = [Order(v, 0, found[v.name], TrainWhole(output=v.name)) for v in VARIANTS]
    return [*first, *(Order(v, n, found[v.name]) for n in (1, 2) for v in VARIANTS)], found


def test_several_train_at_once_seed_by_seed_and_the_first_leaves_its_files(monkeypatch, tmp_path):
    machine, running, (orders, found) = Machine(monkeypatch), [], ordered()
    monkeypatch.chdir(tmp_path)
    machine.before = lambda child: running.append(len(machine.alive))
    train(orders, Display(verbose=False), at_once=2)
    assert running == [2, 2, 2, 2, 2, 1]
    assert not machine.alive
    assert [child.seed for child in machine.children] == [0, 0, 1, 1, 2, 2]
    assert {name: [t.seed for t in each.done] for name, each in found.items()} == {
        "baseline": [0, 1, 2],
        "+ batch": [0, 1, 2],
    }
    outputs = [child.task.output for child in machine.children[:4]]
    assert outputs == ["baseline", "+ batch", None, None]


def test_a_variant_that_fails_is_trained_no_further_and_none_begins_too_late(monkeypatch):
    machine, (orders, found) = Machine(monkeypatch), ordered()
    machine.lossy = lambda asked: "the disk is full" if asked else None
    orders = [replace(each, task=TrainWhole()) for each in orders]
    train(orders, Display(verbose=False), at_once=2)
    assert found["+ batch"] == Trainings(reason="with seed 0: the disk is full", status="failed")
    assert len(found["baseline"].done) == 3
    assert len(machine.did("TrainWhole")) == 4
    machine.children.clear()
    until = machine.now + 0.9 * machine.training_s
    train(orders[::2], Display(verbose=False), until=until)
    assert len(machine.children) == 1  # a second one, as long, would end too late

    def interrupt(child):
        raise KeyboardInterrupt

    machine.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        train(orders[::2], Display(verbose=False))
    assert not machine.alive


# How they compare. A process's first step takes 1.05 s, and a tenth of a training ends epochs.


def timed(step_ms, *, accuracies=(0.96, 0.961, 0.962), steps=500, spread=0.002, **changed):
    done = (training(a, steps, seed=seed, **changed) for seed, a in enumerate(accuracies))
    return Trainings(tuple(done)), processes(step_ms, spread=spread)


def compared(reference, variant, name):
    (trained, first), (own, second) = reference, variant
    return compare_trainings(trained, own, (first, second))[name]


CLEAR = timed(10.0)


def test_whole_trainings_are_first_step_steps_and_ends_of_epochs():
    def seconds(step_ms, steps):
        return 1.05 + (steps - 1) * step_ms / 1000 / 0.9

    found = compared(CLEAR, timed(5.0), "whole")
    assert found.ratio == pytest.approx(seconds(5, 500) / seconds(10, 500), rel=0.01)
    assert half_width(compared(CLEAR, timed(5.0, spread=0.05), "whole")) > 5 * half_width(found)
    trained, calm = timed(5.0)
    firsts = [replace(each, first_step_s=1.0 + n) for n, each in enumerate(calm)]
    assert half_width(compared(CLEAR, (trained, firsts), "whole")) > 10 * half_width(found)
    # Programs from the compile cache are no part of what a training that compiles takes.
    told = {k: v for k, v in calm[0].unavailable.items() if k != "new_programs"}
    from_cache = {"first_step_s": 0.1, "new_programs": 0, "unavailable": told}
    cached = [replace(each, **from_cache) for each in calm]
    mixed = compared(CLEAR, (trained, [calm[0], *cached[1:]]), "whole")
    assert (mixed.ratio, mixed.high) == pytest.approx((found.ratio, found.high))
    assert compared(CLEAR, (trained, cached), "whole").ratio < 0.9 * found.ratio
    # Twice the batch: as long a step, half the steps.
    half = compared(CLEAR, timed(10.0, steps=250), "whole")
    assert half.ratio == pytest.approx(seconds(10, 250) / seconds(10, 500), rel=0.01)
    once = compared(CLEAR, timed(5, accuracies=[0.9]), "whole")
    assert "trained whole with 1 seed beside" in once
    assert "fewer than two processes" in compared(CLEAR, (trained, calm[:1]), "whole")
    assert compared(CLEAR, (Trainings(reason="no disk"), calm), "whole") == "no disk"


def readings(*accuracies, steps=500):
    each = steps // len(accuracies)
    return tuple(Reading(each * n, 32.0 * each * n, a) for n, a in enumerate(accuracies, 1))


def test_steps_and_seconds_to_the_accuracy_that_every_training_of_the_reference_reaches():
    # The reference reaches 0.96, the least it ends with, at its end or between two readings.
    slow = timed(10.0, readings=readings(0.92, 0.94, 0.95, 0.95, 0.96), accuracies=[0.96] * 3)
    early = timed(10.0, readings=readings(0.95, 0.97, 0.97, 0.97, 0.97), accuracies=[0.97] * 3)
    found = compared(slow, early, "steps_to_accuracy")
    assert found.ratio == pytest.approx(150 / 500)  # half way from 100 to 200
    expected = (1.05 + 149 * 0.01 / 0.9) / (1.05 + 499 * 0.01 / 0.9)
    found = compared(slow, early, "to_accuracy")
    assert found.ratio == pytest.approx(expected, rel=0.01)
    never = timed(10.0, readings=readings(0.9, 0.95), accuracies=[0.95] * 3)
    untested = timed(10.0, accuracies=[None] * 3)
    for name in ("steps_to_accuracy", "to_accuracy"):
        assert compared(slow, never, name).startswith("with seed 0 it did not reach 96")
        assert "no test accuracy" in compared(untested, early, name)


def test_the_quality_is_of_pairs_of_seeds_and_of_the_file_that_is_served():
    reference = Trainings(tuple(training(0.90 + 0.02 * s, seed=s) for s in range(3)))
    file = {"artefact": "m.tflite", "artefact_kib": 60.0}
    served = (
        training(0.99, seed=s, **file, artefact_accuracy=round(0.89 + 0.02 * s, 5))
        for s in range(4)
    )
    found = quality(reference, Trainings(tuple(served)), 0.5)
    assert (found.metric, found.seeds) == ("test accuracy of m.tflite", (0, 1, 2))
    assert found.points == pytest.approx(-1.0)
    assert (found.lost, found.certain) == (True, True)
    alone = quality(reference, Trainings((training(0.90, seed=0),)), 0.5)
    assert (alone.points, alone.low, alone.high) == (0.0, -100.0, 100.0)
    assert "not trained with the same seed" in quality(reference, Trainings(), 0.5)
    assert "not asked for" in quality(reference, Trainings((training(None, seed=0),)), 0.5)
    assert quality(Trainings(reason="no disk"), reference, 0.5) == "no disk"


def test_a_reading_is_of_batches_spread_over_the_test_part():
    with prepared(toy_jobs.job(samples=2048)) as ready:  # eight batches to evaluate
        x, y = ready.data.test
        quarter = np.concatenate([np.arange(256), np.arange(1024, 1280)])
        right = ready.model.predict(x[quarter], verbose=0).argmax(axis=1) == y[quarter]
        assert ready.evaluate(batches=2)["accuracy"] == pytest.approx(right.mean(), abs=1e-6)


def test_a_variant_is_trained_by_one_that_makes_a_file_of_it():
    def variant(*parts, job="toy:job"):
        return Row(Target(repr(parts), job, chain(*parts)))

    plain, batch = variant(), variant(Pipeline(64))
    int8, both = (
        variant(Pipeline(64), Quantize(), *more) for more in ((), (Quantize(precision="dynamic"),))
    )
    every = [plain, batch, int8, both]
    # A file's accuracy is that of one that was made.
    assert [trained_by(each, every) for each in every] == [plain, int8, int8, both]
    pruned = variant(Pipeline(64), Prune(0.5))  # which trains other weights
    other = variant(Pipeline(64), Quantize(), job="other:job")
    assert trained_by(batch, [batch, pruned, other]) is batch
