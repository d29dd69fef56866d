"""Every allocation that a verb makes fails in turn, once and then for ever: each time one clear error, and nothing is lost.

Usage: every_allocation.py PROGRAM SHIM [--all | --every N] [--verb NAME] [--from N]      without: a spread of the allocations, for every day
The command line's own allocations come first, and are nearly the same in each verb: --from leaves them out.
"""

import os
import subprocess
import sys
from contextlib import contextmanager

from campaign import campaign
from verbs import PROGRAM

SHIM = sys.argv[2]


@contextmanager
def failing(verb, here):
    """Loaded and linked once, which takes longer than most verbs: the library forks at main, for each failure."""
    said = here / "said"
    environment = os.environ | {"LD_PRELOAD": SHIM, "FAIL_SAID": str(said), "FAIL_COUNT": f"{here}/count"}
    with subprocess.Popen([PROGRAM, *verb.command(here)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
                          env=environment) as forking:
        def fail(at, ever):
            forking.stdin.write(f"{at} {int(ever)}\n")
            return int(forking.stdout.readline()), said.read_text()

        yield fail


def describe(at, ever):
    return f"allocation {at}{' and all after it' if ever else ''} fails"


if __name__ == "__main__":
    sys.exit(campaign(failing, describe, [False, True], spread=12, statuses=lambda _: (1, 4)))
