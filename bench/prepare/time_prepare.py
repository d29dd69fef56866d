#!/usr/bin/env python3
"""How many MB of FASTA `cistron prepare` reads in a second of one core's time.

Run: bench/prepare/time_prepare.py [--megabytes 200] [--rounds 3] [--program build/cpu/bin/cistron]
Writes random proteins (lengths log-normal around 300, lines of 60) beside the system's temporary files and prepares them. User and system
time count, reading and writing included; prints a JSON object with the best round, and the largest resident memory.
"""
import argparse
import json
import pathlib
import random
import resource
import subprocess
import tempfile


def write_fasta(path: pathlib.Path, size: int) -> None:
    draw = random.Random(1)
    pool = "".join(draw.choices("LAGVSERTIDPKQNFYMHWC", k=1_000_000))
    written = number = 0
    with open(path, "w") as file:
        while written < size:
            length = min(20_000, max(30, int(draw.lognormvariate(5.7, 0.6))))
            begin = draw.randrange(len(pool) - length)
            lines = [pool[i:min(i + 60, begin + length)] for i in range(begin, begin + length, 60)]
            written += file.write(f">sp|P{number:07d}|PROT{number} a protein OS=Homo sapiens\n" + "\n".join(lines) + "\n")
            number += 1


def cpu_seconds(command: list) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--program", default="build/cpu/bin/cistron")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fasta, store = pathlib.Path(folder, "random.fasta"), pathlib.Path(folder, "store")
        write_fasta(fasta, arguments.megabytes * 1_000_000)
        command = [arguments.program, "prepare", fasta, "--tokenizer", "esm2", "--out", store, "--valid-fraction", "0.02", "--force"]
        seconds = min(cpu_seconds(command) for _ in range(arguments.rounds))
        megabytes = fasta.stat().st_size / 1e6
    print(json.dumps({"name": "prepare", "megabytes": megabytes, "cpu_seconds": seconds,
                      "megabytes_per_second_and_core": megabytes / seconds,
                      "peak_resident_bytes": 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss}))
