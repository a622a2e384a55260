// One answer on the page: its text, its timeline, the live figures, and how it ended.

import { following } from "./follow.js";
import { AskError, ask } from "./stream.js";
import { Timeline, handOvers } from "./timeline.js";
import { Transcript } from "./transcript.js";
import { ending, percent, perSecond, plural, seconds } from "./words.js";

const TICK_MS = 250;
const RATE_TICKS = 8; // tokens/s is over the last two seconds

export class Answer {
  element = document.getElementById("answer").content.firstElementChild.cloneNode(true);
  #transcript;
  #timeline;
  #ticks = [{ time: performance.now(), tokens: 0 }];

  constructor(title) {
    this.#find("h2").textContent = title;
    const stage = (name) => ({ box: this.#find(`.${name}`), body: this.#find(`.${name} .text`), line: null });
    this.#transcript = new Transcript({ reasoning: stage("reasoning"), answer: stage("content") });
    const { segments } = this.#transcript;
    this.#timeline = new Timeline(this.#find(".timeline"), this.#find(".turn"), segments);
  }

  // Returns a sentence on how it went. Does not raise but for faults of its own.
  async run(body, key, signal) {
    const started = performance.now();
    const timer = setInterval(() => this.#tick(started), TICK_MS);
    this.element.setAttribute("aria-busy", "true");
    let finish = null;
    let failure = null;
    try {
      for await (const event of ask(body, key, signal)) {
        if (event.kind === "text") this.#transcript.write(event.author, event.stage, event.text);
        else this.#transcript.end(event);
        if (event.kind === "finish") finish = event;
      }
    } catch (error) {
      failure = error;
    }
    clearInterval(timer);
    this.#transcript.flush();
    this.element.removeAttribute("aria-busy");
    if (failure && !signal.aborted && !(failure instanceof AskError)) throw failure;
    following(() => {
      if (signal.aborted) this.#show(".note", "Stopped");
      else if (failure) this.#show(".error", failure.message);
      this.#summarise(finish, performance.now() - started);
    });
    if (failure) return { text: signal.aborted ? "Stopped" : "", status: failure.status };
    return { text: `Complete: ${this.#find(".meter").textContent}` };
  }

  #tick(started) {
    const now = { time: performance.now(), tokens: this.#count() };
    this.#ticks = [...this.#ticks, now].slice(-RATE_TICKS - 1);
    const [then] = this.#ticks;
    const small = this.#count("small");
    this.#meter(now.tokens, small, now.tokens - then.tokens, now.time - then.time, now.time - started);
  }

  #meter(tokens, small, recent, recentMs, totalMs) {
    this.#find(".meter").textContent = [
      plural(tokens, "token"),
      perSecond(recent, recentMs),
      `${percent(tokens ? small / tokens : 0)} by the small model`,
      seconds(totalMs),
    ].join(" · ");
    if (tokens) this.#timeline.update();
  }

  // The gateway's figures where it gave them, else what was counted here.
  #summarise(finish, elapsedMs) {
    const large = finish?.usage?.large_tokens ?? this.#count("large");
    const small = finish?.usage?.small_tokens ?? this.#count("small");
    const ms = finish?.timings.total_ms ?? elapsedMs;
    this.#meter(large + small, small, large + small, ms, ms);
    const rows = {
      Large: plural(large, "token"),
      Small: `${plural(small, "token")}, ${percent(large + small ? small / (large + small) : 0)}`,
      "Hand-overs": handOvers(this.#transcript.segments).toLocaleString("en"),
      Time: `${seconds(ms)}, ${perSecond(large + small, ms)}`,
    };
    if (finish) rows["Ended by"] = ending(finish);
    const list = this.#find(".summary");
    for (const [name, value] of Object.entries(rows)) addRow(list, name, value);
    for (const warning of finish?.warnings ?? []) addRow(list, "Warning", warning);
    list.hidden = large + small === 0;
  }

  #count(author) {
    let tokens = 0;
    for (const segment of this.#transcript.segments) {
      if (!author || segment.author === author) tokens += segment.tokens;
    }
    return tokens;
  }

  #show(selector, text) {
    const element = this.#find(selector);
    element.textContent = text;
    element.hidden = false;
  }

  #find(selector) {
    return this.element.querySelector(selector);
  }
}

function addRow(list, name, value) {
  const row = document.createElement("div");
  const term = document.createElement("dt");
  const text = document.createElement("dd");
  term.textContent = name;
  text.textContent = value;
  row.append(term, text);
  list.append(row);
}
