"""Shards: every row in one of them, written again only where missing, and read back as they were."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import tfopt
from tfopt import UserError
from tfopt.data import ArrowTable, Csv, convert
from tfopt.data.convert import MANIFEST

ROWS = 3_000


@pytest.fixture
def rows(tmp_path):
    number = np.arange(ROWS)
    noise = np.random.default_rng(0).normal(size=(ROWS, 200)).astype("float32")
    table = pa.table(
        {
            "id": number,
            "wide": pa.FixedSizeListArray.from_arrays(pa.array(noise.ravel()), 200),
            "name": [f"n{i}" for i in number],
        }
    )
    (tmp_path / "in").mkdir()
    pq.write_table(table, tmp_path / "in" / "all.parquet", row_group_size=300)
    return tmp_path / "in"


def ids(folder, **settings):
    data = tfopt.pipeline(folder, shuffle=False, **settings)
    return np.concatenate([x["id"] for x in data])


def main_names(folder):
    return sorted(each.name for each in folder.glob("part-*"))


@pytest.mark.parametrize("format", ["parquet", "tfrecord"])
def test_shards_hold_every_row_in_order_and_are_resumed(rows, tmp_path, format):
    out = tmp_path / "out"
    first = convert(rows, out, format=format, shard_mib=1)
    assert (first.rows, len(first.shards), first.written) == (ROWS, 4, 4)
    assert (ids(out) == np.arange(ROWS)).all()
    x = next(iter(tfopt.pipeline(out, batch_size=2, shuffle=False)))
    assert x["wide"].shape == (2, 200)
    assert x["name"].numpy().tolist() == [b"n0", b"n1"]
    assert main_names(out) == [each.name for each in first.shards]
    lost = out / first.shards[1].name
    whole = lost.read_bytes()
    lost.unlink()
    with pytest.raises(UserError, match="not as it was written"):
        tfopt.data.check_shards(out)
    again = convert(rows, out, format=format, shard_mib=1)
    assert (again.written, again.shards) == (1, first.shards)
    assert lost.read_bytes() == whole
    with pytest.raises(UserError, match="shards of something else"):
        convert(ArrowTable(pa.table({"a": [1]})), out)


def test_one_large_part_is_cut_and_small_files_are_joined(rows, tmp_path):
    (tmp_path / "large.csv").write_text("a,b\n" + "1.5,2.5\n" * 200_000)
    cut = convert(tmp_path / "large.csv", tmp_path / "cut", shard_mib=1)
    assert cut.rows == 200_000
    assert len(cut.shards) > 1
    for number in range(20):
        (tmp_path / "small").mkdir(exist_ok=True)
        (tmp_path / "small" / f"{number}.csv").write_text(f"id\n{number}\n")
    joined = convert(tmp_path / "small", tmp_path / "joined")
    assert (joined.rows, len(joined.shards)) == (20, 1)


def test_an_interrupted_or_another_conversion_is_named(rows, tmp_path):
    out = tmp_path / "out"
    convert(rows, out, shard_mib=1)
    kept = json.loads((out / MANIFEST).read_text())
    del kept["shards"]["3"]
    (out / MANIFEST).write_text(json.dumps(kept))
    with pytest.raises(UserError, match="not converted to its end"):
        tfopt.data.check_shards(out)
    assert convert(rows, out, shard_mib=1).written == 1
    with pytest.raises(UserError, match="or of other settings"):
        convert(rows, out, shard_mib=2)
    pq.write_table(pq.read_table(rows).slice(0, 10), rows / "more.parquet")
    with pytest.raises(UserError, match="shards of something else"):
        convert(rows, out, shard_mib=1)


@pytest.mark.parametrize("format", ["parquet", "tfrecord"])
def test_a_folder_in_which_shards_are_missing_is_not_read(rows, tmp_path, format):
    out = tmp_path / "out"
    last = convert(rows, out, format=format, shard_mib=1).shards[-1]
    listed = (out / MANIFEST).read_text()
    kept = json.loads(listed)
    del kept["shards"]["3"]
    (out / MANIFEST).write_text(json.dumps(kept))
    with pytest.raises(UserError, match="not converted to its end"):
        tfopt.pipeline(out)
    (out / MANIFEST).write_text(listed)
    (out / last.name).unlink()
    with pytest.raises(UserError, match=rf"{last.name} is not as it was written(.|\n)*no such"):
        tfopt.pipeline(out)
    (out / MANIFEST).unlink()
    assert len(ids(out)) == ROWS - last.rows


def test_truth_values_are_written_as_numbers(tmp_path):
    table = pa.table({"is": [True, False], "are": [[True, True], [False, True]]})
    convert(table, tmp_path / "out", format="tfrecord")
    (x,) = tfopt.pipeline(tmp_path / "out", shuffle=False)
    assert x["is"].numpy().tolist() == [1, 0]
    assert x["are"].numpy().tolist() == [[1, 1], [0, 1]]


def test_csv_images_and_records_become_parquet(tmp_path):
    (tmp_path / "a.csv").write_text("id,price\n1,0.5\n2,0.25\n")
    convert(Csv(tmp_path / "a.csv"), tmp_path / "csv")
    assert pq.read_table(tmp_path / "csv").to_pydict() == {"id": [1, 2], "price": [0.5, 0.25]}
    for name, value in (("cat", 0), ("dog", 9)):
        (tmp_path / "images" / name).mkdir(parents=True)
        encoded = tf.io.encode_png(np.full((2, 2, 3), value, "uint8")).numpy()
        (tmp_path / "images" / name / "1.png").write_bytes(encoded)
    convert(tmp_path / "images", tmp_path / "pictures")
    source = tfopt.data.Parquet(tmp_path / "pictures", label="label", images={"image": (2, 2, 3)})
    x, y = next(iter(tfopt.pipeline(source, shuffle=False)))
    assert (x["image"][:, 0, 0, 0].numpy() == y.numpy() * 9).all()
    convert(tmp_path / "csv", tmp_path / "records", format="tfrecord")
    convert(tmp_path / "records", tmp_path / "back")
    assert pq.read_table(tmp_path / "back").to_pydict() == {"id": [1, 2], "price": [0.5, 0.25]}


def test_what_has_changed_is_named(rows, tmp_path):
    out = tmp_path / "out"
    assert "3,000 rows in 4 shards" in str(convert(rows, out, shard_mib=1))
    tfopt.data.check_shards(out)
    (shard,) = json.loads((out / MANIFEST).read_text())["shards"]["2"]
    name = shard["name"]
    with (out / name).open("r+b") as file:
        file.seek(100)
        file.write(b"x")
    with pytest.raises(UserError, match=name):
        tfopt.data.check_shards(out)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda rows, out: convert(rows, rows), "is not empty"),
        (lambda rows, out: convert(rows, out, format="csv"), "format is unknown"),
        (lambda rows, out: convert((np.ones(3),), out), "Only files and tables"),
        (
            lambda rows, out: convert(pa.table({"a": [1, None]}), out, format="tfrecord"),
            "'a' does not go into TFRecord",
        ),
        (
            lambda rows, out: convert(
                pa.table({"b": pa.array([2**63], pa.uint64())}), out, format="tfrecord"
            ),
            "'b' does not go into TFRecord",
        ),
        (
            lambda rows, out: convert(pa.table({"a": [[1], [1, 2]]}), out, format="tfrecord"),
            "lists of the column 'a' are not all of one length",
        ),
        (lambda rows, out: tfopt.data.check_shards(rows), "holds no shards"),
    ],
)
def test_what_cannot_be_converted_is_refused(rows, tmp_path, call, said):
    with pytest.raises(UserError, match=said):
        call(rows, tmp_path / "out")
    assert not list(tmp_path.glob("out/part*"))


def test_a_second_call_knows_the_lengths_of_the_lists_that_the_first_one_wrote(tmp_path):
    inputs, rng = tmp_path / "inputs", np.random.default_rng(0)
    inputs.mkdir()
    for part, length in enumerate((100, 101)):
        lists = pa.array(rng.normal(size=(2_000, length)).tolist())
        pq.write_table(pa.table({"a": lists}), inputs / f"{part}.parquet")
    for _ in range(2):
        with pytest.raises(UserError, match="lists of the column 'a' are not all of one length"):
            convert(inputs, tmp_path / "made", format="tfrecord", shard_mib=1, workers=1)
    assert len(list((tmp_path / "made").glob("*.tfrecord"))) == 1
