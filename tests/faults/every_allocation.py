"""Every allocation that a verb makes fails in turn, once and then for ever: each time one clear error, and nothing is lost.

Usage: every_allocation.py PROGRAM SHIM [--all | --every N]      without: a spread of the allocations, for every day
"""

import sys

from verbs import campaign

SHIM = sys.argv[2]


def settings(_, at, ever):
    return {"LD_PRELOAD": SHIM, "FAIL_AT": str(at), "FAIL_EVER": str(int(ever))}


def describe(at, ever):
    return f"allocation {at}{' and all after it' if ever else ''} fails"


if __name__ == "__main__":
    sys.exit(campaign(settings, describe, [False, True], spread=12, statuses=lambda _: (1, 4)))
