// Client of the HTTP API: bearer token, retries when the service is busy, upload progress, errors in plain words.

const KEY = "kappaplace-token";
const TRIES = 5;
const TIMEOUT = 90_000; // milliseconds without an answer; the service itself gives up earlier
const LATER = new Set([0, 408, 409, 429, 500, 502, 503, 504]); // statuses after which another try can succeed

export class ApiError extends Error {
  constructor(words, status, code = "") {
    super(words);
    this.status = status;
    this.code = code;
    this.again = LATER.has(status);
  }
}

let map = null;
export const useMap = (name) => (map = name);

function urlOf(path, values = {}) {
  const url = new URL(path, location.origin);
  const all = map === null ? values : { map, ...values };
  for (const [name, value] of Object.entries(all)) if (value !== null) url.searchParams.set(name, value);
  return url;
}

let pending = null;

/** Show one dialog, even if several requests were rejected at once. */
function askToken(rejected) {
  pending ??= new Promise((resolve) => {
    const dialog = document.getElementById("token");
    const field = document.getElementById("token-field");
    if (rejected) document.getElementById("token-words").textContent = "The token was not accepted. Try another one.";
    field.value = "";
    dialog.addEventListener("close", () => {
      pending = null;
      if (dialog.returnValue === "ok" && field.value) sessionStorage.setItem(KEY, field.value.trim());
      resolve(dialog.returnValue === "ok" && field.value !== "");
    }, { once: true });
    // Not a submit button, because Enter in the field presses the first submit button.
    document.getElementById("token-cancel").onclick = () => dialog.close("");
    dialog.returnValue = "";
    dialog.showModal();
  });
  return pending;
}

const unreachable = () => new ApiError("The service cannot be reached. Check your connection, and that the service is running.", 0);
const late = () => new ApiError(`The service did not answer within ${TIMEOUT / 1000} seconds.`, 0);

/** Fetch with a time limit. */
async function fetched(url, { signal, ...options }) {
  const limit = AbortSignal.timeout(TIMEOUT);
  try {
    return await fetch(url, { ...options, signal: signal ? AbortSignal.any([signal, limit]) : limit });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw error.name === "TimeoutError" ? late() : unreachable();
  }
}

/** The same with XMLHttpRequest, because fetch does not report how much was sent. */
function uploaded(url, { method, body, headers, signal, progress }) {
  return new Promise((resolve, reject) => {
    const link = new XMLHttpRequest();
    link.open(method, url);
    for (const [name, value] of Object.entries(headers)) link.setRequestHeader(name, value);
    link.timeout = TIMEOUT;
    link.upload.onprogress = ({ loaded, total }) => progress(total ? loaded / total : 0);
    link.upload.onload = () => progress(1);
    link.onload = () => resolve(new Response(link.response, { status: link.status, headers: { "Retry-After": link.getResponseHeader("Retry-After") ?? "" } }));
    link.onerror = () => reject(unreachable());
    link.ontimeout = () => reject(late());
    link.onabort = () => reject(new DOMException("", "AbortError"));
    signal?.addEventListener("abort", () => link.abort());
    link.send(body);
  });
}

async function request(url, options = {}, busy = () => {}) {
  for (let tries = 1; ; ) {
    options.signal?.throwIfAborted();
    const token = sessionStorage.getItem(KEY);
    const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
    const answer = await (options.progress ? uploaded : fetched)(url, { ...options, headers });
    if (answer.status === 401) {
      // Another request may have received a new token in the meantime.
      if (sessionStorage.getItem(KEY) !== token || (await askToken(Boolean(token)))) continue;
      throw Object.assign(new ApiError("This service requires a token.", 401), { again: true });
    }
    if (answer.status === 429 && tries < TRIES) {
      const wait = Math.min(Math.max(Number(answer.headers.get("Retry-After")) || 1, 0.2), 30);
      busy(wait, tries);
      await pause(wait * 1000, options.signal);
      tries += 1;
      continue;
    }
    if (!answer.ok) throw await failure(answer);
    return answer;
  }
}

const pause = (time, signal) =>
  new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, time);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new DOMException("", "AbortError"));
    });
  });

const PLAIN = {
  413: "This photo is too large for the service. Send a smaller one.",
  415: "This file type is not supported. Send a JPEG, PNG or WebP photo.",
  429: "The service is still busy after several attempts. Try again in a minute.",
};

async function failure(answer) {
  try {
    const { detail, error, code } = await answer.json();
    const message = detail ?? error;
    if (typeof message === "string" && message) return new ApiError(PLAIN[answer.status] ?? message, answer.status, code);
  } catch {
    // not JSON: an answer of a proxy
  }
  return new ApiError(PLAIN[answer.status] ?? `The service returned an error (${answer.status}).`, answer.status);
}

export const get = async (path, values, signal) => (await request(urlOf(path, values), { signal })).json();

/** Return null if the service does not have it. */
export async function getIfThere(path, values) {
  try {
    return await get(path, values);
  } catch (error) {
    if (error.status === 404) return null;
    throw error;
  }
}

export const getBlob = async (path, signal) => (await request(urlOf(path), { signal })).blob();

/** Send what a person said about an answer. */
export async function sendLabel(answer, label) {
  const body = JSON.stringify({ answer, label, ...(map === null ? {} : { map }) });
  return (await request(urlOf("/v1/labels"), { method: "POST", body, headers: { "Content-Type": "application/json" } })).json();
}

/** Localize photos {blob, name}; returns one {answer} or {error} per photo. `watch` is {signal, busy, progress}. */
export async function localize(photos, values, { signal, busy, progress }) {
  const body = new FormData();
  for (const { blob, name } of photos) body.append("image", blob, name);
  const many = photos.length > 1;
  const fields = { ...(map === null ? {} : { map }), ...values, ...(many ? { on_error: "skip" } : {}) };
  for (const [key, value] of Object.entries(fields)) body.append(key, value);
  const url = new URL(many ? "/v1/localize/batch" : "/v1/localize", location.origin);
  const found = await (await request(url, { method: "POST", body, signal, progress, headers: {} }, busy)).json();
  if (!many) return [{ answer: found }];
  const wrong = new Map(found.errors.map((each) => [each.index, new ApiError(each.detail, each.status, each.code)]));
  return found.answers.map((answer, i) => (answer ? { answer } : { error: wrong.get(i) }));
}
