"""A stand-in for Ray."""

from collections.abc import Iterator

import numpy as np


class InProcess:
    """The functions of Ray that a build calls, one after the other in this process."""

    class data:
        class DataContext:
            @staticmethod
            def get_current() -> "InProcess.data.DataContext":
                return InProcess.data.DataContext()

        class context:
            class ShuffleStrategy:
                SORT_SHUFFLE_PULL_BASED = "sort"

        @staticmethod
        def from_items(items: list[dict[str, int]], override_num_blocks: int) -> "Rows":
            return Rows([{"unit": np.array([item["unit"]])} for item in items])

    class exceptions:
        class RayError(Exception):
            cause: Exception | None = None

    @staticmethod
    def remote(num_cpus: int):
        return lambda function: type("Task", (), {"remote": staticmethod(function)})

    @staticmethod
    def put(value: object) -> object:
        return value

    @staticmethod
    def cluster_resources() -> dict[str, float]:
        return {"CPU": 2.0}

    @staticmethod
    def wait(running: list[str]) -> tuple[list[str], list[str]]:
        return running[-1:], running[:-1]  # in another order

    @staticmethod
    def get(done: list[str]) -> list[str]:
        return done


class Rows:
    def __init__(self, batches: list[dict[str, np.ndarray]]) -> None:
        self.batches = batches

    def map_batches(self, function, *, fn_kwargs, batch_size, batch_format) -> "Rows":
        return Rows([made for batch in self.batches for made in function(batch, **fn_kwargs)])

    def groupby(self, name: str) -> "Rows":
        if not self.batches:
            return self
        whole = {key: np.concatenate([batch[key] for batch in self.batches]) for key in self.batches[0]}
        order = np.random.default_rng(1).permutation(len(whole[name]))  # a shuffle keeps no order
        whole = {key: values[order] for key, values in whole.items()}
        buckets = [whole[name] == bucket for bucket in np.unique(whole[name])]
        return Rows([{key: values[mine] for key, values in whole.items()} for mine in buckets])

    def map_groups(self, function, *, batch_format, fn_kwargs=None) -> "Rows":
        return Rows([function(batch, **(fn_kwargs or {})) for batch in self.batches])

    def iter_batches(self, *, batch_size, batch_format) -> Iterator[dict[str, np.ndarray]]:
        return iter(self.batches)
