"""Statistics of cues over many scored traces, and replay of as many plain ones: seconds and peak memory.

    python -m benchmarks.calibration [MB of text, 10 if not given]

Makes the traces up in a temporary folder: 20,000 characters each, a cue every 250. A scored trace takes 10 times the bytes of
its text. Each step is a process of its own, so that its peak is its own. The last line is JSON.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

import orjson

from relaygen import profile, trace
from relaygen.analyse import mine, scored, select
from relaygen.analyse.margins import collect
from relaygen.analyse.tally import replay_all
from relaygen.strategies import make_policy

_CUES = profile.load("qwen3-32b+qwen3-1.7b").cues
_WORDS = " the sum of x is 3.14 and we know that it has to be an odd number then".split(" ")
_TRACE_CHARS = 20_000
_NUM_TEXTS = 50  # that are different


def _tokens(rng: random.Random) -> list[str]:
    """About 250 characters from cue to cue, 50 from sentence end to sentence end, 4 a token."""
    out: list[str] = []
    chars = 0
    while chars < _TRACE_CHARS:
        opening = [rng.choice(_CUES).strip()] if rng.random() < 0.2 else ["It", " is"]
        body = [f" {rng.choice(_WORDS)}" for _ in range(12)]
        out += [*opening, *body, rng.choice([". ", ".\n\n", "! "])]
        chars += sum(map(len, out[-len(body) - len(opening) - 1 :]))
    return out


def make(folder: Path, megabytes: float) -> None:
    rng = random.Random(0)
    texts = [_tokens(rng) for _ in range(_NUM_TEXTS)]
    with (folder / "scored.jsonl").open("wb") as scored_out, (folder / "plain.jsonl").open("wb") as plain_out:
        for number in range(round(megabytes * 1e6 / _TRACE_CHARS)):
            tokens = texts[number % _NUM_TEXTS]
            size, text = len(tokens), "".join(tokens)
            one = scored.ScoredTrace(
                id=f"t{number}",
                problem=f"p{number % 400}",
                model="L",
                scorer="S",
                text=text,
                token_ids=tuple(range(size)),
                token_texts=tuple(tokens),
                margins=tuple(round(rng.random(), 6) for _ in range(size)),
                agree=tuple(rng.getrandbits(1) for _ in range(size)),
                logprobs=(-0.123456,) * size,
            )
            scored_out.write(scored.dumps(one))
            plain_out.write(orjson.dumps({"id": one.id, "text": text}, option=orjson.OPT_APPEND_NEWLINE))


def parse(folder: Path) -> None:
    for _ in scored.read(folder / "scored.jsonl"):
        pass


def cues(folder: Path) -> None:
    collect(scored.read(folder / "scored.jsonl"), select.PAPER_CANDIDATES).stats  # noqa: B018


def budget(folder: Path) -> None:
    """Mining, statistics of all candidates, and the curve."""
    mined = mine.candidates(scored.read(folder / "scored.jsonl"))
    table = collect(scored.read(folder / "scored.jsonl"), (*select.PAPER_CANDIDATES, *mined))
    select.budget(table, 0.3)


def replay(folder: Path) -> None:
    policy = make_policy("segment", profile.load("qwen3-32b+qwen3-1.7b"))
    replay_all(policy, trace.read(folder / "plain.jsonl"))


STEPS = {"parse": parse, "cues": cues, "budget": budget, "replay": replay}


def main() -> None:
    if len(sys.argv) == 3:  # one step, in its own process
        started, used = time.perf_counter(), time.process_time()
        STEPS[sys.argv[1]](Path(sys.argv[2]))
        seconds, cpu = time.perf_counter() - started, time.process_time() - used
        peak = getrusage(RUSAGE_SELF).ru_maxrss / 1024
        print(
            json.dumps({"seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1), "peak_mb": round(peak)})
        )
        return
    megabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    figures: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as name:
        make(Path(name), megabytes)
        for file in ("scored", "plain"):
            figures[f"{file}_mb"] = round((Path(name) / f"{file}.jsonl").stat().st_size / 1e6)
        for step in STEPS:
            command = [sys.executable, "-m", "benchmarks.calibration", step, name]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            figures[step] = json.loads(done.stdout)
            print(f"{step:8} {done.stdout.strip()}")
    print(json.dumps({"benchmark": "calibration", "text_mb": megabytes, **figures}))


if __name__ == "__main__":
    main()
