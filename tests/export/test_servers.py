"""Servers that know nothing of tfopt answer as the model does: the scripts of docs/export.md, each run
in an environment that has its server and its engine alone, from the package index."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
import venv
from contextlib import contextmanager, suppress
from pathlib import Path

import keras
import numpy as np
import pytest
from digits import digit_net, small_digits
from keras import layers

import tfopt

pytestmark = pytest.mark.slow
PAGE = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")


def script(name):
    return re.search(rf"^```python\n(# {name}\n.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)[1]


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """A Python with servers and engines, and without tfopt, TensorFlow and Keras."""
    folder = tmp_path_factory.mktemp("servers")
    venv.create(folder, with_pip=True)
    wanted = ["nvidia-pytriton", "onnxruntime", "litserve", "ai-edge-litert"]
    call = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", *wanted]
    done = subprocess.run(call, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        pytest.skip(f"the package index cannot be reached: {done.stderr[-300:]}")
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A folder with both files, examples, and what the model answers."""
    x, y = small_digits(600)
    keras.utils.set_random_seed(4)
    model = digit_net(layers.Conv2D(8, 3, activation="relu"), layers.Flatten())
    model.fit(x, y, epochs=2, verbose=0)
    folder = tmp_path_factory.mktemp("folder")
    tfopt.export(model, folder / "served", formats="onnx", examples=x)
    tfopt.export(model, folder / "served", formats="litert", precision="int8", calibration=x)
    return folder, x[:9], model.predict(x[:9], verbose=0)


@contextmanager
def running(python, folder, name):
    """Run a script of the page on a free port, with the Python library that this Python has."""
    (folder / name).write_text(script(name), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment["LD_LIBRARY_PATH"] = sysconfig.get_config_var("LIBDIR")
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(
            [python, name, str(port)],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield port
    except Exception as error:
        error.add_note((folder / f"{name}.log").read_text()[-2000:])
        raise
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def asked(url, body, *, within=120):
    """Return the answer to a request, repeated until the server is there."""
    until = time.monotonic() + within
    kind = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), kind)
    while True:
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.URLError:  # Triton knows no such model until it has been bound
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


@pytest.mark.skipif(sys.platform != "linux", reason="nvidia-pytriton is for Linux")
def test_triton_answers_as_the_model(python, served):
    folder, x, expected = served
    image = {"name": "image", "shape": list(x.shape), "datatype": "FP32", "data": x.tolist()}
    with running(python, folder, "serve_triton.py") as port:
        answer = asked(f"http://127.0.0.1:{port}/v2/models/digits/infer", {"inputs": [image]})
    (output,) = answer["outputs"]
    given = np.reshape(output["data"], output["shape"])
    np.testing.assert_allclose(given, expected, atol=1e-5)


def test_litserve_answers_as_the_model(python, served):
    folder, x, expected = served
    with running(python, folder, "serve_litert.py") as port:
        answer = asked(f"http://127.0.0.1:{port}/predict", {"image": x.tolist()})
    np.testing.assert_allclose(answer["output"], expected, atol=0.05)
