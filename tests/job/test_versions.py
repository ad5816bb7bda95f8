"""What tfopt does not run on is one sentence, before a function is loaded."""

import pytest

import tfopt
from tfopt.commands.cli import main
from tfopt.doctor import host_checks
from tfopt.doctor.check import Subject
from tfopt.job import versions


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Play which packages are installed, in a process that has not imported Keras."""

    def play(**packages):
        names = {name.replace("_", "-"): found for name, found in packages.items()}

        def version(name):
            if name not in names:
                raise versions.PackageNotFoundError(name)
            return names[name]

        monkeypatch.setattr(versions, "version", version)
        monkeypatch.setattr(versions, "sys", type("sys", (), {"modules": {}}))
        for name in ("KERAS_BACKEND", "TF_USE_LEGACY_KERAS"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("KERAS_HOME", str(tmp_path))
        return [str(error) for error in versions.unsupported()]

    return play


def test_what_is_supported_raises_nothing(installed):
    assert installed(tensorflow="2.18.0", keras="3.8.0") == []
    assert installed(tensorflow_cpu="2.21.0rc1", keras="3.15.1") == []
    assert installed(tf_nightly="2.23.0.dev20261026", keras_nightly="3.16.0.dev2026102704") == []
    assert installed(keras="4.0") == installed() == []


def test_versions_below_the_oldest_are_named(installed):
    (tensorflow,) = installed(tensorflow="2.17.1", keras="3.8.0")
    assert "needs TensorFlow 2.18 or newer" in tensorflow
    assert "received: tensorflow 2.17.1" in tensorflow
    (keras,) = installed(tensorflow="2.18.0", keras="3.7.0")
    assert "needs Keras 3.8 or newer" in keras
    assert "fix: pip install --upgrade 'keras>=3.8'" in keras


def test_a_nightly_beside_a_release_is_refused(installed):
    (both,) = installed(tensorflow="2.21.0", keras="3.15.1", keras_nightly="3.16.0.dev1")
    assert "keras and keras-nightly are both installed" in both
    assert "received: keras 3.15.1, keras-nightly 3.16.0.dev1" in both
    assert "fix: pip uninstall keras keras-nightly; then install one of them" in both


def test_another_backend_is_refused_wherever_it_is_named(installed, monkeypatch, tmp_path):
    installed()
    (tmp_path / "keras.json").write_text('{"backend": "torch"}')
    (configured,) = versions.unsupported()
    assert "Keras runs on torch" in str(configured)
    assert "keras.json" in str(configured)
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    (set_,) = versions.unsupported()
    assert "Keras runs on jax" in str(set_)
    assert "received: KERAS_BACKEND=jax" in str(set_)
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    assert [*versions.unsupported()] == []


def test_a_function_is_refused_and_what_helps_is_not(monkeypatch, capsys):
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    versions.require_supported.cache_clear()
    monkeypatch.delitem(vars(tfopt), "footprint", raising=False)
    with pytest.raises(tfopt.errors.UserError, match="TF_USE_LEGACY_KERAS=1"):
        _ = tfopt.footprint
    _, legacy, *_ = host_checks.versions(Subject())
    assert legacy.verdict == "failure"
    assert "tf.keras is Keras 2" in legacy.message
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    printed = capsys.readouterr().out
    assert printed.startswith(f"tfopt {tfopt.__version__}, TensorFlow ")
    assert ", Keras 3." in printed
