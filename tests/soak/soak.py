"""Trains for SECONDS with checkpoints, validations and a saver behind training, and watches the process: resident memory, open files and
threads must stay flat. Usage: soak.py PROGRAM [SECONDS]     an hour: soak.py build/cpu/bin/cistron 3600

Flat: no window of the second half has more memory than the largest of the first half by over `LEAK` bytes for each step between their
middles, and the last has no more files and threads than the first. malloc's smallest piece is 32 bytes, so one leaked in every eighth step is seen."""

import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "cli"))

from support import Program, metrics, write_config, write_fasta

LEAK = 4  # bytes a step
PAGES = 64 * 4096  # what the kernel's batched counters of a few threads may be off by
WINDOWS = 8


def sample(process):
    folder = Path(f"/proc/{process.pid}")
    resident = int((folder / "smaps_rollup").read_text().split("\nRss:")[1].split()[0]) * 1024
    return {"memory": resident, "files": len(list((folder / "fd").iterdir())), "threads": len(list((folder / "task").iterdir()))}


def watch(process, seconds):
    """Samples until the time is over."""
    samples = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(max(seconds / 2000, 0.02))
        assert process.poll() is None, f"it ended by itself: exit {process.returncode}"
        samples.append(sample(process))
    return samples


def windows(samples, key, of):
    size = len(samples) // WINDOWS
    return [of(one[key] for one in samples[i * size:(i + 1) * size]) for i in range(WINDOWS)]


def check_flat(samples, steps):
    """Of `steps` in all; the first window is warming up."""
    memory = windows(samples, "memory", statistics.median)
    half = WINDOWS // 2
    grown = max(memory[half:]) - max(memory[1:half])
    limit = PAGES + LEAK * steps / 2
    print("memory, KiB:", " ".join(f"{int(x) // 1024}" for x in memory), f"(grown by {int(grown)} bytes, {int(limit)} allowed)")
    assert grown <= limit, "the memory grows"
    for key in ("files", "threads"):
        always = windows(samples, key, min)  # a save has more for a moment; what leaks stays
        print(f"{key}:", " ".join(map(str, always)))
        assert always[-1] <= always[0], f"more {key}"


def check_negative_control(samples, steps):
    """Two of the smallest pieces leaked a step, and one file in the whole run, must be seen."""
    leaking = [one | {"memory": one["memory"] + 64 * steps * i // len(samples) + i * PAGES * 3 // len(samples)} for i, one in enumerate(samples)]
    opening = [one | {"files": one["files"] + i * 2 // len(samples)} for i, one in enumerate(samples)]
    for wrong in (leaking, opening):
        try:
            check_flat(wrong, steps)
        except AssertionError:
            continue
        raise AssertionError("a leak would not be seen")


def soak(program, directory, seconds):
    write_fasta(directory / "a.fasta", 300)
    program.ok("prepare", directory / "a.fasta", "--tokenizer", "esm2", "--out", directory / "store", "--valid-fraction", "0.1")
    config = directory / "run.toml"
    write_config(config, directory / "store", train__steps=100_000_000, train__checkpoint_every=25, train__validate_every=40,
                 train__keep_last=2, device__threads=2)
    run = directory / "run"
    with open(directory / "said", "w", encoding="utf-8") as said:
        command = [program.path, "train", str(config), "--out", str(run), "--quiet", "--set", "train.save_behind=true"]
        process = subprocess.Popen(command, stdout=said, stderr=said)
        try:
            while process.poll() is None and not (run / "checkpoints/latest").exists():
                time.sleep(0.05)
            samples = watch(process, seconds)
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=120)
        finally:
            process.kill()
            print((directory / "said").read_text(), end="")
    steps = max(line["step"] for line in metrics(run))
    print(f"{steps} steps, {steps // 25} checkpoints, {steps // 40} validations, {len(samples)} samples in {seconds:.0f} s; "
          f"stopped with exit status {process.returncode}")
    check_flat(samples, steps)
    print("and with a leak:")
    check_negative_control(samples, steps)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        soak(Program(sys.argv[1]), Path(name), float(sys.argv[2]) if len(sys.argv) > 2 else 20)
