"""The table recipe: it learns from Parquet, the same through Dask, and takes a table of yours."""

import numpy as np
import pandas as pd
import pytest

import tfopt
from tfopt.recipes import tabular

FAST = tfopt.chain(
    tfopt.LearningRate(peak=0.005, decay="cosine"),
    tfopt.Pipeline(batch_size=100, cache="memory"),
    tfopt.Execution(jit_compile=False, steps_per_execution=10),
)

# Dask 2026.8 under pandas 3.1.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The inplace keyword in DataFrame:DeprecationWarning"
)


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.slow
def test_it_learns_the_same_table_through_parquet_and_dask(tmp_path):
    through_parquet = tfopt.run(tabular.job(rows=4_000), FAST)
    through_dask = tfopt.run(tabular.job(rows=4_000, data="dask"), FAST)
    for outcome in (through_parquet, through_dask):
        assert outcome.evaluation["accuracy"] > 0.75  # 0.5 by guessing
    assert "by dask" in through_dask.data.note
    written = tmp_path / ".cache" / "tfopt" / "tabular_4000_v1" / "train" / "rows.parquet"
    assert len(pd.read_parquet(written)) == 4_000


def test_a_table_of_yours(tmp_path):
    for part in ("train", "test"):
        rng = np.random.default_rng(0)
        kinds = 3 if part == "train" else 9  # those that the training has not seen are one
        rows = pd.DataFrame({"a": rng.normal(size=400), "kind": rng.integers(0, kinds, 400)})
        (tmp_path / part).mkdir()
        rows.assign(won=(rows.a > 0).astype(int)).to_csv(tmp_path / part / "rows.csv", index=False)
    described = tabular.job(data=str(tmp_path), label="won", categories="kind", epochs=5)
    outcome = tfopt.run(described)
    assert outcome.evaluation["accuracy"] > 0.9
    assert {layer.name for layer in outcome.model.layers} >= {"a", "kind"}
    with pytest.raises(tfopt.UserError, match="does not have: kinds"):  # it is no number
        tabular.job(data=str(tmp_path), label="won", categories=("kinds",)).build()
    with pytest.raises(tfopt.UserError, match="not 0 or 1"):
        tabular.job(data=str(tmp_path), label="kind", categories=()).build()


def test_texts_are_numbered_by_those_of_the_training_part(tmp_path):
    for part, texts in {"train": ["no", "yes"], "test": ["yes", "other"]}.items():
        (tmp_path / part).mkdir()
        rows = pd.DataFrame({"said": texts * 50, "label": [0, 1] * 50})
        rows.to_parquet(tmp_path / part / "rows.parquet")
    described = tabular.job(data=str(tmp_path), categories=(), batch_size=10, epochs=9)
    said = {
        part: {*next(iter(getattr(described.data(), part)))[0]["said"]}
        for part in ("train", "test")
    }
    assert said == {"train": {1, 2}, "test": {2, 0}}
    outcome = tfopt.run(described, tfopt.Pipeline(batch_size=20))
    assert outcome.history["accuracy"][-1] == 1
    assert outcome.model.get_layer("said").dtype == "float32"
