"""An evaluation as one HTML page: the table, plots, and every answer in its colours, to be filtered by verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from relaygen.analyse.evaluate import Answer, Evaluation
from relaygen.analyse.grade import Verdict
from relaygen.report import evaluation_plots as plots
from relaygen.report.coloured import STYLE, Stretch, coloured, key
from relaygen.report.evaluation import cells, columns
from relaygen.report.html import FIGURE_STYLE, end, facts_list, head, plot, safe
from relaygen.report.summary import Row as Fact
from relaygen.types import Author

# Sign and words for people.
_VERDICTS = {
    Verdict.RIGHT: ("✓", "right"),
    Verdict.WRONG: ("✗", "wrong"),
    Verdict.NONE: ("–", "no answer found"),
    Verdict.TIMEOUT: ("?", "the grader took too long"),
}


def page(
    found: Evaluation,
    *,
    title: str,
    facts: Sequence[Fact],
    made: Sequence[Fact],
    failures: Sequence[str] = (),
) -> Iterator[str]:
    """The page in parts, to be written one after the other. `facts` come first (what was compared), `made` is all that it takes
    to do it again, `failures` are generations that came to nothing."""
    yield head(title, STYLE + FIGURE_STYLE + _STYLE, _SCRIPT)
    yield f"<header><h1>{safe(title)}</h1>{facts_list(facts)}</header>\n<main>\n"
    yield from _warnings(found, failures)
    if not found.rows:
        yield "<section><h2>Nothing to show</h2><p>There are no answers.</p></section>\n"
    else:
        yield _table(found)
        yield f'<div class="plots">{"".join(_plots(found))}</div>\n'
        yield from _answers(found)
    yield f'<section><h2>How it was made</h2><div class="made">{facts_list(made)}</div></section>\n</main>\n{end(_SCRIPT)}'


def _warnings(found: Evaluation, failures: Sequence[str]) -> Iterator[str]:
    texts = [f"Failed, and not counted: {failure}" for failure in failures]
    if found.left_out:
        names = ", ".join(found.left_out[:10]) + (", …" if len(found.left_out) > 10 else "")
        texts.append(
            f"{len(found.left_out)} problems are left out, since not every strategy has answered them: {names}"
        )
    if texts:
        items = "".join(f"<li>{safe(text)}</li>" for text in texts)
        yield f'<section class="warnings"><h2>Warnings</h2><ul>{items}</ul></section>\n'


def _table(found: Evaluation) -> str:
    shown = columns(found.rows)
    heads = "".join(
        f'<th scope="col" title="{safe(column.about)}">{safe(column.name)}</th>' for column in shown
    )
    body = ""
    for row in found.rows:
        name, *rest = cells(row)[: len(shown)]
        body += (
            f"<tr><th scope=row>{safe(name)}</th>{''.join(f'<td>{safe(cell)}</td>' for cell in rest)}</tr>\n"
        )
    about = "".join(f"<dt>{safe(column.name)}</dt><dd>{safe(column.about)}</dd>" for column in shown)
    return (
        f'<section><h2>Strategies</h2><div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>\n{body}</tbody></table>'
        f"</div><details><summary>What the columns say</summary><dl>{about}</dl></details></section>\n"
    )


def _plots(found: Evaluation) -> Iterator[str]:
    bars = "Bars: the interval that holds the truth in 95 % of evaluations, over problems."
    yield plot("Accuracy and time", plots.accuracy_and_time(found.rows), f"Up and left is better. {bars}")
    if any(row.difference is not None for row in found.rows):
        yield plot(
            "What handing over costs",
            plots.difference_and_share(found.rows, found.baseline),
            f"Right answers more than {found.baseline}, on the same problems. {bars}",
        )
    yield plot(
        "Who writes",
        plots.authors(found.rows),
        "The means of an answer. Left: tokens of the large model, right: of the small one; the number is its share.",
    )
    yield plot(
        "How long the answers are",
        plots.lengths(found.rows, list(found.answers.values())),
        "Thick: the middle half, with the median. Thin: 5 to 95 %.",
    )


# --- the answers, by problem


def _answers(found: Evaluation) -> Iterator[str]:
    names = {row.strategy: row.name for row in found.rows}
    yield f'<section id="answers"><h2>Answers</h2><p class="key">{key()}</p>\n{_filters(found, names)}\n'
    by_problem: dict[str, dict[str, list[Answer]]] = {}
    for answer in chain(*found.answers.values()):
        by_strategy = by_problem.setdefault(answer.id, {name: [] for name in names})
        by_strategy[answer.line["strategy"]].append(answer)
    for id, of in by_problem.items():
        yield from _problem(id, of, names)
    yield "</section>\n"


def _filters(found: Evaluation, names: Mapping[str, str]) -> str:
    """Hidden until the script, which they need, is there. Without it all problems are shown."""
    options = '<option value="">any</option>' + "".join(
        f'<option value="{value}">{word}</option>'
        for value, word in (
            ("right", "right"), ("wrong", "wrong"), ("none", "no answer found"), ("timeout", "grader took too long"),
            ("cut", "cut at the budget"),
        )
    )  # fmt: skip
    selects = "".join(
        f"<label><span><b>{number}</b> {safe(name)}</span><select>{options}</select></label>"
        for number, name in enumerate(names.values(), 1)
    )
    order = list(names)
    quick = "".join(
        f'<button type="button" data-filter="{order.index(right)}:right {order.index(wrong)}:wrong">'
        f"{safe(names[right])} right, {safe(names[wrong])} wrong</button>"
        for other in order
        if other != found.baseline
        for right, wrong in ((found.baseline, other), (other, found.baseline))
    )
    return (
        f'<form hidden><div class="filters">{selects}</div><details><summary>Ready-made filters</summary>'
        f'<div class="quick">{quick}</div></details><p><output></output> <button type="reset">Show all</button></p></form>'
    )


def _problem(id: str, of: Mapping[str, Sequence[Answer]], names: Mapping[str, str]) -> Iterator[str]:
    line = next(iter(of.values()))[0].line
    told = "|".join(
        " ".join(sorted({word for answer in some for word in _words(answer)})) for some in of.values()
    )
    signs = "".join(_sign(n, names[name], some) for n, (name, some) in enumerate(of.items(), 1))
    problem = line["problem"]
    yield (
        f'<details class="problem" data-told="{told}"><summary><span class="id">{safe(id)}</span>'
        f'<span class="gist">{safe(" ".join(problem.split())[:160])}</span><span class="signs">{signs}</span></summary>\n'
        f'<p class="asked">{safe(problem)}</p><p class="reference">Right is: <b>{safe(line["reference"])}</b></p>\n'
        '<div class="side">\n'
    )
    for n, (name, some) in enumerate(of.items(), 1):
        for answer in some:
            yield from _answer(n, names[name], answer, len(some) > 1)
    yield "</div></details>\n"


def _words(answer: Answer) -> Iterator[str]:
    yield answer.grade.verdict.value
    if answer.is_cut:
        yield "cut"


def _sign(number: int, name: str, answers: Sequence[Answer]) -> str:
    """Of one strategy on one problem: the verdict, or how many of the samples are right."""
    right = sum(answer.is_right for answer in answers)
    verdicts = {answer.grade.verdict for answer in answers}
    [verdict, *others] = sorted(verdicts)
    if others:
        sign, word, kind = f"{right}/{len(answers)}", f"{right} of {len(answers)} right", "mixed"
    else:
        (sign, word), kind = _VERDICTS[verdict], verdict.value
    return f'<span class="sign {kind}" title="{safe(name)}: {word}"><small>{number}</small>{sign}</span>'


def _answer(number: int, name: str, answer: Answer, is_sampled: bool) -> Iterator[str]:
    line, verdict = answer.line, answer.grade.verdict
    sign, word = _VERDICTS[verdict]
    sample = f", sample {line['sample'] + 1}" if is_sampled else ""
    facts = [f"answer {answer.grade.found}"] if answer.grade.found else []
    facts.append(f"{answer.num_tokens:,} tokens")
    if answer.handovers:
        share = line["usage"]["small_tokens"] / max(1, answer.num_tokens)
        facts.append(f"{share:.0%} by the small model, {answer.handovers} hand-overs")
    facts.append(f"{answer.seconds:.1f} s")
    if answer.is_cut:
        facts.append("cut at the budget")
    yield (
        f'<article><h3><small>{number}</small> {safe(name)}{sample} <span class="{verdict.value}">{sign} {word}</span></h3>'
        f'<p class="facts">{" · ".join(map(safe, facts))}</p>'
    )
    yield from (f'<p class="facts">{safe(warning)}</p>' for warning in line["warnings"])
    yield '<div class="text">'
    yield from coloured([_stretch(segment) for segment in line["segments"]])
    yield "</div></article>\n"


def _stretch(segment: Mapping[str, object]) -> Stretch:
    author = Author(str(segment["author"]))
    about = f"ended by: {segment['reason']}" if author is Author.SMALL else ""
    return Stretch(author, str(segment["text"]), str(segment["cue"] or ""), about)


_STYLE = """
main { max-width:84rem; margin:0 auto; padding:0 1.5rem 4rem } section { margin-top:1.6rem; min-width:0 } p { margin:.4rem 0 }
header { padding-left:max(1.5rem, calc((100vw - 84rem) / 2 + 1.5rem)) }
.warnings { padding:.6rem 1rem; border-left:3px solid var(--mark); background:var(--wash) } .warnings ul { margin:.2rem 0 }
table { border-collapse:collapse; font-size:.9rem; font-variant-numeric:tabular-nums; margin:.4rem 0 }
td, th { padding:.25rem .7rem; text-align:right; border-bottom:1px solid var(--line); font-weight:400; white-space:nowrap }
th:first-child { text-align:left; padding-left:0 } thead th { color:var(--faint) }
summary { cursor:pointer } section > details > summary, form summary { color:var(--faint); font-size:.9rem }
:is(summary, button, select):focus-visible { outline:2px solid var(--mark); outline-offset:1px }
.plots { display:grid; grid-template-columns:repeat(auto-fit, minmax(min(100%, 32rem), 1fr)); gap:0 2.5rem }
.made dd { white-space:pre-wrap }
.filters { display:grid; grid-template-columns:repeat(auto-fill, minmax(10rem, 1fr)); gap:.6rem 1rem; margin:.8rem 0 .4rem }
label { display:grid; align-content:end; gap:.1rem; min-width:0; font-size:.85rem; overflow-wrap:anywhere }
label b { color:var(--faint); font-weight:400 }
select, button { font:inherit; font-size:.85rem; color:inherit; background:var(--panel); border:1px solid var(--line);
  border-radius:6px; padding:.2rem .5rem; max-width:100%; min-width:0 }
button { cursor:pointer } button:hover { background:var(--here) }
.quick { display:flex; flex-wrap:wrap; gap:.4rem; margin:.4rem 0 }
output { font-size:.9rem; margin-right:.6rem } form { margin-bottom:.8rem }
.problem { border-top:1px solid var(--line); content-visibility:auto; contain-intrinsic-size:auto 2.4rem }
.problem > summary { display:grid; grid-template-columns:minmax(7rem, max-content) 1fr auto; gap:0 1rem; padding:.35rem .2rem;
  align-items:baseline; list-style:none }
.problem > summary:hover, .problem[open] > summary { background:var(--here) }
.id { min-width:0; font-variant-numeric:tabular-nums } .id::before { content:"\\25B8"; color:var(--faint); margin-right:.4em }
[open] > summary > .id::before { content:"\\25BE" }
.gist { color:var(--faint); overflow:hidden; text-overflow:ellipsis; white-space:nowrap }
[open] > summary > .gist { visibility:hidden }
.signs { display:flex; flex-wrap:wrap; gap:.2rem } .sign small { margin-right:.3em }
.sign { min-width:2.4rem; padding:0 .35rem; border-radius:4px; text-align:center; font-size:.85rem; white-space:nowrap;
  background:color-mix(in srgb, currentColor 12%, transparent) }
.right { color:var(--green) } .wrong { color:var(--red) } .none, .timeout { color:var(--faint) } .mixed { color:var(--mark) }
.asked { white-space:pre-wrap; overflow-wrap:anywhere; max-width:60rem; margin:.6rem 0 } .reference { margin-bottom:.8rem }
.side { display:grid; grid-template-columns:repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap:1rem; padding-bottom:1.5rem }
article { padding:.6rem .9rem; border:1px solid var(--line); border-radius:8px; background:var(--panel); min-width:0 }
h3 { margin:0; font-size:.95rem; overflow-wrap:anywhere } h3 span { font-weight:400; margin-left:.4em; white-space:nowrap }
.text { font-size:.9rem; margin-top:.5rem } article .facts { margin:.1rem 0 }
@media (max-width:45rem) { main, header { padding-left:1rem; padding-right:1rem }
  .problem > summary { grid-template-columns:1fr }
  .id { overflow-wrap:anywhere } [open] > summary > .gist { display:none }
  .made dl, header dl { grid-template-columns:1fr }
  .made dd, header dd { margin-bottom:.4rem } }
"""

_SCRIPT = """
const form = document.querySelector("form");
if (form) {
  const selects = [...form.querySelectorAll("select")], count = form.querySelector("output");
  const problems = [...document.querySelectorAll(".problem")].map(element =>
    ({ element, told: element.dataset.told.split("|").map(words => words.split(" ")) }));
  const filter = () => {
    const wanted = selects.map(select => select.value);
    let shown = 0;
    for (const { element, told } of problems) {
      element.hidden = !wanted.every((word, strategy) => !word || told[strategy].includes(word));
      shown += !element.hidden;
    }
    count.value = `${shown} of ${problems.length} problems`;
  };
  form.addEventListener("change", filter);
  form.addEventListener("submit", event => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(filter)); // the fields change after the event
  form.addEventListener("click", event => {
    const words = event.target.dataset.filter;
    if (!words) return;
    for (const select of selects) select.value = "";
    for (const word of words.split(" ")) {
      const [strategy, value] = word.split(":");
      selects[strategy].value = value;
    }
    filter();
  });
  form.hidden = false;
  filter(); // a browser may have kept the fields over a reload
}
"""
