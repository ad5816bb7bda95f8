"""A model on several devices: what lies and runs where, the weights of one device, refusals."""

import itertools
import json

import keras
import numpy as np
import pytest

from tfopt import Data, Job, Split, UserError, run
from tfopt.train import split as module

L = keras.layers
SETUP = """
    import json, keras, sys, warnings, tensorflow as tf
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * {})
    from split_nets import *
    from tfopt.train.split import device_parts
"""


@pytest.fixture
def on_devices(fresh_python):
    """Run code on so many logical CPU devices and return what it has put into ``found``."""
    return lambda count, code: json.loads(
        fresh_python(SETUP.format(count) + code + "\n    print(json.dumps(found))")
    )


@pytest.mark.parametrize("count", [2, 4])
def test_weights_slots_and_backward_operations_are_on_the_device_of_their_layer(on_devices, count):
    found = on_devices(
        count,
        """
    model, _ = trained(dense, on_devices=True, optimizer=lambda: keras.optimizers.AdamW(0.01))
    found = {
        "parts": {part.device: [each.name for each in part.layers] for part in device_parts(model)},
        "weights": {v.path: device(v) for v in model.weights},
        "slots": {v.path.split("/")[-1]: device(v) for v in model.optimizer.variables[2:]},
        "ran": ran(model),
    }""",
    )
    parts = found["parts"]
    assert [*parts] == [f"CPU:{number}" for number in range(count)]
    names = [*itertools.chain(*parts.values())]
    assert names == ["dense", *(f"dense_{number}" for number in range(1, 8))]
    where = {name: device for device, layers in parts.items() for name in layers}
    assert max(map(len, parts.values())) - min(map(len, parts.values())) <= 1
    assert {path: where[path.split("/")[-2]] for path in found["weights"]} == found["weights"]
    assert len(found["slots"]) == 2 * len(found["weights"])
    for path, device in found["weights"].items():
        own = path.replace("/", "_")
        assert {found["slots"][f"{own}_momentum"], found["slots"][f"{own}_velocity"]} == {device}
    for device, layers in parts.items():
        kinds = found["ran"][device]
        last = "dense_7" in layers
        # Forward, and backward for the kernel and for what came in, but for the first layer.
        products = sum(times for kind, times in kinds.items() if kind.endswith("MatMul"))
        assert products == 3 * len(layers) - ("dense" in layers)
        assert kinds["ReluGrad"] == len(layers) - last
        assert kinds["Sqrt"] >= 2 * len(layers)  # Adam's, of kernels and biases
        assert ("SparseSoftmaxCrossEntropyWithLogits" in kinds) == last


def test_trained_weights_are_those_of_one_device(on_devices):
    """Dropout's seeds, moving statistics, masks and added losses included."""
    found = on_devices(
        2,
        """
    adamw = lambda: keras.optimizers.AdamW(0.01, clipnorm=1.0)
    found = [difference(residual, optimizer=adamw), difference(attentive)]""",
    )
    assert max(found) < 2e-6, found


@pytest.mark.slow
def test_so_they_are_however_the_step_runs(on_devices):
    found = on_devices(
        2,
        """
    clipped = lambda: keras.optimizers.SGD(0.05, global_clipnorm=1.0)
    several = lambda: keras.optimizers.SGD(0.05, gradient_accumulation_steps=2)
    found = {
        "nested": difference(lambda: keras.Sequential([keras.Input((16,)), residual()])),
        "several steps": difference(residual, steps_per_execution=2),
        "eagerly": difference(attentive, run_eagerly=True),
        "all clipped": difference(residual, optimizer=clipped),
        "accumulated": difference(residual, optimizer=several),
        "mixed": difference(attentive, policy="mixed_float16"),
    }""",
    )
    assert found.pop("mixed") < 1e-3  # sums of float16 in another order
    assert len(found) == 5
    assert max(found.values()) < 2e-6, found


def test_what_is_taken_off_and_what_is_loaded_run_as_before(on_devices):
    found = on_devices(
        2,
        """
    model, _ = trained(residual, on_devices=True)
    path = sys.argv[0] + ".keras"
    model.save(path)
    plain = keras.saving.load_model(path)
    def differs():
        return float(np.abs(plain.predict(X, verbose=0) - model.predict(X, verbose=0)).max())
    def hooks():
        layers = [model, *model.layers]
        return sum(name in vars(x) for x in layers for name in ("compile", "_run_through_graph"))
    found = {"split": [differs(), hooks(), model.supports_jit, {*map(device, plain.weights)}]}
    found["split"][-1] = sorted(found["split"][-1])
    object.__setattr__(model, "_resolve_auto_jit_compile", lambda: True)  # as on a GPU
    tfopt.split(model, ())
    model.compile("adam", "mse")
    found["xla"] = [model.jit_compile]
    with warnings.catch_warnings(record=True) as seen:
        tfopt.split(model, ("CPU:1", "CPU:0"))
    found["xla"] += [model.jit_compile, *map(str, (each.message for each in seen))]
    found["first"] = device(model.weights[0])
    tfopt.split(model, ())
    tfopt.split(dense()).compile(None, "mse")
    found["off"] = [differs(), hooks(), model.supports_jit, len(device_parts(model))]""",
    )
    differs, hooks, *rest = found["split"]
    assert differs < 1e-6
    assert hooks == 3  # the model's two, and the one of the block that is cut
    assert rest == [False, ["CPU:0"]]
    assert found["xla"][:2] == [True, False]
    assert found["xla"][2].startswith("XLA is off")
    assert found["first"] == "CPU:1"
    differs, *rest = found["off"]
    assert differs < 1e-6
    assert rest == [0, True, 0]


def test_in_a_chain_it_says_what_each_device_holds(on_devices):
    found = on_devices(
        2,
        """
    def job():
        return tfopt.Job(
            build=residual,
            data=lambda: tfopt.Data(train=(X, Y), test=(X, Y)),
            compile=lambda: {"optimizer": momentum(), "loss": "sparse_categorical_crossentropy"},
            batch_size=16,
        )
    links = tfopt.Remat("dense"), tfopt.Prune(0.5), tfopt.Pipeline(shuffle=False)
    plain = tfopt.run(job(), tfopt.chain(*links, tfopt.Quantize("dynamic")), verbose=0)
    split = tfopt.chain(tfopt.Split(), *links, tfopt.Quantize("dynamic"))
    outcome = tfopt.run(job(), split, verbose=0)
    pairs = zip(plain.model.get_weights(), outcome.model.get_weights(), strict=True)
    found = {
        "note": outcome.effects[0][1].note,
        "differs": float(max(np.abs(one - other).max() for one, other in pairs)),
        "files": [len(artefact.content) for artefact in outcome.artefacts],
        "as plain": [len(artefact.content) for artefact in plain.artefacts],
    }""",
    )
    first, second, xla = found["note"].split("; ")
    assert first.startswith("CPU:0 has dense")
    assert second.startswith("CPU:1 has ")
    assert "MiB of weights" in second
    assert xla == "XLA is off"
    assert found["differs"] < 2e-6
    assert found["files"] == pytest.approx(found["as plain"], rel=0.05)
    assert len(found["files"]) == 1


def test_what_cannot_be_split_is_refused_by_name_and_unchanged(on_devices):
    found = on_devices(
        2,
        """
    class Own(keras.Model):
        def build(self, shape):
            self.layer = L.Dense(4)
            self.layer.build(shape)
        def call(self, x):
            return self.layer(x)
    own = Own()
    own.build((None, 16))
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        copied = dense()
    asked, fitted, late = dense(), dense(), tfopt.split(dense())
    asked.compile("adam", "mse", jit_compile=True)
    fitted.compile("adam", "mse")
    fitted.optimizer.build(fitted.trainable_variables)
    tried = {
        "it is a subclassed model": lambda: tfopt.split(own),
        "under a strategy": lambda: tfopt.split(copied),
        "jit_compile=True compiles by XLA": lambda: tfopt.split(asked),
        "jit_compile=True compiles": lambda: late.compile("adam", "mse", jit_compile=True),
        "its optimizer has variables already": lambda: tfopt.split(fitted),
        "1 layer for 2 devices": lambda: tfopt.split(keras.Sequential([L.Input((2,)), L.Dense(1)])),
        "two or more of CPU:0, CPU:1": lambda: tfopt.split(dense(), ["CPU:0"]),
        "received: 'CPU:0'": lambda: tfopt.split(dense(), "CPU:0"),
        "received: ['CPU:0', 'CPU:0']": lambda: tfopt.split(dense(), ["CPU:0", "CPU:0"]),
        "received: ['CPU:0', 'GPU:7']": lambda: tfopt.split(dense(), ["CPU:0", "GPU:7"]),
    }
    found = {}
    for words, call in tried.items():
        try:
            call()
        except tfopt.UserError as error:
            found[words] = str(error)
    found["changed"] = [name for x in (own, asked, fitted) for name in vars(x) if name == "_split"]
    """,
    )
    assert found.pop("changed") == []
    assert len(found) == 10
    for words, message in found.items():
        assert words in message


def test_a_layer_larger_than_its_device_is_refused(monkeypatch):
    model = keras.Sequential([keras.Input((64,)), L.Dense(4), L.Dense(512, name="large")])
    monkeypatch.setattr(module, "_devices", lambda names: ["CPU:0", "CPU:1"])
    monkeypatch.setattr(module, "room_on", lambda device: (0.01, f"the 0.01 MiB of {device}"))
    with pytest.raises(UserError, match=r"of 'large' are more than the 0\.01 MiB of CPU:1"):
        module.split(model)
    assert module.device_parts(model) == ()


def test_one_device_is_refused_and_a_chain_says_so(monkeypatch):
    monkeypatch.setattr(module, "_logical", lambda kind: ["GPU:0"] if kind == "GPU" else ["CPU:0"])
    model = keras.Sequential([keras.Input((4,)), L.Dense(4), L.Dense(2)])
    with pytest.raises(UserError, match="at least two existing devices") as caught:
        module.split(model)
    assert "received: ['GPU:0']" in str(caught.value)
    job = Job(
        build=lambda: model,
        data=lambda: Data(train=(np.ones((8, 4)), np.ones((8, 2)))),
        compile=lambda: {"optimizer": "sgd", "loss": "mse"},
    )
    (effect,) = (effect for _, effect in run(job, Split()).effects)
    assert (effect.acted, effect.note) == (False, "not split: GPU:0 is the only device")


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_the_largest_part_is_as_small_as_possible(parts):
    sizes = [5, 0, 9, 1, 1, 7, 3, 2]
    ways = [(0, *way, 8) for way in itertools.combinations(range(1, 8), parts - 1)]

    def largest(cuts):
        return max(sum(sizes[start:end]) for start, end in itertools.pairwise(cuts))

    cuts = module._cuts(sizes, parts)
    assert cuts in ways
    assert largest(cuts) == min(map(largest, ways))
