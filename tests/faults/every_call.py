"""Every system call that a verb makes on its output fails in turn, once and then for ever: each time one clear error, and nothing is lost.
Interrupted by a signal, it is made again.

Usage: every_call.py PROGRAM SHIM [--all]      without --all: a spread of the calls, for every day
"""

import errno
import sys

from verbs import campaign

SHIM = sys.argv[2]
MODES = [(ever, error) for ever in (False, True) for error in (errno.EIO, errno.ENOSPC)] + [(False, errno.EINTR)]
STATUSES = {errno.EIO: (1, 2, 3, 4), errno.ENOSPC: (2, 3, 4), errno.EINTR: ()}  # a full disk is 4; a signal goes unnoticed


def settings(here, at, mode):
    ever, error = mode
    return {"LD_PRELOAD": SHIM, "FAIL_UNDER": f"{here}/work", "FAIL_AT": str(at), "FAIL_EVER": str(int(ever)), "FAIL_WITH": str(error)}


def describe(at, mode):
    ever, error = mode
    return f"call {at}{' and all after it' if ever else ''} fails with {errno.errorcode[error]}"


if __name__ == "__main__":
    sys.exit(campaign(settings, describe, MODES, spread=12, statuses=lambda mode: STATUSES[mode[1]]))
