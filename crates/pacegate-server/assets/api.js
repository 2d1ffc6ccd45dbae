// Talks to the server this page came from. The API key lives in sessionStorage at most: it ends with the tab.

const STORED = "pacegate-key";
let memory = "";

/** What the server refused, in its own words. */
export class Refused extends Error {
  constructor(status, { type = "", detail, title = `status ${status}` }) {
    super(detail ?? title);
    this.status = status;
    /** The last word of the problem's type. */
    this.kind = type.split(":").pop();
  }
}

/** There was no answer, or one of somebody else. */
export class Unreachable extends Error {}

export function apiKey() {
  try {
    return sessionStorage.getItem(STORED) ?? "";
  } catch {
    return memory;
  }
}

export function setApiKey(key) {
  memory = key;
  try {
    if (key) sessionStorage.setItem(STORED, key);
    else sessionStorage.removeItem(STORED);
  } catch {
    // Kept until the page is left.
  }
}

/** Asks, and returns the JSON of the answer. Paths are relative, so that a proxy may put the page in a folder. */
export async function ask(method, path, { query = {}, body } = {}) {
  const words = new URLSearchParams(query).toString();
  const headers = {};
  if (apiKey()) headers.authorization = `Bearer ${apiKey()}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const sent = fetch(words ? `${path}?${words}` : path, {
    method,
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    cache: "no-store",
    credentials: "same-origin",
    redirect: "error",
    signal: AbortSignal.timeout(10_000),
  });
  const answer = await sent.catch((error) => {
    throw new Unreachable(error.message);
  });
  const said = await answer.json().catch(() => null);
  if (!answer.ok) throw new Refused(answer.status, said ?? {});
  // The connection was cut, or a proxy asks for a login.
  if (said === null) throw new Unreachable("the answer is not JSON");
  return said;
}

/** One sentence about a failure, for people. */
export function sentence(error) {
  if (error instanceof Unreachable) return "The server cannot be reached.";
  if (!(error instanceof Refused)) throw error;
  if (error.status === 401) return "It takes an API key, and this one is not known. Set one with “API key”.";
  if (error.status === 403) return `This API key may not do that: ${error.message}.`;
  return `Refused: ${error.message}.`;
}
