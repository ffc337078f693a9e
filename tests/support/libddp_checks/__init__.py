"""Checks of the package libddp that ranks run (../libddp_job.py): each is a function of the World and its group."""

CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


def raises(kind, call, *arguments, words="", **named):
    """The exception of this kind, with these words in it, that the call must raise."""
    try:
        call(*arguments, **named)
    except kind as error:
        expect(words in str(error), f"no '{words}' in: {error}")
        return error
    raise AssertionError(f"no {kind.__name__} by {call}")
