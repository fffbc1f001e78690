// What all tabs share: the token, requests, texts, colours, and the instant of the newest data.

// A fragment that begins with a slash names a tab. Any other one is the token, which has no slash: it is never sent,
// and moves to the storage of this browser tab.
export function takeToken() {
  const fragment = location.hash.slice(1);
  if (!fragment || fragment.startsWith("/")) return;
  sessionStorage.setItem("token", fragment);
  history.replaceState(null, "", location.pathname);
}

// An answer that takes longer does not come: the server runs on this machine.
const PATIENCE_MS = 15000;

// Send a request with the token, and return the answer.
export async function send(path, { headers, ...options } = {}) {
  const token = sessionStorage.getItem("token");
  const authorization = `Bearer ${token ?? ""}`;
  const answer = await fetch(path, { ...options, headers: { ...headers, authorization } }).catch(() => {
    throw new Error("server not reached: it is asked again each second");
  });
  if (answer.status === 401 && !token) throw new Error("token missing: open the whole URL that tidegate serve printed, with the part behind #");
  if (answer.status === 401) throw new Error("token not valid: the server has restarted; open the URL that it printed");
  return answer;
}

export const isJson = (answer) => answer.headers.get("content-type") === "application/json";

// Send a request, and return the answer's JSON. It has a `problem` where a sentence says why there is nothing else.
// `body` makes it a POST.
export async function fetchJson(path, body) {
  const options = body === undefined
    ? {}
    : { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  const answer = await send(path, { ...options, signal: AbortSignal.timeout(PATIENCE_MS) });
  const given = isJson(answer) ? await answer.json() : null;
  if (given && (answer.ok || given.problem)) return given;
  throw new Error(`page not updated: the server answered ${answer.status}; it is asked again`);
}

// ---------------------------------------------------------------- texts

const WINDOWS = new Map([[1, "s"], [60, "min"], [3600, "h"], [86400, "day"]]);

export const amount = (value) => {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  if (size >= 1e4) return `${(value / 1e3).toFixed(0)} k`;
  return size >= 10 || Number.isInteger(value) ? count(Math.round(value)) : value.toFixed(1);
};

// A whole number in full, with thin spaces between the thousands.
export const count = (value) => (value === null || value === undefined ? "–" : String(value).replace(/\B(?=(\d{3})+$)/g, "\u202f"));

export const clock = (seconds) => {
  const all = Math.max(0, Math.round(seconds));
  const [h, m, s] = [Math.floor(all / 3600), Math.floor((all % 3600) / 60), all % 60];
  const two = (n) => String(n).padStart(2, "0");
  return h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
};

export const duration = (seconds) => (seconds < 9.95 ? `${seconds.toFixed(1)} s` : seconds < 59.5 ? `${seconds.toFixed(0)} s` : clock(seconds));
// A rate of calls: slow ones by the minute, with as many digits as tell two of them apart.
export const paced = (rate) => {
  const [value, unit] = rate >= 2 ? [rate, "s"] : rate >= 0.01 || rate === 0 ? [60 * rate, "min"] : [3600 * rate, "h"];
  return `${value >= 100 ? amount(value) : Number(value.toPrecision(3))}/${unit}`;
};
export const per = (window) => WINDOWS.get(window) ?? duration(window);
export const time = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });
export const age = (seconds) => (seconds < 59.5 ? `${Math.round(seconds)} s` : seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`);
export const dollars = (value) => (value >= 1 || value === 0 ? `$${value.toFixed(2)}` : `$${Number(value.toPrecision(2)).toFixed(Math.min(20, 1 - Math.floor(Math.log10(value))))}`);
export const many = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

// ---------------------------------------------------------------- colours of charts

const probe = document.createElement("span");
probe.hidden = true;
document.body.append(probe);

// Return the present value of a colour of the style sheet, as a canvas needs it.
export const colour = (name) => {
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
};
