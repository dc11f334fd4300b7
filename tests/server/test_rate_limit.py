from __future__ import annotations

from dippm.server import rate_limit
from dippm.server.rate_limit import RateLimit


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_passes_and_then_the_rate_holds() -> None:
    clock = Clock()
    limit = RateLimit(per_s=5, clock=clock)
    assert [limit.take("a") for _ in range(10)] == 10 * [0.0]
    assert limit.take("a") == 0.2
    assert limit.take("b") == 0.0
    clock.now += 0.2
    assert limit.take("a") == 0.0
    assert limit.take("a") > 0
    clock.now += 1000
    assert sum(limit.take("a") == 0.0 for _ in range(100)) == 10


def test_a_slow_rate_lets_one_through() -> None:
    clock = Clock()
    limit = RateLimit(per_s=0.1, clock=clock)
    assert limit.take("a") == 0.0
    assert limit.take("a") == 10.0


def test_no_rate_lets_everything_through() -> None:
    limit = RateLimit(per_s=0)
    assert all(limit.take("a") == 0.0 for _ in range(1000))


def test_the_number_of_clients_is_bounded() -> None:
    limit = RateLimit(per_s=1, clock=Clock())
    for number in range(rate_limit._MOST_CLIENTS + 50):
        limit.take(str(number))
    assert len(limit._buckets) == rate_limit._MOST_CLIENTS
