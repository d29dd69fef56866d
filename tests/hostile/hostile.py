"""Broken files of every kind through the command line: each must give its exact error line and exit status, at once.

Usage: hostile.py PROGRAM            check
       hostile.py PROGRAM --print    show what each file gives, for a new case

A case is (name, make, verb, status, line): `make(here, program)` writes files into the empty folder `here`; `verb` is the command line;
`line` is what stands behind "cistron: error: ". In both, @ is the folder. Status 0: the file is odd and legal, and the last line of
standard output begins with `line`.
"""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import checkpoints
import configurations
import models
import sequences
import stores

SECONDS = 20  # that a refusal may take


def run(program, case, print_only):
    name, make, verb, status, line = case
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        make(Path(folder), program)
        start = time.monotonic()
        done = subprocess.run([program, *verb.replace("@", folder).split()], capture_output=True, timeout=300)
        seconds = time.monotonic() - start
        text = (done.stdout if done.returncode == 0 else done.stderr).decode("utf-8", "backslashreplace").replace(folder, "@")
        text = re.sub(r"\d+ available", "N available", text)  # of this machine's memory
        lines = [each for each in text.splitlines() if done.returncode == 0 or each.startswith("cistron: error: ")]
        got = lines[-1].removeprefix("cistron: error: ") if lines else ""
        if print_only:
            print(f"{name}\n    {done.returncode} {got}")
            return True
        right = got.startswith(line) if status == 0 else got == line and len(lines) == 1 and done.stdout == b""
        good = done.returncode == status and right and seconds < SECONDS
        good = good and not [left for left in Path(folder).rglob("*.partial")]
        if not good:
            print(f"FAILED {name}\n  wanted {status} {line}\n  got    {done.returncode} {got}  ({seconds:.1f} s)")
            print("  left behind:", [str(left) for left in Path(folder).rglob("*.partial")])
        return good


def main():
    program, print_only = sys.argv[1], "--print" in sys.argv
    cases = [case for kind in (models, sequences, stores, checkpoints, configurations) for case in kind.CASES]
    names = [case[0] for case in cases]
    assert len(set(names)) == len(names), "a name stands twice"
    failed = [case[0] for case in cases if not run(program, case, print_only)]
    print(f"{len(cases)} files, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
