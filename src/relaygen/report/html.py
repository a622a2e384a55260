"""What every page of ours shares: one file without others beside it, light and dark, and nothing in it runs but our script.

Everything that comes from outside is escaped. Should that ever fail, the page's own policy still lets no other script run.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256
from html import escape
from pathlib import Path

from relaygen.errors import UserError
from relaygen.report.summary import Row
from relaygen.report.terminal import printable


def head(title: str, style: str, script: str) -> str:
    """All before the body. `script` is the one that `end` will hold."""
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width">\n<meta name="color-scheme" content="light dark">\n'
        f"<title>{safe(title)}</title>\n<style>{STYLE}{style}</style>\n"
    )


def end(script: str) -> str:
    return f"<script>{script}</script>\n</html>\n"


def write(path: Path, parts: Iterable[str]) -> None:
    try:
        with path.open("w", encoding="utf-8") as out:
            out.writelines(parts)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None


def facts_list(facts: Sequence[Row]) -> str:
    items = "".join(f"<dt>{safe(name)}</dt><dd>{safe(value)}</dd>" for name, value in facts)
    return f"<dl>{items}</dl>"


def plot(name: str, svg: str, about: str) -> str:
    """A section with a plot; `svg` is HTML already. Styled by FIGURE_STYLE."""
    return (
        f'<section><h2>{safe(name)}</h2><figure><div class="wide">{svg}</div><figcaption>{safe(about)}</figcaption></figure>'
        "</section>\n"
    )


def safe(raw: str) -> str:
    return escape(printable(raw))


STYLE = """
:root { --paper:#fbfaf7; --panel:#fff; --ink:#22262b; --faint:#687079; --line:#e2dfd8;
  --large:#174a7c; --small:#7d3f00; --wash:#ffeccd; --mark:#d97d0d; --here:#e8f0f9;
  --green:#1f7a3f; --red:#b3261e; --violet:#7a3fb0; --teal:#0f7f86; }
@media (prefers-color-scheme: dark) { :root { --paper:#15181c; --panel:#1c2026; --ink:#dfe3e8; --faint:#929ba6;
  --line:#2f353d; --large:#a8cdf4; --small:#ffd596; --wash:#40301a; --mark:#f2a33c; --here:#233243;
  --green:#6fca8b; --red:#ff8f85; --violet:#c9a2f2; --teal:#63cbd1; } }
* { box-sizing:border-box }
body { margin:0; background:var(--paper); color:var(--ink); font:15px/1.6 system-ui,sans-serif }
header { padding:1.1rem 1.5rem .8rem; border-bottom:1px solid var(--line); background:var(--panel) }
h1 { margin:0 0 .5rem; font-size:1.2rem } h2 { margin:0; font-size:1.1rem; overflow-wrap:anywhere }
dl { display:grid; grid-template-columns:max-content 1fr; gap:0 1rem; margin:0; font-size:.9rem }
dt, .facts, small { color:var(--faint) } dd { margin:0; overflow-wrap:anywhere }
"""

# A plot keeps its size on a phone, and is moved from side to side.
FIGURE_STYLE = """
figure { margin:.4rem 0 0 } figure svg { display:block; width:100%; min-width:24rem; max-width:48rem; height:auto }
figcaption { color:var(--faint); font-size:.85rem } .wide { overflow-x:auto }
"""
