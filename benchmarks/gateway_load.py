"""Many streams at once through `relaygen serve`, beside a direct reader of the engine and beside LiteLLM's proxy.

    python -m benchmarks.gateway_load [--streams 200] [--tokens 200] [--rounds 2] [--replicas 1] [--without-litellm]

Simulated engines (40 tokens/s a stream for the load, 1,000 for saturation), gateway, proxy and client are processes of their own.
The same requests go, in turn and in the same run, to

    direct      the engine itself
    large       the gateway, passing one engine's streams on
    relay       the gateway, switching between two engines by the cues of the text
    large x2,   the same, with two workers
    relay x2
    litellm     LiteLLM's proxy, passing one engine's streams on (in an environment of its own, which the first run makes)

With --replicas N there are N engines a side, which do not step in the same instant; LiteLLM's proxy keeps to the first.
Gaps are between the events of one stream; "added" is the 99th percentile less that of the direct reader. At a hand-over a
request waits for the step that its new engine is at, up to 25 ms here: that is in the gaps of `relay`, and is the engine's.
Tokens a CPU second count all processes of the gateway or proxy; what one core can do is the figure at saturation. The last line
is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
from platformdirs import user_cache_path
from rich.console import Console
from rich.table import Table

from benchmarks.simulator import count_tokens, recorded, simulators

LOAD, SATURATION = "40:1000000", "1000:1000000"
START_S = 120.0
LITELLM = "litellm[proxy]"


@contextmanager
def process(command: list[str], url: str, folder: Path, environment: dict[str, str]) -> Generator[int]:
    """Runs `command` until it is left; gives its id once `url` answers."""
    with (folder / "log.txt").open("ab") as log:
        started = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **environment})
    try:
        wait_for(url, started, folder / "log.txt")
        yield started.pid
    finally:
        started.terminate()
        started.wait(30)


def wait_for(url: str, started: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until and started.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.3)
    raise SystemExit(f"{url} does not answer; the last lines of its log:\n{log.read_text()[-2000:]}")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@contextmanager
def replicas(
    number: int, folder: Path, traces: list[dict[str, Any]], *flags: str
) -> Generator[dict[str, str]]:
    """For each side the URLs of its engines, as `relaygen serve` takes several."""
    with ExitStack() as stack:
        pairs = [stack.enter_context(simulators(folder, traces, *flags)) for _ in range(number)]
        yield {author: ",".join(pair[author] for pair in pairs) for author in pairs[0]}


@contextmanager
def gateway(engines: dict[str, str], folder: Path, num_workers: int = 1) -> Generator[tuple[str, int]]:
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "relaygen", "serve", "--port", str(port), "--max-active", "1000"]
    command += ["--workers", str(num_workers)]
    for author, engine in engines.items():
        command += [f"--{author}", engine]
    with process(command, f"{url}/health", folder, {}) as pid:
        yield url, pid


@contextmanager
def litellm(engine: str, folder: Path, console: Console) -> Generator[tuple[str, int]]:
    home = user_cache_path("relaygen") / "benchmarks" / "litellm"
    program = home / "bin" / "litellm"
    if not program.exists():
        console.print(f"installing {LITELLM} into {home}")
        venv.create(home, with_pip=True)
        subprocess.run([home / "bin" / "python", "-m", "pip", "install", "--quiet", LITELLM], check=True)
    config = folder / "litellm.json"  # JSON is YAML
    model = {"model": "openai/simulated-large", "api_base": f"{engine}/v1", "api_key": "sk-none"}
    config.write_text(
        json.dumps({"model_list": [{"model_name": "simulated-large", "litellm_params": model}]})
    )
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [str(program), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    environment = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # on loopback, for minutes
        "PYTHONPATH": "",
    }
    with process(command, f"{url}/health/liveliness", folder, environment) as pid:
        yield url, pid


def cpu_s(pid: int) -> float:
    found = psutil.Process(pid)
    return sum(sum(one.cpu_times()[:2]) for one in (found, *found.children(recursive=True)))


def measure(urls: str, model: str, pid: int | None, num_streams: int, num_tokens: int) -> dict[str, Any]:
    before = cpu_s(pid) if pid else 0.0
    command = [sys.executable, "-m", "benchmarks.load_client", urls, model]
    command += [str(num_streams), str(num_tokens)]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    used = cpu_s(pid) - before if pid else 0.0
    found["tokens_s"] = round(found["tokens"] / found["seconds"]) if found["seconds"] else 0
    found["tokens_per_cpu_s"] = round(found["tokens"] / used) if used else None
    return found


def rounds(
    engines: dict[str, str], folder: Path, options: argparse.Namespace, console: Console
) -> dict[str, list[dict[str, Any]]]:
    with ExitStack() as stack:
        ours, our_pid = stack.enter_context(gateway(engines, folder))
        two, two_pid = stack.enter_context(gateway(engines, folder, num_workers=2))
        ways: dict[str, tuple[str, str, int | None]] = {
            "direct": (engines["large"], "simulated-large", None),
            "large": (ours, "relaygen:large", our_pid),
            "relay": (ours, "relaygen", our_pid),
            "large x2": (two, "relaygen:large", two_pid),
            "relay x2": (two, "relaygen", two_pid),
        }
        if not options.without_litellm:
            theirs, their_pid = stack.enter_context(litellm(engines["large"].split(",")[0], folder, console))
            ways["litellm"] = theirs, "simulated-large", their_pid
        for name, way in ways.items():
            measure(*way, 5, 10)  # to warm up
            console.print(f"{name} is ready")
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
        for number in range(options.rounds):
            for name, way in ways.items():
                console.print(f"round {number + 1}: {name}")
                found[name].append(measure(*way, options.streams, options.tokens))
        return found


def summary(name: str, speed: str, found: list[dict[str, Any]], direct_p99: float) -> dict[str, Any]:
    """Medians over the rounds; errors are added up."""

    def middle(values: list[Any]) -> Any:
        return None if None in values else statistics.median(values)

    p99 = middle([one["gap_ms"]["p99"] for one in found])
    return {
        "engine_tokens_s": int(speed.split(":")[0]),
        "way": name,
        "errors": sum(one["errors"] for one in found),
        "faults": sorted({fault for one in found for fault in one["faults"]}),
        "tokens_s": middle([one["tokens_s"] for one in found]),
        "gap_median_ms": middle([one["gap_ms"]["median"] for one in found]),
        "gap_p99_ms": p99,
        "added_p99_ms": round(p99 - direct_p99, 2),
        "tokens_per_cpu_s": middle([one["tokens_per_cpu_s"] for one in found]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--without-litellm", action="store_true")
    options = parser.parse_args()
    console = Console(stderr=True)
    traces_name, traces = recorded()
    traces = [trace for trace in traces if count_tokens(trace["text"]) > options.tokens]
    if not traces:
        raise SystemExit(f"no trace is longer than {options.tokens} tokens: ask for fewer with --tokens")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for speed in (LOAD, SATURATION):
            flags = ("--large", speed, "--small", speed, "--max-batch", "1000")
            with replicas(options.replicas, folder, traces, *flags) as engines:
                found = rounds(engines, folder, options, console)
            direct = statistics.median(one["gap_ms"]["p99"] for one in found["direct"])
            rows += [summary(way, speed, one, direct) for way, one in found.items()]
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(width=180).print(table)
    setting = {name: vars(options)[name] for name in ("streams", "tokens", "rounds", "replicas")}
    print(json.dumps({"benchmark": "gateway_load", **setting, "traces": traces_name, "rows": rows}))


if __name__ == "__main__":
    main()
