// How authors, endings and numbers are said.

const ENDINGS = {
  cue: "a cue",
  sentence: "the end of its sentence",
  answer: "the start of the answer",
  cap: "the longest turn the profile allows",
  repetition: "repeating itself",
  unsure: "being unsure",
  lot: "lot",
  eos: "the end of the text",
  length: "the token limit",
  small_failed: "a failure of the small model",
  stopped: "a stop",
  error: "an error",
};

export function ending({ reason, cue }) {
  if (!reason) return "";
  return cue ? `the cue “${cue.trim()}”` : ENDINGS[reason] ?? reason;
}

export function handOverLabel(before, author) {
  const why = ending(before);
  return `${author} model${why && `, after ${why}`}`;
}

export function turnLabel(segment, number) {
  const why = ending(segment);
  return `Turn ${number}: ${segment.author}, ${segment.exact ? "" : "about "}${plural(segment.tokens, "token")}${why && `, ended by ${why}`}`;
}

export const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
export const percent = (fraction) => `${Math.round(fraction * 100)} %`;
export const seconds = (ms) => `${(ms / 1000).toFixed(1)} s`;
export const perSecond = (count, ms) => `${(ms > 0 ? (count / ms) * 1000 : 0).toFixed(1)} tokens/s`;
