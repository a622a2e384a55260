// The turns as a bar, each as wide as it has tokens. One stop of the Tab key; the arrow keys move inside.

import { plural, turnLabel } from "./words.js";

const STEPS = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1, Home: -Infinity, End: Infinity };

export class Timeline {
  #bar;
  #caption;
  #segments;
  #shown = null; // the turn under the pointer or the focus
  #done = 0; // turns before this one do not change any more

  constructor(bar, caption, segments) {
    this.#bar = bar;
    this.#caption = caption;
    this.#segments = segments;
    const tell = (event) => this.#tell(this.#indexOf(event.target));
    const forget = () => this.#tell(this.#indexOf(document.activeElement));
    bar.addEventListener("pointerover", tell);
    bar.addEventListener("pointerleave", forget);
    bar.addEventListener("focusin", tell);
    bar.addEventListener("focusout", () => this.#tell(-1));
    bar.addEventListener("click", (event) => this.#scrollTo(this.#indexOf(event.target)));
    bar.addEventListener("keydown", (event) => this.#move(event));
  }

  update() {
    for (let i = this.#done; i < this.#segments.length; i++) {
      const segment = this.#segments[i];
      const button = this.#bar.children[i] ?? this.#add(segment);
      button.style.flexGrow = segment.tokens;
      button.setAttribute("aria-label", turnLabel(segment, i + 1));
    }
    this.#done = Math.max(0, this.#segments.length - 1);
    this.#tell(this.#shown ?? -1);
  }

  #add({ author }) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = author;
    button.tabIndex = this.#bar.children.length ? -1 : 0;
    this.#bar.append(button);
    return button;
  }

  #indexOf(element) {
    return [...this.#bar.children].indexOf(element);
  }

  #tell(index) {
    this.#shown = index < 0 ? null : index;
    const segment = this.#segments[index];
    this.#caption.textContent = segment
      ? turnLabel(segment, index + 1)
      : `${plural(this.#segments.length, "turn")}, ${plural(handOvers(this.#segments), "hand-over")}`;
  }

  #move(event) {
    const step = STEPS[event.key];
    const at = this.#indexOf(document.activeElement);
    if (!step || at < 0) return;
    event.preventDefault();
    const to = Math.min(this.#bar.children.length - 1, Math.max(0, at + step));
    this.#bar.children[at].tabIndex = -1;
    this.#bar.children[to].tabIndex = 0;
    this.#bar.children[to].focus();
  }

  #scrollTo(index) {
    const spans = this.#segments[index]?.spans ?? [];
    if (!spans.length) return;
    const closed = spans[0].closest("details:not([open])");
    if (closed) closed.open = true;
    spans[0].scrollIntoView({ block: "center" });
    const animation = [{ outline: "2px solid var(--mark)" }, { outline: "2px solid transparent" }];
    for (const span of spans) span.animate(animation, { duration: 2000, easing: "ease-in" });
  }
}

export function handOvers(segments) {
  return segments.filter((segment, i) => i && segment.author !== segments[i - 1].author).length;
}
