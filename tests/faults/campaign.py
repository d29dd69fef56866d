"""Fails all that can fail in every verb, one after the other, and judges how each run ended and what it left."""

import os
import re
import sys
import tempfile
from pathlib import Path

from verbs import make_material, verbs

MEMORY = Path("/dev/shm")  # there syncing takes no time, which is most of a run's; what it promises is power_loss.py's matter

MARK_OF_PARTIAL = ".cistron-partial"  # may stay in what is whole


def option(name):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else None


def files(folder):
    """Aside from TensorBoard's, of which each run that gets as far writes its own."""
    return [path for path in folder.rglob("*") if ".tfevents." not in path.name]


def contents(folder):
    """All that a later run can find there, without what depends on the clock."""
    def read(path):
        if not path.is_file():
            return None
        return re.sub(rb'"tokens_per_second":[^,}]*', b"", path.read_bytes()) if path.name == "metrics.jsonl" else path.read_bytes()

    return frozenset((path.relative_to(folder), read(path)) for path in files(folder))


class Judge:
    """Of one verb's runs. What a run left decides alone whether it is good and how the program goes on from it, so that each content is
    judged once."""

    def __init__(self, verb, here):
        self.verb, self.here, self.work = verb, here, here / "work"
        self.good = set()  # what was left, and judged so
        self.names = set()  # of an undisturbed run

    def count(self, fail_nothing):
        """What could fail in an undisturbed run."""
        self.verb.before(self.here)
        status, said = fail_nothing()
        assert status == 0, said
        assert self.verb.whole(self.here), f"{self.verb.name}: not whole without any failure"
        self.names = self.names_left()
        return int((self.here / "count").read_text())

    def names_left(self):
        return {path.relative_to(self.work) for path in files(self.work) if path.name != MARK_OF_PARTIAL}

    def run(self, fail, where, statuses):
        """One run with a failure in it: a clear error, nothing lost, and it can be done again. True where it ended in an error."""
        self.verb.before(self.here)
        status, said = fail()
        refused = status != 0
        left = refused, contents(self.work)
        if left not in self.good:
            self.judge_left(refused, f"{where}: {said}")
            self.good.add(left)
        if refused:
            assert status in statuses, f"{where}: exit {status}\n{said}"
            lines = [line for line in said.splitlines() if line.startswith("cistron: error: ")]
            assert len(lines) == 1, f"{where}: {said}"
        return refused

    def judge_left(self, refused, where):
        verb, here = self.verb, self.here
        whole = verb.whole(here)
        assert whole or refused, f"{where}\nsaid to be done, and is not whole"
        assert whole or verb.kept(here), f"{where}\nwhat was there before is lost"
        if whole:
            return
        again = verb.run(here, {})
        assert again.returncode == 0, f"{where}\nit cannot be done again\n{again.stderr}"
        assert verb.whole(here), f"{where}\ndone again, it is not whole"
        assert self.names_left() == self.names, f"{where}\ndone again, other files are there: {self.names_left() ^ self.names}"


def stride_of(count, spread):
    return 1 if "--all" in sys.argv else int(option("--every") or max(1, count // spread))


def campaign(failing, describe, modes, spread, statuses):
    """Fails each (or a spread) of all that can fail in every verb, in each mode (or, for every day, in one of them in turn).
    `failing(verb, here)` is a context that gives a function of place and mode, whose result is exit status and standard error, and writes
    the count into `here`. The exit status."""
    every_day = not {"--all", "--every"} & set(sys.argv)
    failed = ran = refused = 0
    with tempfile.TemporaryDirectory(prefix="faults-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as folder:
        here = Path(folder)
        make_material(here)
        for verb in verbs(here):
            if option("--verb") not in (None, verb.name):
                continue
            with failing(verb, here) as fail:
                judge = Judge(verb, here)
                count = judge.count(lambda: fail(0, modes[0]))
                assert count > 5, f"{verb.name}: {count} could fail: the library sees nothing"
                stride = stride_of(count, spread)
                ran_before, refused_before = ran, refused
                for at in range(int(option("--from") or 1), count + 1, stride):
                    for mode in [modes[at // stride % len(modes)]] if every_day else modes:
                        ran += 1
                        try:
                            refused += judge.run(lambda: fail(at, mode), f"{verb.name}: {describe(at, mode)}", statuses(mode))
                        except AssertionError as problem:
                            failed += 1
                            print(f"FAILED {problem}", flush=True)
            print(f"{verb.name}: {count} could fail, {refused - refused_before} of {ran - ran_before} runs ended in an error, "
                  f"{len(judge.good)} different ends", flush=True)
    assert refused > ran / 2, "the failures are not felt"
    print(f"{ran} runs, {refused} ended in an error, {failed} lost something or said it badly")
    return 1 if failed else 0
