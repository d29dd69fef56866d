"""Every system call that a verb makes on its output fails in turn, once and then for ever: each time one clear error, and nothing is lost.

Usage: every_call.py PROGRAM SHIM [--all]      without --all: a spread of the calls, for every day
"""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "cli"))

from support import metrics, write_config, write_fasta

PROGRAM, SHIM = sys.argv[1:3]
ALL = "--all" in sys.argv
SPREAD = 12  # calls of each verb that fail, every day


class Verb:
    """A command whose output is `out`. `prepare` puts the folder into the state before it; `whole` says whether `out` is what it should
    be, and `kept` whether what was there before is still good."""

    def __init__(self, name, command, before, whole, kept):
        self.name, self.command, self.before, self.whole, self.kept = name, command, before, whole, kept
        self.ran = self.refused = 0

    def run(self, here, at=0, ever=False, error=errno.EIO):
        settings = {"LD_PRELOAD": SHIM, "FAIL_UNDER": f"{here}/work", "FAIL_AT": str(at), "FAIL_EVER": "1" if ever else "0",
                    "FAIL_WITH": str(error), "FAIL_COUNT": f"{here}/count"}
        return subprocess.run([PROGRAM, *self.command(here)], capture_output=True, text=True, timeout=120, env=os.environ | settings)

    def calls(self, here):
        self.before(here)
        done = self.run(here)
        assert done.returncode == 0, done.stderr
        assert self.whole(here), f"{self.name}: not whole without any failure"
        return int((here / "count").read_text())

    def fail(self, here, at, ever, error):
        self.before(here)
        done = self.run(here, at, ever, error)
        where = f"{self.name}: call {at}{' and all after it' if ever else ''} fails with {errno.errorcode[error]}"
        if done.returncode == 0:
            assert self.whole(here), f"{where}: said to be done, and is not whole\n{done.stderr}"
        else:
            lines = [line for line in done.stderr.splitlines() if line.startswith("cistron: error: ")]
            assert done.returncode in (1, 2, 3, 4), f"{where}: exit {done.returncode}\n{done.stderr}"
            assert error != errno.ENOSPC or done.returncode != 1, f"{where}: a full disk is exit 4\n{done.stderr}"
            assert len(lines) == 1, f"{where}: {done.stderr}"
            assert self.whole(here) or self.kept(here), f"{where}: what was there before is lost\n{done.stderr}"
        self.refused += done.returncode != 0
        again = self.run(here) if not self.whole(here) else None
        assert again is None or again.returncode == 0, f"{where}: it cannot be done again\n{again.stderr}"
        assert self.whole(here), f"{where}: done again, it is not whole"


def ok(*command):
    done = subprocess.run([PROGRAM, *map(str, command)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    return done.stdout


def fresh(here, *copies):
    """An empty work folder, with copies of these."""
    shutil.rmtree(here / "work", ignore_errors=True)
    (here / "work").mkdir()
    for name in copies:
        shutil.copytree(here / name, here / "work" / name)


def same(a, b):
    names = sorted(path.relative_to(a) for path in a.rglob("*") if path.is_file())
    return a.is_dir() and names == sorted(path.relative_to(b) for path in b.rglob("*") if path.is_file()) and all(
        (a / name).read_bytes() == (b / name).read_bytes() for name in names)


def latest(run):
    """The step of the checkpoint that a reader finds; None where it finds none."""
    done = subprocess.run([PROGRAM, "info", run, "--json"], capture_output=True, text=True, timeout=120)
    return json.loads(done.stdout)["checkpoint_step"] if done.returncode == 0 else None


def make_material(here):
    write_fasta(here / "a.fasta", 40)
    ok("prepare", here / "a.fasta", "--tokenizer", "esm2", "--out", here / "store", "--valid-fraction", "0.2", "--quiet")
    write_config(here / "run.toml", here / "store", train__steps=6, train__checkpoint_every=2, train__validate_every=3)
    ok("train", here / "run.toml", "--out", here / "run", "--quiet")
    write_config(here / "half.toml", here / "store", train__steps=6, train__checkpoint_every=2, train__validate_every=3)
    shutil.copytree(here / "run", here / "half")  # as if killed after step 4
    shutil.rmtree(here / "half/checkpoints/step-00000006")
    (here / "half/checkpoints/latest").write_text("step-00000004\n")
    ok("export", here / "run", "--out", here / "exported")
    ok("import", here / "exported", "--out", here / "imported")


def verbs(here):
    def no_output(name):
        return lambda _: not (here / "work" / name).exists()

    def as_before(name):
        return lambda _: same(here / "work" / name, here / name)

    def trained(_):
        run = here / "work/run"
        return latest(run) == 6 and metrics(run) == metrics(here / "run")

    def went_on(_):
        run = here / "work/half"
        return latest(run) == 6 and metrics(run) == metrics(here / "run")

    prepare = ["prepare", f"{here}/a.fasta", "--tokenizer", "esm2", "--out", f"{here}/work/store", "--valid-fraction", "0.2", "--quiet"]
    train = ["train", f"{here}/run.toml", "--out", f"{here}/work/run", "--quiet", "--resume"]
    return [
        Verb("prepare", lambda _: prepare, lambda _: fresh(here), as_before("store"), no_output("store")),
        Verb("prepare --force", lambda _: [*prepare, "--force"], lambda _: fresh(here, "store"), as_before("store"), as_before("store")),
        Verb("train", lambda _: train, lambda _: fresh(here), trained, lambda _: True),
        Verb("train --resume", lambda _: ["train", f"{here}/half.toml", "--out", f"{here}/work/half", "--quiet", "--resume"],
             lambda _: fresh(here, "half"), went_on, lambda _: latest(here / "work/half") in (4, 6)),
        Verb("export", lambda _: ["export", f"{here}/run", "--out", f"{here}/work/exported"], lambda _: fresh(here),
             as_before("exported"), no_output("exported")),
        Verb("export --force", lambda _: ["export", f"{here}/run", "--out", f"{here}/work/exported", "--force"],
             lambda _: fresh(here, "exported"), as_before("exported"), as_before("exported")),
        Verb("import", lambda _: ["import", f"{here}/exported", "--out", f"{here}/work/imported"], lambda _: fresh(here),
             as_before("imported"), no_output("imported")),
    ]


def main():
    failed = ran = refused = 0
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        here = Path(folder)
        make_material(here)
        for verb in verbs(here):
            calls = verb.calls(here)
            assert calls > 5, f"{verb.name}: {calls} calls: the shim sees nothing"
            stride = 1 if ALL else max(1, calls // SPREAD)
            for at in range(1, calls + 1, stride):
                modes = [(ever, error) for ever in (False, True) for error in (errno.EIO, errno.ENOSPC)]
                for ever, error in modes if ALL else [modes[at // stride % 4]]:
                    verb.ran += 1
                    try:
                        verb.fail(here, at, ever, error)
                    except AssertionError as problem:
                        failed += 1
                        print(f"FAILED {problem}")
            print(f"{verb.name}: {calls} calls, {verb.refused} of {verb.ran} runs ended in an error", flush=True)
            assert verb.refused > verb.ran / 2, "the failures are not felt"
            ran, refused = ran + verb.ran, refused + verb.refused
    print(f"{ran} runs, {refused} ended in an error, {failed} lost something")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
