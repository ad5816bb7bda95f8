"""Sources: each yields every row once an epoch, in the shapes declared, or one clear error."""

import gzip
import io
import os
import shutil
import subprocess
import sys

import keras
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import tfopt
from tfopt.data import (
    TFDS,
    ArrowTable,
    Csv,
    Dask,
    HuggingFace,
    ImageFolder,
    Parquet,
    Spark,
    TFRecord,
)
from tfopt.data.sources.open import open_source
from tfopt.errors import UserError

ROWS = 1_000
# Dask 2026.8 under pandas 3.1.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The inplace keyword in DataFrame:DeprecationWarning"
)


def frame(rows=ROWS, start=0):
    number = np.arange(start, start + rows)
    return pd.DataFrame(
        {
            "id": number,
            "half": (number / 2).astype("float64"),
            "name": [f"n{i % 7}" for i in number],
            "y": (number % 3).astype("int32"),
        }
    )


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    """Four files, each of several row groups."""
    folder = tmp_path_factory.mktemp("parquet")
    for part in range(4):
        table = pa.Table.from_pandas(frame(250, 250 * part), preserve_index=False)
        pq.write_table(table, folder / f"part-{part}.parquet", row_group_size=100)
    return folder


DAYS = pa.table({"day": pa.array([1, 2], pa.timestamp("s")), "y": [0, 1]})


def ids(dataset):
    return np.concatenate([batch[0]["id"] for batch in dataset])


def test_each_row_comes_once_an_epoch_in_an_order_that_follows_from_the_seed(parquet):
    data = tfopt.pipeline(parquet, label="y", batch_size=64)
    first, second = ids(data), ids(data)
    again = ids(tfopt.pipeline(parquet, label="y", batch_size=64))
    other = ids(tfopt.pipeline(parquet, label="y", batch_size=64, seed=1))
    assert int(data.cardinality()) == len(list(data)) == 16
    assert sorted(first) == sorted(second) == list(range(ROWS))
    assert (first == again).all()
    assert not (first == second).all()
    assert not (first == other).all()
    ordered = tfopt.pipeline(parquet, label="y", batch_size=64, shuffle=False)
    assert (ids(ordered) == np.arange(ROWS)).all()
    x, y = next(iter(ordered))
    assert set(x) == {"id", "half", "name"}
    assert x["half"].dtype == tf.float32
    assert x["name"].numpy()[:2].tolist() == [b"n0", b"n1"]
    assert (y.numpy() == np.arange(64) % 3).all()


def test_a_cache_on_disk_is_not_that_of_another_source(parquet, tmp_path):
    def pipe(condition):
        source = Parquet(parquet, label="y", features="id", filter=(condition,))
        return tfopt.pipeline(source, batch_size=100, cache=f"file:{tmp_path}/cache", shuffle=False)

    for _ in range(2):
        assert max(np.concatenate([x for x, _ in pipe(("id", "<", 500))])) == 499
    with pytest.raises(UserError, match=r"belongs to other data or settings(.|\n)*delete it"):
        pipe(("id", ">=", 500))


def test_cache_map_and_the_remainder_work_on_a_source(parquet):
    def kept(x, y):
        return x["half"] * 2, y

    data = tfopt.pipeline(
        parquet,
        label="y",
        batch_size=64,
        map=kept,
        cache="memory",
        options=tfopt.data.PipelineOptions(drop_remainder=True),
    )
    for _ in range(2):
        seen = np.concatenate([x for x, _ in data])
        assert len(seen) == len(set(seen)) == 960
        assert not (seen == np.sort(seen)).all()


def test_columns_filters_and_partitions_decide_what_is_read(tmp_path):
    table = pa.Table.from_pandas(frame(), preserve_index=False)
    pq.write_to_dataset(table, tmp_path / "by_y", partition_cols=["y"])
    source = Parquet(tmp_path / "by_y", label="y", features="id", filter=(("id", "<", 100),))
    assert source.count() == 100
    assert source.layout().columns == ("id", "y")
    x, y = next(iter(tfopt.pipeline(source, batch_size=100, shuffle=False)))
    assert (x.numpy() % 3 == y.numpy()).all()
    assert eval(repr(source)) == source


def test_lists_decimals_weights_and_a_matrix_of_columns(tmp_path):
    rows = 6
    pixels = np.arange(rows * 4, dtype="float32")
    table = pa.table(
        {
            "fixed": pa.FixedSizeListArray.from_arrays(pa.array(pixels), 4),
            "open": pa.array([[i, i + 1] for i in range(rows)], pa.list_(pa.int64())),
            "price": pa.array([1.5] * rows).cast(pa.decimal128(8, 2)),
            "flag": pa.array([True, False] * 3),
            "w": pa.array(np.linspace(0, 1, rows)),
            "kind": pa.array(["no", "yes"] * 3).dictionary_encode(),
        }
    )
    settings = {"label": "kind", "weight": "w", "classes": ("no", "yes")}
    with pytest.raises(UserError, match=r"'open' holds lists.*\n.*\n.*\n.*shapes="):
        ArrowTable(table, **settings).layout()
    source = ArrowTable(
        table,
        features=("fixed", "open", "price", "flag"),
        stack=True,
        shapes={"open": (2,)},
        **settings,
    )
    ((x, y, weight),) = tfopt.pipeline(source, batch_size=rows, shuffle=False)
    assert x.shape == (rows, 8)
    assert x[1].numpy().tolist() == [4, 5, 6, 7, 1, 2, 1.5, 0]
    assert y.numpy().tolist() == [0, 1] * 3
    assert weight.dtype == tf.float32
    shaped = ArrowTable(table, features="fixed", shapes={"fixed": (2, 2)})
    assert next(iter(tfopt.pipeline(shaped, batch_size=2))).shape == (2, 2, 2)
    uneven = pa.table({"v": pa.array([[1], [1, 2, 3]], pa.list_(pa.int64()))})
    with pytest.raises(tf.errors.InvalidArgumentError, match="differ from the declared shape"):
        list(tfopt.pipeline(ArrowTable(uneven, features="v", shapes={"v": (2,)})))


def picture(value, spoilt=()):
    whole = tf.io.encode_png(np.full((5, 6, 3), value, "uint8")).numpy()
    return whole[:40] if value in spoilt else whole


def test_encoded_images_are_decoded_and_resized(tmp_path):
    table = pa.table({"photo": [picture(v) for v in range(10)], "y": list(range(10))})
    source = ArrowTable(table, label="y", features="photo", images={"photo": (4, 4, 3)})
    x, y = next(iter(tfopt.pipeline(source, batch_size=10)))
    assert x.shape == (10, 4, 4, 3)
    np.testing.assert_allclose(x[:, 0, 0, 0], y, atol=1e-4)
    for value in range(10):
        place = tmp_path / "images" / f"class_{value % 2}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{value}.png").write_bytes(picture(value))
    folder = open_source(tmp_path / "images")
    assert folder == ImageFolder(str(tmp_path / "images"))
    assert (folder.count(), folder.classes) == (10, ("class_0", "class_1"))
    x, y = next(iter(tfopt.pipeline(ImageFolder(tmp_path / "images", size=(4, 4)), batch_size=10)))
    np.testing.assert_allclose(x[:, 0, 0, 0] % 2, y, atol=1e-4)


def test_nulls_are_filled_or_refused_by_their_place(tmp_path):
    column = pa.array([None if i % 10 == 5 else float(i) for i in range(100)])
    table = pa.table({"v": column, "y": list(range(100))})
    for part in range(2):
        pq.write_table(table, tmp_path / f"{part}.parquet")
    said = r"0\.parquet, row group 0: the column 'v' has a null"
    with pytest.raises(UserError, match=said):
        tfopt.pipeline(Parquet(tmp_path, label="y", features="v"))
    without_nulls = Parquet(tmp_path, label="y", features="v", filter=[("y", "<", 5)])
    assert sum(len(y) for _, y in tfopt.pipeline(without_nulls)) == 10
    filled = Parquet(tmp_path, label="y", features="v", fill={"v": -1.0})
    x = np.concatenate([x for x, _ in tfopt.pipeline(filled)])
    assert (len(x), (x == -1).sum()) == (200, 20)
    # Files that do not say how many nulls there are, in a training.
    for part in range(2):
        numbers = pa.array([float(i) if part == 0 or i < 150 else None for i in range(200)])
        table = {"id": numbers, "half": numbers.fill_null(0), "y": [i % 3 for i in range(200)]}
        pq.write_table(pa.table(table), tmp_path / f"{part}.parquet", write_statistics=False)
    with pytest.raises(UserError) as raised:
        tfopt.run(small_job(str(tmp_path)), tfopt.Pipeline(shuffle=False))
    assert raised.value.what.endswith("1.parquet, row group 0: the column 'id' has a null.")
    assert "fill=" in raised.value.fix


OTHER = r"(.|\n)*".join([r"{}\.parquet: the column 'v' differs from that of other files", "{}"])


@pytest.mark.parametrize(
    ("broken", "columns", "said"),
    [
        ("1", None, r"1\.parquet cannot be opened"),
        ("1", {"v": list(range(50)), "y": list(range(50))}, OTHER.format(1, "int64")),
        ("1", {"y": list(range(50))}, OTHER.format(1, "no such column")),
        ("0", {"y": list(range(50))}, OTHER.format(0, "no such column")),
        (
            "1",
            {"v": np.arange(50.0), "y": list(range(50)), "w": [1] * 50},
            OTHER.format(0, "no such column").replace("'v'", "'w'"),
        ),
    ],
)
def test_bad_files_are_named_before_training(tmp_path, broken, columns, said):
    with pytest.raises(UserError, match="holds no"):
        tfopt.pipeline(Parquet(tmp_path, label="y"))
    for part in "01":
        pq.write_table(
            pa.table({"v": np.arange(50.0), "y": list(range(50))}), tmp_path / f"{part}.parquet"
        )
    damaged = tmp_path / f"{broken}.parquet"
    if columns is None:
        damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 2])
    else:
        pq.write_table(pa.table(columns), damaged)
    with pytest.raises(UserError, match=said):
        tfopt.pipeline(Parquet(tmp_path, label="y"))
    if columns is not None:  # a column that is not read is no hindrance
        assert Parquet(tmp_path, label="y", features="y").count() == 100


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("v > 3", "not a tuple of conditions"),
        ((("w", ">", 3),), r"does not fit the columns(.|\n)*v: double, y: int64(.|\n)*w"),
        ((("v", "~", 3),), "does not fit the columns"),
        ((("v", "in", "three"),), "not a tuple of conditions"),
    ],
)
def test_a_filter_that_does_not_fit_is_refused_before_training(tmp_path, condition, said):
    pq.write_table(pa.table({"v": np.arange(5.0), "y": list(range(5))}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=said):
        tfopt.pipeline(Parquet(tmp_path, label="y", filter=condition))


def test_a_damaged_row_group_and_changed_files_are_named(tmp_path):
    path = tmp_path / "a.parquet"
    rng = np.random.default_rng(0)
    table = pa.table({"v": rng.normal(size=50_000), "y": np.arange(50_000)})
    pq.write_table(table, path, row_group_size=10_000, compression="zstd")
    content = bytearray(path.read_bytes())
    at = pq.ParquetFile(path).metadata.row_group(3).column(0).data_page_offset
    content[at : at + 2_000] = bytes(2_000)
    path.write_bytes(content)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"a\.parquet, row group 3 cannot be read"
    ):
        list(tfopt.pipeline(path, label="y", shuffle=False))
    pq.write_table(table, path)
    data = tfopt.pipeline(path, label="y", shuffle=False)
    pq.write_table(table.slice(0, 100), path)
    with pytest.raises(tf.errors.InvalidArgumentError, match="has changed since"):
        list(data)


def test_csv_files_with_declared_types(tmp_path):
    pa.csv.write_csv(pa.Table.from_pandas(frame(100), preserve_index=False), tmp_path / "a.csv")
    with gzip.open(tmp_path / "b.csv.gz", "wb") as file:
        buffer = io.BytesIO()
        pa.csv.write_csv(pa.Table.from_pandas(frame(50, 100), preserve_index=False), buffer)
        file.write(buffer.getvalue())
    source = Csv(tmp_path, label="y", types={"id": "int32"})
    assert source.count() == 150
    batches = list(tfopt.pipeline(source, batch_size=150))
    assert sorted(batches[0][0]["id"].numpy()) == list(range(150))
    assert batches[0][0]["id"].dtype == tf.int32
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.csv").write_text("name,y\nNA,0\nnull,1\n")
    x = next(iter(tfopt.pipeline(tmp_path / "texts", features="name", shuffle=False)))
    assert x.numpy().tolist() == [b"NA", b"null"]
    with pytest.raises(ValueError, match="No type alias for wrong"):
        Csv(tmp_path, types={"id": "wrong"}).schema()


def records(path, numbers, compression="", spoilt=()):
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for number in numbers:
            feature = {
                "id": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
                "v": tf.train.Feature(float_list=tf.train.FloatList(value=[number, number / 2])),
                "photo": tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[picture(number % 256, spoilt)])
                ),
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())


def test_images_that_cannot_be_decoded_are_named(tmp_path):
    spoilt = (290, 295)
    pictures = [picture(v % 256, () if v not in spoilt else (v % 256,)) for v in range(300)]
    table = {"photo": pictures, "y": [v % 2 for v in range(300)]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet", row_group_size=280)
    records(tmp_path / "a.tfrecord", range(256), spoilt=(20,))
    for number, content in enumerate(pictures):
        place = tmp_path / "images" / f"class_{number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:03}.png").write_bytes(content)
    images = {"photo": (4, 4, 3)}
    parquet = Parquet(tmp_path / "a.parquet", label="y", features="photo", images=images)
    folder = ImageFolder(tmp_path / "images", size=(4, 4))
    for source, named, count in (
        (parquet, "a.parquet, row group 1: the image in row 10 of 'photo' cannot", 2),
        (TFRecord(tmp_path / "a.tfrecord", images=images), "'photo' of example 20 cannot", 1),
        (folder, "class_0/290.png cannot be decoded", 2),
    ):
        with pytest.raises(UserError, match=named) as caught:
            list(source)
        assert caught.value.received.endswith(f"bad images in all: {count}")
    assert "295.png" in caught.value.fix
    inputs = keras.Input((4, 4, 3))
    model = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Flatten()(inputs)))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    job = tfopt.Job.from_model(model, tfopt.Data(train=folder))
    with pytest.raises(UserError, match=r"290.png cannot be decoded"):
        tfopt.run(job)


@pytest.mark.parametrize("ending", [".tfrecord", ".tfrecord.gz"])
def test_tfrecord_files_with_an_inferred_and_a_declared_spec(tmp_path, ending, caplog):
    for part in range(3):
        records(
            tmp_path / f"p{part}{ending}",
            range(20 * part, 20 * part + 20),
            "GZIP" if "gz" in ending else "",
        )
    source = TFRecord(tmp_path, label="id", features=("v", "photo"), images={"photo": (4, 4, 3)})
    assert source.count() == 60
    data = tfopt.pipeline(source, batch_size=16)
    first, second = (np.concatenate([y for _, y in data]) for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(60))
    assert not (first == second).all()
    x, y = next(iter(data))
    np.testing.assert_allclose(x["photo"][:, 0, 0, 0], y, atol=1e-4)
    np.testing.assert_allclose(x["v"][:, 1] * 2, y)
    assert "AutoGraph" not in caplog.text
    spec = {"id": tf.io.FixedLenFeature([], tf.int64)}
    declared = TFRecord(str(tmp_path / f"*{ending}"), features="id", spec=spec, examples=60)
    assert next(iter(tfopt.pipeline(declared, batch_size=60))).shape == (60,)
    with pytest.raises(UserError, match="no such feature"):
        tfopt.pipeline(TFRecord(tmp_path, label="missing"))


def test_a_damaged_tfrecord_and_one_of_no_bytes_are_named(tmp_path):
    records(tmp_path / "a.tfrecord", range(30))
    whole = (tmp_path / "a.tfrecord").read_bytes()
    (tmp_path / "a.tfrecord").write_bytes(whole[: len(whole) - 10])
    with pytest.raises(UserError, match=r"a\.tfrecord is damaged after 29 examples"):
        tfopt.pipeline(TFRecord(tmp_path, label="id"))
    (tmp_path / "b.tfrecord.gz").touch()
    with pytest.raises(UserError, match=r"b\.tfrecord\.gz is empty"):
        tfopt.pipeline(TFRecord(tmp_path, label="id"))


def test_hugging_face_data_on_disk(tmp_path):
    import datasets

    rows = datasets.Dataset.from_pandas(frame())
    datasets.DatasetDict({"train": rows, "test": rows.select(range(10))}).save_to_disk(tmp_path)
    assert (ids(tfopt.pipeline(rows, label="y", shuffle=False)) == np.arange(ROWS)).all()
    source = HuggingFace(tmp_path, split="train", label="y")
    assert sorted(ids(tfopt.pipeline(source))) == list(range(ROWS))
    with pytest.raises(UserError, match=r"several splits(.|\n)*train, test"):
        HuggingFace(tmp_path).count()


def test_a_tfds_that_cannot_be_imported_is_named_and_logs_nothing(tmp_path):
    package = tmp_path / "tensorflow_datasets"
    package.mkdir()
    logs = "from absl import logging\nlogging.exception(ImportError('no such protobuf'))\n"
    (package / "__init__.py").write_text(logs)  # as TFDS does
    code = (
        "import tfopt\ntry: tfopt.data.TFDS('mnist').count()\nexcept tfopt.UserError as e: print(e)"
    )
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "TensorFlow Datasets does not work here" in answer.stdout
    assert "tensorflow-metadata<1.21" in answer.stdout
    assert "no such protobuf" not in answer.stderr


def test_a_prepared_data_set_of_tfds(tfds, tmp_path):
    builder = tfds.testing.DummyDatasetSharedGenerator(data_dir=tmp_path)
    builder.download_and_prepare()
    folder = str(builder.data_path)
    data = tfopt.pipeline(folder, batch_size=8)
    epochs = [np.concatenate([x for x, _ in data]).tolist() for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(20))
    assert epochs[0] != epochs[1]
    assert int(data.cardinality()) == 3
    again = tfopt.pipeline(folder, batch_size=8)
    assert [np.concatenate([x for x, _ in again]).tolist() for _ in range(2)] == epochs
    part = TFDS(folder, split="test[:50%]", features=("x",))
    (five,) = [x["x"].tolist() for x in part]
    assert len(five) == 5
    assert set(five) < set(range(20, 30))
    for source, said in (
        (TFDS("no_such_data_set"), "knows no data set"),
        (TFDS("mnist", data_dir=tmp_path), "is not prepared"),
        (TFDS(folder, split="dev"), "no such split"),
        (TFDS(folder, label="z"), "no such feature"),
    ):
        with pytest.raises(UserError, match=said):
            tfopt.pipeline(source, batch_size=8)


def test_pandas_hands_itself_over_without_its_index(tmp_path):
    shuffled = frame().sample(frac=1, random_state=0)
    shuffled.to_parquet(tmp_path / "rows.parquet")
    for source in (shuffled, tmp_path / "rows.parquet"):
        x, _ = next(iter(tfopt.pipeline(source, label="y")))
        assert set(x) == {"id", "half", "name"}
    with pytest.raises(UserError, match="values of several types"):
        tfopt.pipeline(pd.DataFrame({"a": [1, "x"]}))
    data = tfopt.pipeline(frame(), label="y", features="half", shuffle=False)
    assert (np.concatenate([x for x, _ in data]) == np.arange(ROWS) / 2).all()
    # Nor is it one that a file can lack.
    frame().to_parquet(tmp_path / "ordered.parquet")
    assert Parquet(tmp_path, label="y").count() == 2 * ROWS


def test_dask_frames_and_arrays_on_threads_and_a_partition_that_fails():
    import dask.array
    import dask.dataframe

    parts = dask.dataframe.from_pandas(frame(), npartitions=7)
    data = tfopt.pipeline(parts, label="y")
    first, second = ids(data), ids(data)
    assert sorted(first) == sorted(second) == list(range(ROWS))
    assert not (first == second).all()
    x = dask.array.arange(100, chunks=30).reshape(50, 2)
    y = x[:, 0]
    blocks = tfopt.pipeline(
        lambda: (dask.compute(*pair) for pair in zip(x.blocks, y.blocks, strict=True)), batch_size=8
    )
    assert np.concatenate([labels for _, labels in blocks]).tolist() == list(range(0, 100, 2))
    failing = parts.map_partitions(_fail_late, meta=parts._meta)
    said = r"Partition 5 could not be computed(.|\n)*planted(.|\n)*frame\.partitions\[5\]\.compute"
    with pytest.raises(UserError, match=said):
        list(Dask(failing, label="y"))


@pytest.fixture
def small_files(tmp_path):
    """Seven files, so small that Dask joins them."""
    for part in range(7):
        rows = frame(50, 50 * part).assign(kind=pd.Categorical([f"k{part % 3}"] * 50))
        rows.to_parquet(tmp_path / f"{part}.parquet", index=False)
    return tmp_path


def test_dask_reads_each_row_of_small_files_and_unknown_categories_as_texts(small_files):
    import dask.dataframe

    read = dask.dataframe.read_parquet(small_files)
    filtered = read[["id", "half", "y"]][read["half"] > 50]
    assert sorted(ids(tfopt.pipeline(filtered, label="y"))) == list(range(101, 350))
    assert Dask(filtered).count() == 249
    x, _ = next(iter(tfopt.pipeline(Dask(read, label="y", features=("kind",)), batch_size=350)))
    assert set(x["kind"].numpy()) == {b"k0", b"k1", b"k2"}
    numbered = read.map_partitions(_numbered, meta=read._meta)
    with pytest.raises(UserError, match=r"Partition 0 does not have(.|\n)*cat\.as_known"):
        list(Dask(numbered, label="y"))


def _numbered(part):
    return part.assign(kind=pd.Categorical(range(len(part))))


@pytest.mark.slow
def test_dask_on_a_cluster():
    import dask.dataframe
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster),
    ):
        parts = dask.dataframe.from_pandas(frame(), npartitions=7)
        assert sorted(ids(tfopt.pipeline(parts, label="y"))) == list(range(ROWS))


def _fail_late(part):
    if len(part) and part["id"].iloc[0] > 700:
        raise RuntimeError("planted")
    return part


@pytest.fixture(scope="module")
def spark():
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    yield session
    session.stop()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:PySpark does not yet:FutureWarning")
def test_spark_hands_over_each_row_once_an_epoch(spark):
    rows = spark.createDataFrame(frame().to_dict("records")).repartition(3)
    source = Spark(rows, label="y")
    assert source.count() == ROWS
    data = tfopt.pipeline(source)
    assert sorted(ids(data)) == sorted(ids(data)) == list(range(ROWS))
    lists = spark.range(3).selectExpr("concat('t', id) text", "array(1.0D, id) list", "now() time")
    source = Spark(lists, features=("text", "list"), shapes={"list": (2,)})
    (x,) = tfopt.pipeline(source, shuffle=False).as_numpy_iterator()
    assert list(x["text"]) == [b"t0", b"t1", b"t2"]
    assert x["list"].tolist() == [[1, 0], [1, 1], [1, 2]]
    bad = rows.selectExpr("id", "int(raise_error(concat('planted', id))) as y").filter(
        "y is not null"
    )
    with pytest.raises(UserError, match=r"could not be read(.|\n)*received: .*planted"):
        Spark(bad, label="y").count()


def small_job(train, **settings):
    def build():
        inputs = {"id": keras.Input((1,), name="id"), "half": keras.Input((1,), name="half")}
        joined = keras.layers.concatenate(list(inputs.values()))
        return keras.Model(inputs, keras.layers.Dense(3)(joined))

    def compile():
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return {"optimizer": "sgd", "loss": loss, "metrics": ["accuracy"]}

    columns = {} if isinstance(train, Dask) else {"label": "y", "features": ("id", "half")}
    data = lambda: tfopt.Data(train, test=train, **columns)  # noqa: E731
    return tfopt.Job(build=build, data=data, compile=compile, **settings)


def test_a_job_and_a_chain_name_their_data(parquet):
    outcome = tfopt.run(small_job(str(parquet), batch_size=100, epochs=2))
    assert int(outcome.model.optimizer.iterations) == 20
    assert "1000 examples of Parquet" in repr(outcome)
    few = str(parquet / "part-0.parquet")
    chained = tfopt.Pipeline(source=few, label="y", features=("id", "half"), batch_size=50)
    assert eval(repr(chained), {"Pipeline": tfopt.Pipeline}) == chained
    outcome = tfopt.run(small_job(str(parquet)), chained)
    assert int(outcome.model.optimizer.iterations) == 5
    steps = tfopt.run(small_job(str(parquet), batch_size=100, epochs=3, steps_per_epoch=4))
    assert int(steps.model.optimizer.iterations) == 12


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda folder: tfopt.pipeline(folder / "no.parquet"), "no such file or folder"),
        (lambda folder: tfopt.pipeline(folder / "no.xyz"), r"no.xyz does not exist(.|\n)*look in "),
        (lambda folder: tfopt.pipeline(folder, label="z"), "names a missing column"),
        (lambda folder: tfopt.pipeline(folder, label="nmae"), "did you mean name"),
        (lambda folder: tfopt.pipeline(folder, label="name"), "needs classes="),
        (lambda folder: tfopt.pipeline((np.ones(3),), label="y"), "need data with columns"),
        (lambda folder: tfopt.Pipeline(label="y"), "columns of source="),
        (lambda folder: Parquet(folder, images={"a": (3, 3)}), "not that of an image"),
        (lambda folder: Parquet(folder, stack=True).layout(), "needs numeric features"),
        (lambda folder: tfopt.pipeline(Parquet(folder, weight="half")), "weight needs label"),
        (
            lambda folder: Parquet(folder, fill={"id": 0.5}).layout(),
            "no valid value for the column",
        ),
        (lambda folder: Dask(frame()).schema(), "Dask takes a DataFrame"),
        (lambda folder: HuggingFace(folder).count(), "not a saved data set"),
        (lambda folder: tfopt.pipeline(DAYS, label="y"), "'day' has a type that cannot become"),
    ],
)
def test_what_cannot_be_read_is_refused(parquet, call, said):
    with pytest.raises(UserError, match=said):
        call(parquet)
