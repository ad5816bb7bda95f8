"""Workers of tf.distribute itself, started by the launcher."""

import pytest


@pytest.mark.slow
def test_workers_of_tensorflow_reach_each_other_past_a_proxy(launcher):
    """Without no_grpc_proxy both would wait for ever: gRPC asks the proxy for 127.0.0.1 too."""
    nowhere = "http://127.0.0.1:9"
    code, out, err = launcher.run(
        "--workers 2",
        environment={"http_proxy": nowhere, "https_proxy": nowhere},
        code="""
            import tensorflow as tf

            strategy = tf.distribute.MultiWorkerMirroredStrategy()
            mine = strategy.cluster_resolver.task_id + 1.0

            @tf.function
            def added():
                replica = tf.distribute.get_replica_context
                return strategy.run(lambda: replica().all_reduce("SUM", tf.constant(mine)))

            print("sum", float(added()))
        """,
    )
    assert code == 0, err
    assert {"[worker 0] sum 3.0", "[worker 1] sum 3.0"} <= set(out.splitlines())
