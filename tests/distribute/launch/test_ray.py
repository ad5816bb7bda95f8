"""``tfopt.distribute`` on the workers of Ray Train, which sets TF_CONFIG for them."""

import json

import pytest

from .conftest import wait_until

TRAINED = """
    import json, pathlib

    import numpy as np
    import ray
    from ray.train import ScalingConfig
    from ray.train.tensorflow import TensorflowTrainer

    def train(config):
        import contextlib
        import keras
        import tfopt

        keras.utils.set_random_seed(0)
        around = tfopt.distribute() if config["distributed"] else contextlib.nullcontext()
        with around:
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        x = np.random.default_rng(0).random((32, 4), dtype="float32")
        model.fit(x, x.sum(1), batch_size=8, epochs=2, shuffle=False, verbose=0)
        return model.get_weights()[0][:, 0].tolist()

    def on_ray(config):
        weights = train(config)
        rank = ray.train.get_context().get_world_rank()
        (pathlib.Path(config["folder"]) / f"{rank}.json").write_text(json.dumps(weights))

    ray.init(num_cpus=2, object_store_memory=100_000_000, include_dashboard=False)
    trainer = TensorflowTrainer(
        on_ray,
        train_loop_config={"distributed": True, "folder": str(pathlib.Path.cwd())},
        scaling_config=ScalingConfig(num_workers=2),
    )
    trainer.fit()
    print(json.dumps(train({"distributed": False})))
"""


@pytest.mark.slow
def test_workers_of_ray_train_train_the_weights_of_one_device(launcher):
    pytest.importorskip("ray.train.tensorflow")
    status, out, err = launcher.run(
        "--workers 1 --grace 60",
        code=TRAINED,
        environment={"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"},
    )
    assert status == 0, err
    wait_until(lambda: launcher.living() == [])
    (line,) = [line for line in out.splitlines() if line.startswith("[worker 0] [")]
    alone = json.loads(line.partition("] ")[2])
    for rank in range(2):
        weights = json.loads((launcher.folder / f"{rank}.json").read_text())
        assert weights == pytest.approx(alone, rel=1e-5)
