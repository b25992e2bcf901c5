"""Batches: which texts share one, the bounded queue, cancelled and failed requests."""

import asyncio
import threading
from collections.abc import Iterator, Sequence

import pytest

from homespun.errors import UserError
from homespun.serving import batching
from homespun.serving.batching import Batcher, BatchSizes
from homespun.serving.errors import ApiError


class Doubler:
    """Doubles numbers, when it may."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.may = threading.Event()
        self.may.set()

    def __call__(self, numbers: Sequence[int]) -> list[int]:
        self.may.wait(10)
        self.batches.append(list(numbers))
        if -1 in numbers:
            raise UserError("-1 cannot be doubled")
        if -2 in numbers:
            raise ZeroDivisionError
        return [2 * number for number in numbers]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def double() -> Doubler:
    return Doubler()


@pytest.fixture
def batcher() -> Iterator[Batcher]:
    made = Batcher(max_queue=8, max_wait=0.0, batch_tokens=4)
    made.start()
    yield made
    made.close()


async def blocked(batcher: Batcher, double: Doubler) -> asyncio.Future[list[int]]:
    """A request whose batch is being computed, and waits."""
    double.may.clear()
    first = batcher.submit(double, [100], [1])
    while batcher.queue_length:
        await asyncio.sleep(0.001)
    return first


@pytest.mark.anyio
async def test_texts_that_came_during_a_batch_share_the_next(batcher: Batcher, double: Doubler) -> None:
    first = await blocked(batcher, double)
    others = [batcher.submit(double, [number, -number - 3], [1, 1]) for number in range(3)]
    double.may.set()
    assert await first == [200]
    assert await asyncio.gather(*others) == [[2 * n, 2 * (-n - 3)] for n in range(3)]
    assert double.batches == [[100], [0, -3, 1, -4], [2, -5]]


@pytest.mark.anyio
async def test_a_batch_has_the_oldest_texts_up_to_its_tokens(batcher: Batcher, double: Doubler) -> None:
    first = await blocked(batcher, double)
    others = [batcher.submit(double, [tokens], [tokens]) for tokens in (1, 2, 2, 1, 7, 1)]
    double.may.set()
    await asyncio.gather(first, *others)
    assert double.batches == [[100], [1, 2], [2, 1], [7], [1]]


@pytest.mark.anyio
async def test_workers_share_the_texts_that_wait(double: Doubler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "_LEAST", 2)
    batcher = Batcher(max_queue=20, max_wait=0.05, batch_tokens=12, workers=2)

    futures = [batcher.submit(double, [number], [1]) for number in range(12)]
    batcher.start()
    await asyncio.gather(*futures)
    batcher.close()
    assert sorted(map(len, double.batches)) == [1, 2, 3, 6]


@pytest.mark.anyio
async def test_idle_workers_share_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "_LEAST", 2)
    both = threading.Barrier(2)

    def compute(numbers: Sequence[int]) -> list[int]:
        both.wait(5)  # raises unless the other worker computes too
        return list(numbers)

    batcher = Batcher(max_queue=4, max_wait=0.0, batch_tokens=4, workers=2)
    batcher.start()
    await asyncio.sleep(0.05)  # both workers wait
    assert await batcher.submit(compute, [1, 2, 3, 4], [1] * 4) == [1, 2, 3, 4]
    batcher.close()


@pytest.mark.anyio
async def test_other_work_is_another_batch(batcher: Batcher, double: Doubler) -> None:
    first, other = await blocked(batcher, double), Doubler()
    futures = [batcher.submit(one, [number], [1]) for number, one in enumerate([double, other, double, other])]
    double.may.set()
    assert await asyncio.gather(first, *futures) == [[200], [0], [2], [4], [6]]
    assert other.batches == [[1, 3]]
    assert double.batches == [[100], [0, 2]]


@pytest.mark.anyio
async def test_a_full_queue_refuses(batcher: Batcher, double: Doubler) -> None:
    first = await blocked(batcher, double)
    others = [batcher.submit(double, list(range(4)), [1] * 4) for _ in range(2)]
    with pytest.raises(ApiError) as error:
        batcher.submit(double, [1], [1])
    assert error.value.status_code == 429
    assert error.value.headers == {"Retry-After": "1"}
    double.may.set()
    await asyncio.gather(first, *others)
    assert await batcher.submit(double, [1], [1]) == [2]


@pytest.mark.anyio
async def test_cancelled_requests_leave_the_queue(batcher: Batcher, double: Doubler) -> None:
    first = await blocked(batcher, double)
    kept, gone = batcher.submit(double, [1], [1]), batcher.submit(double, [2, 3], [1, 1])
    gone.cancel()
    await asyncio.sleep(0)
    assert batcher.queue_length == 1
    double.may.set()
    assert await asyncio.gather(first, kept) == [[200], [2]]
    assert double.batches == [[100], [1]]


@pytest.mark.anyio
@pytest.mark.parametrize(("number", "kind"), [(-1, ApiError), (-2, ZeroDivisionError)])
async def test_only_the_request_that_failed_gets_the_error(
    batcher: Batcher, double: Doubler, number: int, kind: type[Exception]
) -> None:
    first = await blocked(batcher, double)
    futures = [batcher.submit(double, [one], [1]) for one in (1, number, 3)]
    double.may.set()
    assert await first == [200]
    good, bad, other = await asyncio.gather(*futures, return_exceptions=True)
    assert (good, other) == ([2], [6])
    assert isinstance(bad, kind)


@pytest.mark.anyio
async def test_a_batch_waits_for_more_texts_only_for_the_deadline(double: Doubler) -> None:
    sizes: list[BatchSizes] = []
    batcher = Batcher(max_queue=8, max_wait=0.2, batch_tokens=3, observe=sizes.append)
    batcher.start()

    loop = asyncio.get_running_loop()
    start = loop.time()
    alone = batcher.submit(double, [1], [1])
    await asyncio.sleep(0.02)
    assert await asyncio.gather(alone, batcher.submit(double, [2], [1])) == [[2], [4]]
    assert loop.time() - start > 0.15
    start = loop.time()
    assert await batcher.submit(double, [1, 2, 3], [1, 1, 1]) == [2, 4, 6]
    assert loop.time() - start < 0.15
    batcher.close()
    assert [(one.texts, one.tokens) for one in sizes] == [(2, 2), (3, 3)]


@pytest.mark.anyio
async def test_a_closed_batcher_refuses(batcher: Batcher, double: Doubler) -> None:
    first = await blocked(batcher, double)
    waiting = batcher.submit(double, [1], [1])
    threading.Timer(0.05, double.may.set).start()
    await asyncio.to_thread(batcher.close)
    assert await first == [200]
    for request in (lambda: waiting, lambda: batcher.submit(double, [1], [1])):
        with pytest.raises(ApiError) as error:
            await request()
        assert error.value.status_code == 503


@pytest.mark.anyio
async def test_texts_that_would_be_answered_too_late_are_refused(batcher: Batcher, double: Doubler) -> None:
    batcher.max_delay = 0.05
    first = await blocked(batcher, double)
    await asyncio.sleep(0.1)  # for one token
    double.may.set()
    assert await first == [200]
    second = await blocked(batcher, double)
    waiting = batcher.submit(double, [1], [100])  # nothing waits before it
    with pytest.raises(ApiError) as refused:
        batcher.submit(double, [2], [1])
    assert refused.value.status_code == 429
    double.may.set()
    assert await asyncio.gather(second, waiting) == [[200], [2]]
