"""Medians, their spread, and ratios of two contenders measured in turn."""

import statistics


class Spread:
    """Median, quartiles, minimum and maximum of repeated measurements."""

    def __init__(self, values):
        ordered = sorted(values)
        self.median = statistics.median(ordered)
        self.least, self.greatest = ordered[0], ordered[-1]
        if len(ordered) > 1:
            self.lower, _, self.upper = statistics.quantiles(ordered, n=4, method="inclusive")
        else:
            self.lower = self.upper = self.median

    def scaled(self, factor, digits):
        """"median (lower..upper)", each times factor."""
        numbers = [f"{value * factor:.{digits}f}" for value in (self.median, self.lower, self.upper)]
        return f"{numbers[0]} ({numbers[1]}..{numbers[2]})"


class Ratio:
    """Ratio of the medians, and the quartiles of the ratios within each round.

    Both lists are in the order of the rounds. A disturbance longer than a round hits both contenders of that round and
    cancels out of its ratio.
    """

    def __init__(self, ours, theirs):
        if len(ours) != len(theirs):
            raise ValueError(f"{len(ours)} measurements cannot be paired with {len(theirs)}")
        self.of_medians = statistics.median(ours) / statistics.median(theirs)
        self.paired = Spread([a / b for a, b in zip(ours, theirs)])

    def __str__(self):
        return f"{self.of_medians:.2f} ({self.paired.lower:.2f}..{self.paired.upper:.2f})"


def table(header, rows):
    """A Markdown table: first column left-aligned, all others right-aligned numbers."""
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join([":--"] + ["--:"] * (len(header) - 1)) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)
