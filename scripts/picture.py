"""Makes docs/demo.svg: the demo as a person sees it in a terminal, from a real run of the default pair.

python scripts/picture.py
"""

from __future__ import annotations

import asyncio
import io
import re
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from relaygen import Relay, Sampling, Switch, Token
from relaygen.report.terminal import MARKS, STYLES, TextWriter, printable, summary

PROBLEM = (
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May."
    " How many clips did Natalia sell altogether in April and May?"
)
OUT = Path(__file__).parents[1] / "docs" / "demo.svg"


async def record(console: Console) -> None:
    stretches: list[tuple[str, str]] = []  # (text, style), neighbours of one style together
    async with Relay() as relay:
        run = relay.stream(PROBLEM, sampling=Sampling(temperature=0))
        TextWriter(console).legend(run.models)
        async for event in run.events():
            match event:
                case Token():
                    added = printable(event.text), STYLES[event.author]
                case Switch() if event.to is not event.author:
                    added = MARKS[event.to], f"bold {STYLES[event.to]}"
                case _:
                    continue
            if stretches and stretches[-1][1] == added[1]:
                added = stretches.pop()[0] + added[0], added[1]
            stretches.append(added)
    # At once, not token by token: only so does the recording wrap long lines as a terminal does.
    console.print(Text.assemble(*stretches))
    console.print()
    console.print(summary(run.result()))


def main() -> None:
    console = Console(record=True, force_terminal=True, width=100, file=io.StringIO(), highlight=False)
    console.print("$ make demo\n", style="dim")
    asyncio.run(record(console))
    svg = console.export_svg(title="relaygen", theme=MONOKAI, unique_id="demo")
    # No font from elsewhere: the picture must look the same without a network.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL).replace(
        "Fira Code", "DejaVu Sans Mono, Menlo, Consolas"
    )
    svg = svg.replace("<text ", '<text xml:space="preserve" ')
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(svg + "\n")
    print(OUT)


if __name__ == "__main__":
    main()
