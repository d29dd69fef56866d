#!/usr/bin/env python3
"""Training on several ranks, with ranks that are killed, stopped, or find their disk full, at random moments, also while saving. Each
time all must leave within the bound with a status that is not zero, the dead rank must be named, and the run must go on from its last
checkpoint to the numbers of an undisturbed run, bit for bit.

Run: tests/dist/crash_campaign.py MPIRUN PROGRAM [KILLS] [SEED]
"""
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))
from support import Program, metrics, write_config, write_fasta  # noqa: E402

TIMEOUT = 10  # seconds, the ranks' own
BOUND = 200  # in which all have left; most of it is for a machine that is busy
LAUNCHER = 60  # that mpirun gets to end when its ranks have
RANKS = 3
ENVIRONMENT = os.environ | {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
}


class Campaign:
    def __init__(self, mpirun: str, program: str, directory: Path, generator: random.Random) -> None:
        self.mpirun, self.program, self.directory, self.generator = mpirun, Program(program), directory, generator
        write_fasta(directory / "a.fasta", 60)
        self.program.ok("prepare", directory / "a.fasta", "--tokenizer", "esm2", "--out", directory / "store", "--valid-fraction", "0.2")
        self.config = directory / "run.toml"
        write_config(self.config, directory / "store", train__steps=16, train__checkpoint_every=2, train__validate_every=8, train__keep_last=2,
                     parallel__timeout_seconds=TIMEOUT)
        begin = time.monotonic()
        status, output = self.finish(self.start(directory / "whole"))
        assert status in (0, None), output
        self.seconds = time.monotonic() - begin
        self.expected = metrics(directory / "whole")

    def command(self, run: Path, *more: str) -> list[str]:
        train = [self.program.path, "train", str(self.config), "--out", str(run), "--quiet", "--resume", *more]
        return [self.mpirun, "--oversubscribe", "-n", str(RANKS), *train]

    def start(self, run: Path, *more: str) -> subprocess.Popen:
        return subprocess.Popen(self.command(run, *more), env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def finish(self, process: subprocess.Popen) -> tuple[int | None, str]:
        """What mpirun says in the end; None for its status where it hangs though all ranks have left: PMIx 4.2's end sometimes waits for
        itself when a rank has died (PMIx_server_finalize), which is not ours to mend."""
        begin = last_seen = time.monotonic()
        while time.monotonic() - begin < BOUND and time.monotonic() - last_seen < LAUNCHER:
            try:
                output, _ = process.communicate(timeout=0.5)
                return process.returncode, output
            except subprocess.TimeoutExpired:
                if self.ranks(process):
                    last_seen = time.monotonic()
        ranks = self.ranks(process)
        process.kill()
        output, _ = process.communicate()
        assert not ranks, f"ranks {ranks} have not left within {BOUND} s: {output}"
        return None, output

    def ranks(self, process: subprocess.Popen) -> list[int]:
        def is_rank(child: str) -> bool:
            try:
                return Path(f"/proc/{child}/exe").readlink() == Path(self.program.path).resolve()
            except OSError:  # it has ended meanwhile
                return False

        try:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        except OSError:
            return []
        return [int(child) for child in children if is_rank(child)]

    def victim(self, process: subprocess.Popen, longest: float) -> int | None:
        """A rank, at a random moment; None where the run was through before."""
        try:
            process.wait(timeout=self.generator.uniform(0.3, longest))
            return None
        except subprocess.TimeoutExpired:
            while not (ranks := self.ranks(process)) and process.poll() is None:
                time.sleep(0.01)
            return self.generator.choice(ranks) if ranks else None

    def goes_on(self, run: Path) -> None:
        status, output = self.finish(self.start(run))
        assert status in (0, None), output
        assert metrics(run) == self.expected, f"{run.name}: other numbers than undisturbed"

    def killed(self, kills: int, behind: bool) -> None:
        done, rounds = 0, 0
        while done < kills:
            rounds += 1
            run = self.directory / f"killed-{behind}-{rounds}"
            while done < kills:
                process = self.start(run, *(["--set", "train.save_behind=true"] if behind else []))
                victim = self.victim(process, 0.8 * self.seconds)
                if victim is None:
                    assert self.finish(process)[0] in (0, None)
                    break
                os.kill(victim, signal.SIGKILL)
                done += 1
                status, output = self.finish(process)
                assert status != 0, output
                # mpirun tells of a process that ended before it joined in words of its own.
                assert any(text in output for text in ["signal 9", "rank", "non-zero exit code"]), output
            self.goes_on(run)
        print(f"{done} ranks killed in {rounds} runs (saving {'behind' if behind else 'at once'}): every number is the same")

    def stopped(self) -> None:
        """In the middle of training: at its end, when the others are through, nobody is left who could notice."""
        run = self.directory / "stopped"
        process = self.start(run)
        while not (run / "checkpoints/latest").exists() and process.poll() is None:
            time.sleep(0.001)
        os.kill(self.generator.choice(self.ranks(process)), signal.SIGSTOP)
        begin = time.monotonic()
        status, output = self.finish(process)
        assert status != 0 and f"within {TIMEOUT} s" in output, output
        print(f"a stopped rank was named after {time.monotonic() - begin:.1f} s")
        self.goes_on(run)

    def disk_full(self) -> None:
        """One rank may not write files as large as its part: every rank says so, and nothing is lost."""
        run = self.directory / "full"
        limited = f'if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then ulimit -f 16; fi; exec "$@"'
        command = self.command(run)
        at = command.index(self.program.path)
        command[at:at] = ["sh", "-c", limited, "sh"]
        process = subprocess.Popen(command, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        status, output = self.finish(process)
        assert status in (4, None), output
        assert "File too large" in output and "rank 1" in output, output
        left = [path.name for path in (run / "checkpoints").iterdir()]
        assert left == [], left
        print("a full disk on one rank: said, and no part of a checkpoint stays behind")
        self.goes_on(run)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    kills = int(arguments[2]) if len(arguments) > 2 else 4
    seed = int(arguments[3]) if len(arguments) > 3 else random.randrange(1 << 30)
    print("seed", seed)
    with tempfile.TemporaryDirectory(prefix="cistron-") as name:
        campaign = Campaign(arguments[0], arguments[1], Path(name), random.Random(seed))
        campaign.killed((kills + 1) // 2, behind=False)
        campaign.killed(kills // 2, behind=True)
        campaign.stopped()
        campaign.disk_full()
