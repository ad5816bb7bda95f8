"""Execution: what is compiled and how often Python is left, at equal weights."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from tfopt import Execution, Job, UserError, execution, run

RNG = np.random.default_rng(0)
X = RNG.normal(size=(100, 6)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def compiled():
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=False)
    return model


@pytest.mark.parametrize(
    "settings", [{"steps_per_execution": 4}, {"jit_compile": True, "steps_per_execution": 3}]
)
def test_execution_is_exact(settings):
    job = Job.from_model(compiled(), (X, Y), batch_size=16, epochs=2)
    plain, changed = run(job).model, run(job, Execution(**settings)).model
    assert changed.steps_per_execution == settings["steps_per_execution"]
    assert changed.jit_compile is settings.get("jit_compile", False)
    for expected, got in zip(plain.get_weights(), changed.get_weights(), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-5)


def test_the_function_changes_a_live_model_and_keeps_its_optimizer_state():
    model = compiled()
    model.fit(X, Y, batch_size=16, verbose=0)
    assert execution(model, steps_per_execution=5) is model
    ends = []
    count = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: ends.append(batch)
    )
    model.fit(X, Y, batch_size=10, verbose=0, callbacks=[count])
    assert len(ends) == 2
    assert int(model.optimizer.iterations) == 7 + 10


def test_an_uncompiled_model_is_refused():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    with pytest.raises(UserError, match="compiled"):
        execution(model, steps_per_execution=2)


FLAGS = """
import json, os
import keras, numpy as np
import tfopt
from tfopt import Execution, Job, Place, run
from tfopt.train.compile_cache import _prepared
os.environ.update(_prepared(os.environ, None, 64)[1])  # as what measures does on a GPU
found = [os.environ["TF_XLA_FLAGS"]]
x = np.ones((32, 6), "float32")
def model():
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
def job():
    data = lambda: tfopt.Data(train=(x, x[:, :1]))
    return Job(build=model, data=data, compile=lambda: {"loss": "mse"})
flag = "--xla_cpu_enable_fast_math=true"
for each in (Execution(jit_compile=True, xla=(flag,)), Execution(xla=(flag,))):
    outcome = run(job(), each)
    found.append([effect.note for _, effect in outcome.effects])
try: run(job(), Place(compile_cache=True))
except tfopt.UserError as error: found.append(str(error))
found += [os.environ["XLA_FLAGS"], os.environ["TF_XLA_FLAGS"]]
try: run(job(), Execution(xla=("--xla_cpu_enable_fast_math=false",)))
except tfopt.UserError as error: found.append(str(error))
print(json.dumps([*found, os.environ["XLA_FLAGS"]]))
"""


UNKNOWN = """
import os
import tfopt
from tfopt.train.xla_flags import set_xla_flags
try: set_xla_flags(["--xla_cpu_enable_fast_math=true", "--xla_no_such_flag=1"])
except tfopt.UserError as error:
    assert "XLA does not know --xla_no_such_flag=1." in str(error), error
    assert not {"XLA_FLAGS", "TF_XLA_FLAGS"} & os.environ.keys()
    print("refused")
"""


def test_a_flag_that_xla_does_not_know_is_named():
    given = {name: text for name, text in os.environ.items() if "XLA_FLAGS" not in name}
    command = [sys.executable, "-c", UNKNOWN]
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=True)
    assert done.stdout == "refused\n"


def test_flags_of_xla_are_set_for_the_process(tmp_path):
    given = {name: text for name, text in os.environ.items() if "XLA_FLAGS" not in name}
    done = subprocess.run(
        [sys.executable, "-c", FLAGS],
        env=given | {"XDG_CACHE_HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
        check=True,
    )
    said = json.loads(done.stdout.splitlines()[-1])
    plain_cache, first, again, beside, flags, cache, late, after = said
    assert first[0].startswith("XLA with --xla_cpu_enable_fast_math=true; ")
    assert again == ["XLA with --xla_cpu_enable_fast_math=true"]
    assert flags == after == "--xla_cpu_enable_fast_math=true"
    assert "came too late" in late
    assert "compile_cache() comes after Execution(xla=...)" in beside
    # The programs are in the folder for these flags.
    plain_folder, folder = (Path(each.partition("=")[2]) for each in (plain_cache, cache))
    assert folder != plain_folder
    assert folder.parent == plain_folder.parent
    assert [*folder.glob("*.pb")]
    assert not [*plain_folder.glob("*.pb")]


def test_what_is_no_flag_is_refused_and_one_flag_is_a_tuple():
    assert Execution(xla="--xla_dump_to=/x").xla == ("--xla_dump_to=/x",)
    made = Execution(xla=["--xla_a=1", "--xla_b"])
    assert eval(repr(made)) == made
    for value in ("xla_a=1", 5, ["--xla_a=1 --xla_b=2"], "--tf_xla_a=1"):
        with pytest.raises(UserError, match="Invalid XLA flag"):
            Execution(xla=value)
