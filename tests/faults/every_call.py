"""Every system call that a verb makes on its output fails in turn, once and then for ever: each time one clear error, and nothing is lost.
Interrupted by a signal, it is made again.

Usage: every_call.py PROGRAM SHIM [--all] [--verb NAME]      without --all: a spread of the calls, for every day
"""

import errno
import sys
from contextlib import contextmanager

from campaign import campaign

SHIM = sys.argv[2]
MODES = [(ever, error) for ever in (False, True) for error in (errno.EIO, errno.ENOSPC)] + [(False, errno.EINTR)]
STATUSES = {errno.EIO: (1, 2, 3, 4), errno.ENOSPC: (2, 3, 4), errno.EINTR: ()}  # a full disk is 4; a signal goes unnoticed


@contextmanager
def failing(verb, here):
    def fail(at, mode):
        ever, error = mode
        done = verb.run(here, {"LD_PRELOAD": SHIM, "FAIL_UNDER": f"{here}/work", "FAIL_COUNT": f"{here}/count", "FAIL_AT": str(at),
                               "FAIL_EVER": str(int(ever)), "FAIL_WITH": str(error)})
        return done.returncode, done.stderr

    yield fail


def describe(at, mode):
    ever, error = mode
    return f"call {at}{' and all after it' if ever else ''} fails with {errno.errorcode[error]}"


if __name__ == "__main__":
    sys.exit(campaign(failing, describe, MODES, spread=12, statuses=lambda mode: STATUSES[mode[1]]))
