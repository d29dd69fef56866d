"""Kills a run with SIGKILL at random moments and resumes it, until it is through: the numbers must be those of an undisturbed run, bit
for bit. Usage: kill_resume.py PROGRAM [KILLS] [SEED]"""

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from support import Program, metrics, write_config, write_fasta


def seconds_of(function):
    start = time.monotonic()
    function()
    return time.monotonic() - start


def kill_once(command, generator, longest):
    """True where the run was through before the kill."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        process.wait(timeout=generator.uniform(0.0, longest))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
    assert process.returncode == 0, process.returncode
    return True


def campaign(program, directory, kills, generator):
    write_fasta(directory / "a.fasta", 60)
    program.ok("prepare", directory / "a.fasta", "--tokenizer", "esm2", "--out", directory / "store", "--valid-fraction", "0.2")
    config = directory / "run.toml"
    write_config(config, directory / "store", train__steps=60, train__checkpoint_every=2, train__keep_last=2)
    whole = seconds_of(lambda: program.ok("train", config, "--out", directory / "whole", "--quiet"))
    expected = metrics(directory / "whole")
    killed, rounds = 0, 0
    while killed < kills:
        rounds += 1
        run = directory / f"run{rounds}"
        command = [program.path, "train", str(config), "--out", str(run), "--quiet", "--resume"]
        through = False
        while not through and killed < kills:
            through = kill_once(command, generator, 0.7 * whole)
            killed += 0 if through else 1
        program.ok(*command[1:])
        assert metrics(run) == expected, f"round {rounds} differs"
    print(f"{killed} kills in {rounds} runs, {whole:.2f} s undisturbed: every number is the same")


if __name__ == "__main__":
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(1 << 30)
    print("seed", seed)
    with tempfile.TemporaryDirectory(prefix="cistron-") as name:
        campaign(Program(sys.argv[1]), Path(name), int(sys.argv[2]) if len(sys.argv) > 2 else 20, random.Random(seed))
