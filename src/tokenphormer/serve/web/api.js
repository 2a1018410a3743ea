// Questions to the server, with the token if there is one.

const KEY = "tokenphormer-token";

/** Take a token out of the address, so that it is neither copied nor kept in the history. */
export function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1));
  const token = given.get("token");
  if (token === null) return;
  sessionStorage.setItem(KEY, token);
  given.delete("token");
  const rest = given.toString();
  history.replaceState(null, "", location.pathname + (rest ? `#${rest}` : ""));
}

export class Failure extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function ask(path, parameters = {}, options = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "") query.append(name, String(value).toWellFormed());
  }
  const token = sessionStorage.getItem(KEY);
  const headers = { ...(options.headers ?? {}), ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  const address = query.size ? `${path}?${query}` : path;
  let answer;
  try {
    answer = await fetch(address, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure(0, "The server does not answer. Is it still running?");
  }
  const body = await answer.json().catch((error) => {
    if (error.name === "AbortError") throw error; // given up while it came: that is no answer
    if (answer.ok) throw new Failure(0, "The server's answer broke off. Is it still running?");
    return {};
  });
  if (!answer.ok) throw new Failure(answer.status, explain(answer.status, body.error));
  return body;
}

function explain(status, error) {
  if (status === 401) return "This server wants a token: open the address that it printed, with #token=… at its end.";
  const details = (error?.details ?? []).map((each) => `${each.where}: ${each.message}`);
  return [error?.message ?? `The server answered ${status}.`, ...details].join(" · ");
}

export const sleep = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

/** Ask again while the answer is "not yet"; `meanwhile` is told each time. */
export async function askUntilReady(path, parameters, meanwhile = () => {}) {
  for (;;) {
    try {
      return await ask(path, parameters);
    } catch (error) {
      if (error.status !== 503 || /could not/.test(error.message)) throw error;
      meanwhile(error.message);
      await sleep(1500);
    }
  }
}
