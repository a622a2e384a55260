"""Is the doctor's prediction right? Predicted against measured speed-up, on pairs that decode at different prices.

    python -m benchmarks.prediction [--cases q4_k_m q8_0 f16] [--problems 3] [--max-tokens 200]

The large model of the default pair is stored again as Q8_0 and F16 (dequantised from its Q4_K_M file with the `gguf` package,
in the cache folder): the larger the file, the dearer a decode step, while reading stays as it was. So these show on a CPU the
regime of a GPU. Each case: the doctor's examination; then, problem by problem, relay and large alone in turn, the relay with a
hand-over every 20 tokens, so that there is something to predict. The prediction is made for the share, the segments and the
lengths that the relay came to have; only the speeds are the doctor's. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

import gguf
from rich.console import Console
from rich.table import Table

from benchmarks.greedy import GREEDY, write
from relaygen import Author, Relay, Result, models
from relaygen.analyse.predict import Speed, Work, alone_ms, break_even_share, relay_ms
from relaygen.core.policy import alone, alternate
from relaygen.examine import examine
from relaygen.tasks.prompts import PROMPTS

CASES = {"q4_k_m": None, "q8_0": gguf.GGMLQuantizationType.Q8_0, "f16": gguf.GGMLQuantizationType.F16}


def stored_as(source: Path, kind: gguf.GGMLQuantizationType) -> Path:
    """A copy of `source` with its matrices stored as `kind`; made once."""
    target = source.with_name(f"{source.stem}-as-{kind.name.lower()}.gguf")
    if target.exists():
        return target
    reader = gguf.GGUFReader(source)
    part = target.with_suffix(".part")
    writer = gguf.GGUFWriter(part, "qwen2")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        kinds = field.types
        writer.add_key_value(field.name, field.contents(), kinds[0], kinds[-1] if len(kinds) > 1 else None)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        to = kind if len(tensor.shape) > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, gguf.quants.quantize(values, to), raw_dtype=to)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.replace(target)
    return target


def predicted(large: Speed, small: Speed, relayed: Result, large_run: Result) -> tuple[float, float]:
    """(relay ms, large alone ms) for the very work that was done."""
    segments = sum(s.author is Author.SMALL for s in relayed.segments)
    usage = relayed.usage
    work = Work(usage.completion_tokens, usage.prompt_tokens, usage.small_tokens / max(1, segments))
    alone_work = Work(large_run.usage.completion_tokens, usage.prompt_tokens)
    return relay_ms(large, small, usage.small_share, work), alone_ms(large, alone_work)


async def case(name: str, num_problems: int, max_tokens: int, console: Console) -> dict[str, Any]:
    kind = CASES[name]
    large = models.pull("qwen2.5-coder-1.5b")
    if kind is not None:
        console.print(f"{name}: storing the large model again")
        large = await asyncio.to_thread(stored_as, large, kind)
    relay_s = alone_s = relay_predicted = alone_predicted = shares = 0.0
    async with Relay(large, models.pull("qwen2.5-coder-0.5b"), policy=alternate(20)) as relay:
        await relay.generate("Say hello.", max_tokens=8, sampling=GREEDY)  # pages in the weights
        speeds = [(await examine(relay.pair.engines[author])).speed for author in Author]
        for number, problem in enumerate(PROMPTS[:num_problems], 1):
            console.print(f"{name}: problem {number} of {num_problems}")
            relayed = await relay.generate(problem, max_tokens=max_tokens, sampling=GREEDY)
            by_large = await write(relay.pair, problem, alone(Author.LARGE), max_tokens)
            for_relay, for_alone = predicted(speeds[0], speeds[1], relayed, by_large)
            # Per token, since the two texts differ in length.
            relay_s += relayed.timings.total_ms / relayed.usage.completion_tokens
            alone_s += by_large.timings.total_ms / by_large.usage.completion_tokens
            relay_predicted += for_relay / relayed.usage.completion_tokens
            alone_predicted += for_alone / by_large.usage.completion_tokens
            shares += relayed.usage.small_share
    measured, expected = alone_s / relay_s, alone_predicted / relay_predicted
    return {
        "large": name,
        "decode_ms": [round(s.decode_ms, 1) for s in speeds],
        "read_ms": [f"{s.read_base_ms:.0f} + {s.read_token_ms:.1f} n" for s in speeds],
        "small_share": round(shares / num_problems, 3),
        "measured_speedup": round(measured, 3),
        "predicted_speedup": round(expected, 3),
        "error": round(expected / measured - 1, 3),
        "break_even_share": break_even_share(speeds[0], speeds[1], Work()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--problems", type=int, default=2, choices=range(1, len(PROMPTS) + 1))
    parser.add_argument("--max-tokens", type=int, default=120)
    options = parser.parse_args()
    console = Console(stderr=True)
    rows = [asyncio.run(case(name, options.problems, options.max_tokens, console)) for name in options.cases]
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(width=180).print(table)
    print(json.dumps({"benchmark": "prediction", "cases": rows}))


if __name__ == "__main__":
    main()
