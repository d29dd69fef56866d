"""Kills every verb that writes, with SIGKILL, at random moments: training that is resumed must give the numbers of an undisturbed run, bit
for bit; any other output must be absent, the old one, or the new one, byte for byte, and the same command again must make it.
Usage: kills.py PROGRAM [KILLS] [SEED]"""

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from support import Program, metrics, same_files, write_config, write_fasta


def seconds_of(function):
    start = time.monotonic()
    function()
    return time.monotonic() - start


class Killer:
    def __init__(self, program, directory, generator):
        self.program, self.directory, self.generator = program, directory, generator

    def kill(self, command, longest, sign=None):
        """True where it was killed, False where it was through before. Every second time the clock starts when the file `sign` is there,
        which is when the output is being written."""
        process = subprocess.Popen([self.program.path, *map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if sign is not None and self.generator.random() < 0.5:
            while not sign.exists() and process.poll() is None:
                pass
        try:
            process.wait(timeout=self.generator.uniform(0.0, longest))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return True
        assert process.returncode == 0, process.returncode
        return False

    def trains(self, kills, behind):
        config = self.directory / "run.toml"
        options = ["--quiet", "--resume", *(["--set", "train.save_behind=true"] if behind else [])]
        whole = self.directory / f"whole{behind}"
        seconds = seconds_of(lambda: self.program.ok("train", config, "--out", whole, *options))
        killed = rounds = 0
        while killed < kills:
            rounds += 1
            run = self.directory / f"run{behind}{rounds}"
            command = ["train", config, "--out", run, *options]
            while killed < kills and self.kill(command, 0.7 * seconds):
                killed += 1
            self.program.ok(*command)
            assert metrics(run) == metrics(whole), f"round {rounds} differs"
        print(f"train{', saved behind' if behind else ''}: {killed} kills in {rounds} runs: every number is the same", flush=True)
        return killed

    def writes(self, name, kills, command, old=None):
        """`command` writes what is appended to it, where there was nothing, or where `old` made something else."""
        new, before = self.directory / f"{name}-new", self.directory / f"{name}-old"
        seconds = seconds_of(lambda: self.program.ok(*command, new))
        if old is not None:
            self.program.ok(*old, before)
            assert not same_files(before, new)
        killed = rounds = found_new = 0
        while killed < kills:
            rounds += 1
            out = self.directory / f"{name}-{rounds}"
            if old is not None:
                self.program.ok(*old, out)
            force = ["--force"] if old is not None else []
            was_killed = self.kill([*command, out, *force], 1.1 * seconds, Path(f"{out}.partial"))
            is_new = same_files(out, new)
            killed, found_new = killed + was_killed, found_new + (was_killed and is_new)
            assert is_new or (not out.exists() if old is None else same_files(out, before)), f"{out.name} is neither old nor new"
            if not is_new:
                self.program.ok(*command, out, *force)
                assert same_files(out, new), f"{out.name} is not whole"
            left = [path.name for path in self.directory.iterdir() if path.name.startswith(f"{out.name}.")]
            assert is_new or not left, f"left behind: {left}"
        print(f"{name}: {killed} kills in {rounds} runs, {found_new} of them behind the rename: nothing lost, nothing half", flush=True)
        return killed


def make_material(program, directory):
    write_fasta(directory / "a.fasta", 60)
    write_fasta(directory / "many.fasta", 8000)
    program.ok("prepare", directory / "a.fasta", "--tokenizer", "esm2", "--out", directory / "store", "--valid-fraction", "0.2")
    write_config(directory / "run.toml", directory / "store", train__steps=60, train__checkpoint_every=2, train__keep_last=2)
    large = {"model__hidden": 256, "model__intermediate": 512, "train__steps": 2, "train__checkpoint_every": 1}
    write_config(directory / "large.toml", directory / "store", **large)
    program.ok("train", directory / "large.toml", "--out", directory / "large", "--quiet")
    program.ok("export", directory / "large", "--out", directory / "exported")
    program.ok("export", directory / "large/checkpoints/step-00000001", "--out", directory / "exported1")


def campaign(program, directory, kills, generator):
    make_material(program, directory)
    killer = Killer(program, directory, generator)

    def prepare(fasta):
        return ["prepare", directory / fasta, "--tokenizer", "esm2", "--valid-fraction", "0.1", "--quiet", "--out"]

    def export(model):
        return ["export", directory / "large" / model, "--out"]

    def bring(folder):
        return ["import", directory / folder, "--out"]

    campaigns = [
        lambda kills: killer.trains(kills, behind=False),
        lambda kills: killer.trains(kills, behind=True),
        lambda kills: killer.writes("prepare", kills, prepare("many.fasta")),
        lambda kills: killer.writes("prepare-force", kills, prepare("many.fasta"), old=prepare("a.fasta")),
        lambda kills: killer.writes("export", kills, export("")),
        lambda kills: killer.writes("export-force", kills, export(""), old=export("checkpoints/step-00000001")),
        lambda kills: killer.writes("import", kills, bring("exported")),
        lambda kills: killer.writes("import-force", kills, bring("exported"), old=bring("exported1")),
    ]
    total = sum(run((kills + i) // len(campaigns)) for i, run in enumerate(campaigns))
    print(f"{total} kills")


if __name__ == "__main__":
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(1 << 30)
    print("seed", seed)
    with tempfile.TemporaryDirectory(prefix="cistron-") as name:
        campaign(Program(sys.argv[1]), Path(name), int(sys.argv[2]) if len(sys.argv) > 2 else 24, random.Random(seed))
