"""Jobs whose batch size is searched for, and facts of one."""

from dataclasses import replace

import keras
import numpy as np
from keras import layers

from tfopt import Data, Job
from tfopt.measure.job_facts import JobFacts


def plain():
    return {"optimizer": "adam", "loss": "mse", "jit_compile": False}


def small() -> Job:
    def build():
        return keras.Sequential([keras.Input((4,)), layers.Dense(1)])

    def data():
        return Data(train=(np.ones((200, 4), "float32"), np.ones((200, 1), "float32")))

    return Job(build=build, data=data, compile=plain)


def greedy() -> Job:
    def meets():
        np.zeros((1 << 24, 1 << 24), "float32")

    return small().with_(build=meets)


def broken() -> Job:
    def loss(y, predicted):
        raise ValueError("the loss has no head")

    return small().with_(compile=lambda: {"loss": loss})


def facts(**changes) -> JobFacts:
    """Facts of a small job, made up."""
    from made_machine import FACTS

    small = {"half": None, "steps_per_epoch": 7, "epochs": 1, "examples": 200, "tested": False}
    return replace(FACTS, **{**small, "epoch_examples": 200, **changes})
