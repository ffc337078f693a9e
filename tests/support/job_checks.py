"""Programs of checks: their table by name, and how they run those that the command line names."""

import sys

CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


def refused(kind, call, *words):
    """The exception of this kind, with these words in it, that the call must raise."""
    try:
        call()
    except kind as error:
        assert all(each in str(error) for each in words), error
        return error
    raise AssertionError(f"no {kind.__name__} with {words}")


def say_checked(name, *rank):
    # one write, as the lines of several ranks meet in one stream
    sys.stdout.write(" ".join(["CHECKED", name, *map(str, rank)]) + "\n")
    sys.stdout.flush()


def run_checks(rank, *others):
    """Each with these arguments."""
    for name in sys.argv[1:]:
        CHECKS[name](rank, *others)
        say_checked(name, rank)
