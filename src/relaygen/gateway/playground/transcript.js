// The text of one answer, by author and stage, as the segments that wrote it.
// Text is only ever set as text: nothing a model writes can become markup.
// Each line is a block of its own, so the browser lays out the last one anew and not the whole text; what comes
// between two frames is appended at once.

import { following } from "./follow.js";
import { handOverLabel } from "./words.js";

export class Transcript {
  segments = []; // {author, stage, tokens, spans, to, reason, cue, exact}; tokens: chunks, until the gateway told (exact)
  #stages; // stage -> {body, box, line}
  #current = null; // the segment being written
  #ended = 0; // segments of turns that ended
  #pending = "";
  #frame = 0;

  constructor(stages) {
    this.#stages = stages;
  }

  // A chunk is a token as a rule, but a few together where the gateway had to hold text back (for a stop string, say).
  write(author, stage, text) {
    const now = this.#current;
    if (now?.author !== author || now.stage !== stage) this.#begin(author, stage);
    this.#current.tokens += 1;
    this.#pending += text;
    this.#frame ||= requestAnimationFrame(() => this.flush());
  }

  // A segment ended. The next one begins with the next text.
  end({ to, reason, cue, tokens }) {
    this.flush();
    const segment = this.#current ?? this.segments.at(-1);
    this.#current = null;
    const turn = this.segments.slice(this.#ended); // two where it had a thought and an answer
    this.#ended = this.segments.length;
    if (!segment) return;
    Object.assign(segment, { to, reason, cue });
    if (tokens && turn.length === 1) Object.assign(segment, { tokens, exact: true });
    if (cue) markCue(segment.spans, cue.trim());
  }

  flush() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    if (!this.#pending) return;
    following(() => this.#append(this.#pending));
    this.#pending = "";
  }

  #begin(author, stage) {
    this.flush();
    const before = this.segments.at(-1);
    this.#current = { author, stage, tokens: 0, spans: [] };
    this.segments.push(this.#current);
    if (before && before.author !== author) this.#markHandOver(before, author, stage);
  }

  #append(text) {
    const stage = this.#stages[this.#current.stage];
    if (stage.box.hidden) {
      text = text.trimStart(); // models put blank lines between their thoughts and the answer
      if (!text) return;
      stage.box.hidden = false;
    }
    for (const part of text.split(/(?<=\n)/)) {
      const span = this.#spanIn(this.#openLine(stage));
      if (span.lastChild) span.lastChild.appendData(part);
      else span.append(part);
    }
  }

  #openLine(stage) {
    if (!stage.line || stage.line.lastChild?.lastChild?.data?.endsWith("\n")) {
      stage.line = make("div", "line");
      stage.body.append(stage.line);
    }
    return stage.line;
  }

  #spanIn(line) {
    const { author, spans } = this.#current;
    const last = spans.at(-1);
    if (last?.parentNode === line) return last;
    const span = make("span", author);
    line.append(span);
    spans.push(span);
    return span;
  }

  #markHandOver(before, author, stage) {
    const target = this.#stages[stage];
    if (target.box.hidden) return; // it would stand above the first line
    const mark = make("i", `hand-over to-${author}`); // the sign comes from the style sheet, so that nobody copies it
    mark.setAttribute("role", "img");
    mark.setAttribute("aria-label", mark.title = handOverLabel(before, author));
    this.#openLine(target).append(mark);
  }
}

// The cue stands at the end of its segment, or a look-ahead token before it.
function markCue(spans, cue) {
  for (const span of spans.slice(-3).reverse()) {
    const text = span.lastChild;
    const at = lower(text.data).lastIndexOf(lower(cue));
    if (at < 0) continue;
    const found = text.splitText(at);
    found.splitText(cue.length);
    const mark = make("mark", "cue");
    found.replaceWith(mark);
    mark.append(found);
    return;
  }
}

// Some letters grow when made small; then positions would be off.
function lower(text) {
  const small = text.toLowerCase();
  return small.length === text.length ? small : text;
}

function make(tag, className) {
  const element = document.createElement(tag);
  element.className = className;
  return element;
}
