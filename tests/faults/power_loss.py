"""The power goes at every write: of what was not synced by then anything may be lost, in any order. An output must be whole or absent
(or the old one), a checkpoint too; what was once safe must stay; and the same command must go on from there.

Usage: power_loss.py PROGRAM SHIM [--all]      without --all: readers meet a spread of the states, for every day
"""

import random
import sys
import tempfile
from pathlib import Path

from disk import Any, BytesAlone, Disk, Everything, NamesAlone, Nothing, UpTo, records
from verbs import fresh, make_material, verbs

SHIM = sys.argv[2]
RANDOM = 4  # states of each kind, at each write
MET = 10**9 if "--all" in sys.argv else 8  # states of a verb that the program goes on from


MARK = ".cistron-partial"  # of what is being written: hidden, and harmless in what is whole


def tree(folder):
    return {path.name: tree(path) if path.is_dir() else path.read_bytes() for path in folder.iterdir()}


def visible(entry):
    return entry if isinstance(entry, bytes) else {name: inner for name, inner in entry.items() if name != MARK}


def lay_out(state, folder):
    for name, entry in state.items():
        if isinstance(entry, dict):
            (folder / name).mkdir()
            lay_out(entry, folder / name)
        else:
            (folder / name).write_bytes(entry)


def frozen(state):
    return hash(tuple(sorted((name, frozen(entry) if isinstance(entry, dict) else entry) for name, entry in state.items())))


class Output:
    """A folder that is written at once."""

    def __init__(self, name, here, replaces):
        self.name, self.new = name, tree(here / name)
        self.old = self.new | {".old": b"1"} if replaces else None  # told from the new one

    def before(self, work):
        if self.old is not None:
            (work / self.name / ".old").write_bytes(b"1")

    def see(self, state):
        """What is there while the power is on."""

    def progress(self, state):
        """How far it is: more is later. Fails where it is neither whole nor absent."""
        found = state.get(self.name)
        if found is None and self.old is not None:  # between two renames
            found = state.get(f"{self.name}.replaced")
        found = found and visible(found)
        assert found in (None, self.old, self.new), f"{self.name} is half"
        return 2 if found == self.new else 1 if found is not None else 0


class Run:
    """A run: a checkpoint is what it was when it got its name."""

    def __init__(self, name):
        self.name, self.whole = name, {}

    def before(self, work):
        pass

    def see(self, state):
        for name, entry in state.get(self.name, {}).get("checkpoints", {}).items():
            self.whole.setdefault(name, visible(entry))

    def progress(self, state):
        checkpoints = state.get(self.name, {}).get("checkpoints", {})
        steps = [name for name in checkpoints if name.startswith("step-") and "." not in name]
        for name in steps:
            assert visible(checkpoints[name]) == self.whole[name], f"{name} is half"
        latest = checkpoints.get("latest", b"").decode().strip()
        assert latest in ("", *steps), f"latest points to {latest}, which is not there"
        return max((int(name.split("-")[1]) for name in steps), default=0)


class Campaign:
    def __init__(self, here, verb, output):
        self.here, self.verb, self.output = here, verb, output
        self.states, self.cuts, self.failed = {}, 0, []

    def log(self):
        work, log = self.here / "work", self.here / "log"
        log.unlink(missing_ok=True)
        self.verb.before(self.here)
        self.output.before(work)
        disk = Disk(work)
        disk.load(work)
        done = self.verb.run(self.here, {"LD_PRELOAD": SHIM, "LOG_UNDER": str(work), "LOG_TO": str(log)})
        assert done.returncode == 0 and self.verb.whole(self.here), done.stderr
        return disk, list(records(log))

    def run(self):
        disk, calls = self.log()
        safe = 0
        for number, call in enumerate([("start",), *calls]):
            if number > 0:
                disk.play(*call)
            if call[0] in ("start", "open"):
                continue
            self.cuts += 1
            self.output.see(disk.root.hold(Everything))
            safe = max(safe, self.check(disk.root.hold(Nothing), 0, number))
            choices = [Everything, NamesAlone, BytesAlone, *(kind(f"{number} {i}") for kind in (UpTo, Any) for i in range(RANDOM))]
            for choose in choices:
                self.check(disk.root.hold(choose), safe, number)
        end = self.output.progress(disk.root.hold(Nothing))
        if end != self.output.progress(disk.root.hold(Everything)):
            self.failed.append("it is said to be done, and is not safe")
        return len(calls)

    def check(self, state, safe, number):
        """Looks at a state, and remembers it. Gives its progress."""
        self.states.setdefault(frozen(state), state)
        try:
            progress = self.output.progress(state)
            assert progress >= safe, f"{progress} is there, {safe} was safe"
            return progress
        except AssertionError as problem:
            self.failed.append(f"power lost at call {number}: {problem}")
            return safe

    def go_on(self):
        """The program meets them."""
        states = list(self.states.values())
        chosen = random.Random(1).sample(states, min(MET, len(states)))
        for state in chosen:
            fresh(self.here)
            lay_out(state, self.here / "work")
            done = self.verb.run(self.here, {})
            if done.returncode == 2 and "exists already" in done.stderr:  # refused without --force, and whole
                assert isinstance(self.output, Output) and self.output.progress(state) == 2
                continue
            if done.returncode != 0 or not self.verb.whole(self.here):
                self.failed.append(f"it does not go on from {describe(state)}: {done.stderr}")
        return len(chosen)


def describe(state):
    return {name: describe(entry) if isinstance(entry, dict) else len(entry) for name, entry in state.items()}


def main():
    failed = 0
    with tempfile.TemporaryDirectory(prefix="power-") as folder:
        here = Path(folder)
        make_material(here)
        all_verbs = {verb.name: verb for verb in verbs(here)}
        outputs = {
            "prepare": Output("store", here, False),
            "prepare --force": Output("store", here, True),
            "train": Run("run"),
            "train --resume": Run("half"),
            "train, saved behind": Run("half"),
            "export": Output("exported", here, False),
            "export --force": Output("exported", here, True),
            "import": Output("imported", here, False),
        }
        for name, output in outputs.items():
            campaign = Campaign(here, all_verbs[name], output)
            calls = campaign.run()
            met = campaign.go_on()
            print(f"{name}: {calls} calls, {campaign.cuts} power cuts, {len(campaign.states)} different disks, {met} gone on from, "
                  f"{len(campaign.failed)} failures", flush=True)
            for problem in list(dict.fromkeys(campaign.failed))[:12]:
                print(f"FAILED {name}: {problem}")
            failed += len(campaign.failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
