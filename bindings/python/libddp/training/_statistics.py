"""Statistics of many numbers in bounded memory, which can be merged with those of other ranks."""

from __future__ import annotations

import copy
import dataclasses
import math
import random
from collections.abc import Sequence

LIMIT = 10_000
"""Values that are kept of a series; beyond, a uniform sample of all values (reservoir sampling, Li's algorithm L)."""


@dataclasses.dataclass(frozen=True)
class Statistics:
    """What is known of a metric's values, in seconds.

    The variance is that of a sample, divided by count - 1: NaN for one value. Percentiles interpolate linearly; beyond
    10,000 values of a rank they are those of a uniform sample.
    """

    count: int
    """Values of all ranks."""
    min: float
    """The least."""
    max: float
    """The greatest."""
    mean: float
    """Their mean."""
    variance: float
    """In seconds squared."""
    stdev: float
    """The variance's root."""
    p50: float
    """The median."""
    p95: float
    """The 95th percentile."""
    p99: float
    """The 99th percentile."""
    slowest_rank: int | None
    """The rank with the largest mean."""


class Series:
    """The values of one metric: the first LIMIT, or a sample as large, and running moments. One thread folds at a time."""

    def __init__(self) -> None:
        self.fresh: list[float] = []
        """Append values to it, from any thread; fold() when it is long."""
        self._kept: list[float] = []
        self._moments = Moments()
        self._random = random.Random(0).random
        self._share, self._next = 1.0, -1  # algorithm L: how many values until one that replaces another; below 0: not begun

    def fold(self) -> None:
        """Takes what is fresh into the moments and the sample."""
        number = len(self.fresh)
        values = self.fresh[:number]
        del self.fresh[:number]  # a thread may be appending
        self._moments.merge(Moments.of(values))
        room = LIMIT - len(self._kept)
        self._kept += values[:room]
        place = max(room, 0)
        if len(self._kept) == LIMIT:
            self._sample(values, place)

    def _sample(self, values: list[float], place: int) -> None:
        """Replaces kept values, with falling probability, by those from a place on."""
        kept, draw, log, log1p = self._kept, self._random, math.log, math.log1p
        share, following, count = self._share, self._next, len(values)
        if following < 0:
            share = draw() ** (1 / LIMIT)
            following = int(log(draw()) / log1p(-share))
        place += following
        while place < count:
            kept[int(draw() * LIMIT)] = values[place]
            share *= draw() ** (1 / LIMIT)
            place += 1 + int(log(draw()) / log1p(-share))
        self._share, self._next = share, place - count

    def values(self) -> list[float]:
        """All, or the sample. Fold before."""
        return list(self._kept)

    def summary(self, rank: int | None) -> Summary:
        """A copy of what is known. Fold before."""
        moments = copy.copy(self._moments)
        return Summary(moments, [(list(self._kept), moments.count)], rank, moments.mean)


class Moments:
    """Count, extremes, mean and the sum of squared deviations, merged by Chan's formula."""

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0, 0.0, 0.0
        self.min, self.max = math.inf, -math.inf

    @staticmethod
    def of(values: Sequence[float]) -> Moments:
        made = Moments()
        if values:
            made.count, made.mean = len(values), math.fsum(values) / len(values)
            made.squares = math.dist(values, [made.mean] * len(values)) ** 2  # ten times as fast as a sum in Python, and as exact
            made.min, made.max = min(values), max(values)
        return made

    def merge(self, other: Moments) -> None:
        count = self.count + other.count
        if other.count == 0:
            return
        distance = other.mean - self.mean
        self.squares += other.squares + distance * distance * self.count * other.count / count
        self.mean += distance * other.count / count
        self.count, self.min, self.max = count, min(self.min, other.min), max(self.max, other.max)

    @property
    def variance(self) -> float:
        return self.squares / (self.count - 1) if self.count > 1 else math.nan


class Summary:
    """A metric on one rank or several, as they exchange it."""

    def __init__(self, moments: Moments, samples: list[tuple[list[float], int]], rank: int | None, largest: float) -> None:
        self._moments = moments
        self._samples = samples  # each with the number of values that it stands for
        self._rank, self._largest = rank, largest

    def copy(self) -> Summary:
        return Summary(copy.copy(self._moments), list(self._samples), self._rank, self._largest)

    def merge(self, other: Summary) -> None:
        self._moments.merge(other._moments)
        self._samples = self._samples + other._samples
        if other._largest > self._largest:
            self._rank, self._largest = other._rank, other._largest

    def thinned(self, limit: int) -> Summary:
        """The same with at most `limit` values of each sample, evenly spaced in order of size: what ranks exchange."""
        samples = [(_quantiles(sorted(values), limit) if len(values) > limit else values, count)
                   for values, count in self._samples]
        return Summary(self._moments, samples, self._rank, self._largest)

    def statistics(self) -> Statistics:
        moments = self._moments
        p50, p95, p99 = _percentiles(self._samples, (0.5, 0.95, 0.99))
        return Statistics(moments.count, moments.min, moments.max, moments.mean, moments.variance, math.sqrt(moments.variance),
                          p50, p95, p99, self._rank)


def _quantiles(ordered: Sequence[float], number: int) -> list[float]:
    last = len(ordered) - 1
    return [ordered[round(place * last / (number - 1))] for place in range(number)]


def _percentiles(samples: list[tuple[list[float], int]], parts: Sequence[float]) -> list[float]:
    """By cumulated weights, where each value stands for its share of what was counted."""
    weighted = sorted((value, count / len(values)) for values, count in samples for value in values)
    places, total = [], 0.0  # of each value's middle
    for _, weight in weighted:
        places.append(total + weight / 2)
        total += weight
    found = []
    for part in parts:
        wanted = places[0] + part * (places[-1] - places[0])
        upper = next((number for number, place in enumerate(places) if place >= wanted), len(places) - 1)
        lower = max(upper - 1, 0)
        gap = places[upper] - places[lower]
        share = (wanted - places[lower]) / gap if gap > 0 else 1.0
        low, high = weighted[lower][0], weighted[upper][0]
        found.append(low + (high - low) * share)
    return found
