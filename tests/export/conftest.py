"""Exports of a test module share one process that writes files: it takes seconds to begin."""

import contextlib
import importlib

import pytest

from tfopt.subprocesses import Child


@pytest.fixture(scope="module", autouse=True)
def one_child():
    with Child() as child, pytest.MonkeyPatch.context() as patch:
        export = importlib.import_module("tfopt.export.export")
        patch.setattr(export, "Child", lambda gpu: contextlib.nullcontext(child))
        yield
