// Calls the API of the server that this page came from. The API key is kept in sessionStorage and ends with
// the tab.

const STORED = "pacegate-key";
let memory = "";

/** An error response of the server. */
export class Refused extends Error {
  constructor(status, { type = "", detail, title = `status ${status}` }) {
    super(detail ?? title);
    this.status = status;
    /** The last segment of the problem type. */
    this.kind = type.split(":").pop();
  }
}

/** No response, or one that is not from Pacegate. */
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
    // Without storage, the key is kept until the page is closed.
  }
}

/** Sends a request and returns the JSON of the response. Paths are relative, so that a proxy can serve the page in a subdirectory. */
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
  // The connection was closed, or a proxy returned a login page.
  if (said === null) throw new Unreachable("the response is not JSON");
  return said;
}

/** Returns one sentence about a failure, for display. */
export function sentence(error) {
  if (error instanceof Unreachable) return "Server unreachable.";
  if (!(error instanceof Refused)) throw error;
  if (error.status === 401) return "This request needs a valid API key. Set one with “API key”.";
  if (error.status === 403) return `This API key lacks the permission: ${error.message}.`;
  return `Rejected: ${error.message}.`;
}
