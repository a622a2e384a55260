// Asks the gateway and reads what it streams: bytes -> lines -> chunks -> events. Knows nothing of the page.
// A stream is complete only when a "finish" event was seen; one that ends before it is an error.

export class AskError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status; // of HTTP, 0 if there is none
  }
}

// GET or POST to the gateway, with the error told in the gateway's own words.
export async function request(path, key, options = {}) {
  const headers = { "Content-Type": "application/json" };
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new AskError(`The server cannot be reached: ${error.message}`);
  }
  if (!response.ok) throw new AskError(await told(response), response.status);
  return response;
}

async function told(response) {
  const text = await response.text();
  try {
    const message = JSON.parse(text).error.message;
    if (message) return message;
  } catch { /* not an error of the gateway's: a proxy's page, say */ }
  return `The server answered ${response.status} ${response.statusText}`.trim();
}

// Yields {kind: "text", author, stage, text}, {kind: "switch", author, to, reason, cue} and, last,
// {kind: "finish", author, reason, usage, timings, warnings}.
export async function* ask(body, key, signal) {
  const response = await request("v1/chat/completions", key, {
    method: "POST",
    signal,
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
  });
  let finished = false;
  try {
    for await (const chunk of chunks(response.body)) {
      if (chunk.error) throw new AskError(chunk.error.message ?? "The server reported an error");
      for (const event of events(chunk)) {
        finished ||= event.kind === "finish";
        yield event;
      }
    }
  } catch (error) {
    if (error instanceof AskError || error.name === "AbortError") throw error;
    throw new AskError(`The connection broke: ${error.message}`);
  }
  if (!finished) throw new AskError("The connection ended before the answer was complete");
}

function* events({ choices, relaygen = {} }) {
  const delta = choices?.[0]?.delta ?? {};
  const { author } = relaygen;
  const reasoning = delta.reasoning_content ?? delta.reasoning;
  if (reasoning) yield { kind: "text", author, stage: "reasoning", text: reasoning };
  if (delta.content) yield { kind: "text", author, stage: "answer", text: delta.content };
  if (relaygen.switch) yield { kind: "switch", ...relaygen.switch };
  if (relaygen.finish) {
    const { usage, timings = {}, warnings = [] } = relaygen;
    yield { kind: "finish", ...relaygen.finish, usage, timings, warnings };
  }
}

async function* chunks(body) {
  for await (const line of lines(body)) {
    if (!line.startsWith("data:")) continue; // comments keep the connection alive
    const data = line.slice(5).trim();
    if (data === "[DONE]") return;
    let chunk;
    try {
      chunk = JSON.parse(data);
    } catch {
      throw new AskError(`The server sent what is not JSON: ${data.slice(0, 80)}`);
    }
    yield chunk;
  }
}

async function* lines(body) {
  // By a reader: Safari cannot iterate a stream.
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      for (const part of parts) yield part.trimEnd();
    }
  } finally {
    await reader.cancel().catch(() => {}); // does nothing at the end; closes the connection before it
  }
}
