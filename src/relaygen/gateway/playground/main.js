// The page: reads the form, asks, stops. One question at a time.

import { Answer } from "./answer.js";
import { AskError, request } from "./stream.js";
import { themeButton } from "./theme.js";

const KEY = "relaygen-api-key"; // in sessionStorage: gone when the tab is closed
const TITLES = { large: "Large only", small: "Small only" };
const byId = (id) => document.getElementById(id);
const form = byId("ask");
const send = byId("send");
const stop = byId("stop");
let running = null; // the AbortController of the question being answered

themeButton(byId("theme"));
byId("key").value = sessionStorage.getItem(KEY) ?? "";
listModels();

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (!running) answer();
});
stop.addEventListener("click", () => running?.abort());
byId("key").addEventListener("change", () => {
  sessionStorage.setItem(KEY, key());
  listModels();
});
byId("question").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  if (!running) form.requestSubmit();
});
addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});

async function answer() {
  notice("");
  begin();
  const { signal } = running;
  const policy = byId("policy").value;
  const questions = [[TITLES[policy] ?? "Relay", question(policy)]];
  // One after the other: at once they would share the large engine, and neither time would mean anything.
  if (byId("compare").checked) questions.push([TITLES.large, question("large")]);
  byId("answers").replaceChildren();
  try {
    for (const [title, body] of questions) {
      if (signal.aborted) break;
      const one = new Answer(title);
      byId("answers").append(one.element);
      const { text, status } = await one.run(body, key(), signal);
      byId("status").textContent = text && `${title}: ${text}`;
      if (status === 401) byId("key").focus();
    }
  } finally {
    end();
  }
}

function begin() {
  running = new AbortController();
  stop.disabled = false;
  if (document.activeElement === send) stop.focus({ preventScroll: true }); // a disabled button cannot keep it
  send.disabled = true;
  byId("status").textContent = "Writing. Escape stops.";
}

function end() {
  running = null;
  send.disabled = false;
  if (document.activeElement === stop) send.focus({ preventScroll: true });
  stop.disabled = true;
}

// What the OpenAI client would send. An empty field is the profile's affair.
function question(policy) {
  const body = {
    model: byId("model").value,
    messages: [{ role: "user", content: byId("question").value }],
    relaygen: { segments: true },
  };
  if (policy) body.relaygen.policy = policy;
  if (byId("max-tokens").value) body.max_tokens = byId("max-tokens").valueAsNumber;
  if (byId("temperature").value) body.temperature = byId("temperature").valueAsNumber;
  return body;
}

// One model a profile. `relaygen:large` and `relaygen:small` are left to the choice of who writes.
async function listModels() {
  const select = byId("model");
  try {
    const { data } = await (await request("v1/models", key())).json();
    const ids = data.map((model) => model.id).filter((id) => !/:(large|small)$/.test(id));
    if (ids.length) select.replaceChildren(...ids.map((id) => new Option(id)));
    notice("");
  } catch (error) {
    if (!(error instanceof AskError)) throw error;
    notice(error.message);
  }
}

function key() {
  return byId("key").value.trim();
}

function notice(text) {
  byId("notice").textContent = text;
  byId("notice").hidden = !text;
}
