// The samples of all keys: they are fetched here, kept while the page is open, and joined by key.
import { fetchJson } from "/static/parts.js";

// Samples that are kept of each key. The server has ten minutes; an open page keeps an hour.
export const KEPT = 3600;
const CHANGES = 200;
const SAME_FOR = 5;

// `paused` holds the page still: nothing is fetched.
export const state = { sample: 0, asOf: 0, runs: [], finished: [], totals: {}, changes: [], series: new Map(), loaded: false, paused: false };

const PLAIN = ["number", "in_flight", "waiting", "slots", "sent", "refused", "pace"];

function merged(key) {
  const last = state.series.get(key.id);
  const given = key.series;
  if (!last) return given;
  // Samples that the server no longer had are a gap in the charts.
  const gap = given.number.length > 0 && last.number.length > 0 && given.number[0] > last.number.at(-1) + 1;
  const tail = (old, added, filler = null) => (gap ? old.concat([filler], added) : old.concat(added)).slice(-KEPT);
  const next = {};
  for (const name of PLAIN) next[name] = tail(last[name], given[name], name === "number" ? last.number.at(-1) + 1 : null);
  next.quotas = given.quotas.map((quota, place) => {
    const before = last.quotas[place] ?? { used: last.number.map(() => null), limit: last.number.map(() => null) };
    return { name: quota.name, used: tail(before.used, quota.used), limit: tail(before.limit, quota.limit) };
  });
  return next;
}

// Fetch the samples that the page lacks; return the instant of the newest one.
export async function poll() {
  if (state.paused) return state.asOf;
  const given = await fetchJson(`/api/limits?since=${state.sample}`);
  if (given.sample < state.sample || given.since !== state.sample) {
    state.series.clear();
    state.changes = [];
  }
  const series = new Map();
  for (const run of given.runs) for (const key of run.keys) series.set(key.id, merged(key));
  Object.assign(state, {
    series,
    runs: given.runs,
    finished: given.finished,
    totals: given.totals,
    changes: state.changes.concat(given.changes).slice(-CHANGES),
    sample: given.sample,
    asOf: given.as_of,
    loaded: true,
  });
  return given.as_of;
}

// ---------------------------------------------------------------- keys of all programs

const RANKS = ["✕", "‖", "◐", "●", "○"];

// The state of a key: a mark, a word, and what follows. The mark differs in shape, not only in colour.
const IDLE_AFTER = 10;
function stateOf(entry, ended) {
  if (ended) return { kind: "idle", mark: "○", text: "ended", ended };
  if (entry.gate === "breaker" || entry.breaker.state === "open") return { kind: "down", mark: "✕", text: entry.blocked || "breaker open" };
  if (entry.rejected) return { kind: "down", mark: "✕", text: entry.blocked || `key rejected: ${entry.rejected.replace("_", " ")}` };
  if (entry.gate === "pause") return { kind: "held", mark: "‖", text: entry.blocked };
  if (entry.blocked) return { kind: "held", mark: "◐", text: entry.blocked };
  if (!entry.in_flight && entry.idle_for > IDLE_AFTER) return { kind: "idle", mark: "○", text: "idle", since: entry.idle_for };
  return { kind: "open", mark: "●", text: "sending" };
}

const rank = ({ state: { mark, ended } }) => (ended ? RANKS.length : RANKS.indexOf(mark));

// Return the keys with the programs that use them, the worst first: a key that more calls wait for is worse.
export function groups() {
  const found = new Map();
  for (const run of state.runs) {
    for (const entry of run.keys) {
      const part = { run, entry, series: state.series.get(entry.id), state: stateOf(entry, run.ended) };
      found.set(entry.key, [...(found.get(entry.key) ?? []), part]);
    }
  }
  return [...found].map(([name, parts]) => group(name, parts)).sort((one, other) =>
    rank(one) - rank(other) || Math.round(Math.log2(1 + other.waiting)) - Math.round(Math.log2(1 + one.waiting)) || one.name.localeCompare(other.name));
}

function group(name, parts) {
  const live = parts.filter(({ run }) => !run.ended);
  const shown = live.length ? live : parts;
  // The worst program stands for the key.
  const lead = shown.reduce((worst, part) => (rank(part) - rank(worst) || worst.entry.waiting - part.entry.waiting) < 0 ? part : worst);
  const sum = (count) => live.reduce((all, { entry }) => all + count(entry), 0);
  const etas = live.filter(({ entry }) => entry.waiting > 0).map(({ entry }) => entry.eta);
  const names = name.split(" · ");
  const at = names.length > 2 ? 2 : 0;
  return {
    name,
    model: names[at],
    rest: names.filter((each, place) => place !== at).join(" · "),
    parts,
    live,
    lead: lead.entry,
    state: lead.state,
    shared: parts.some(({ entry }) => entry.members > 1),
    waiting: sum((entry) => entry.waiting),
    inFlight: sum((entry) => entry.in_flight),
    eta: etas.includes(null) ? null : Math.max(0, ...etas),
    words: [name, lead.state.mark, lead.state.text, lead.state.kind, ...parts.map(({ run }) => `${run.command} ${run.pid}`)].join(" ").toLowerCase(),
  };
}

// Return the samples of a key over all its programs, the last `most` ones. Those that share a key have counted what the
// others used of it; each has its own attempts.
export function seriesOf({ parts, shared }, most = KEPT) {
  if (parts.length === 1 && parts[0].series.number.length <= most) return parts[0].series;
  const first = state.sample - most;
  const number = [...new Set(parts.flatMap(({ series }) => series.number))].filter((each) => each > first).sort((one, other) => one - other);
  const places = parts.map(({ series }) => new Map(series.number.map((each, place) => [each, place])));
  const joined = (values, most) => number.map((each) => {
    const known = values.map((of, part) => of?.[places[part].get(each)]).filter((value) => value !== null && value !== undefined);
    return known.length ? (most ? Math.max(...known) : known.reduce((all, value) => all + value, 0)) : null;
  });
  const named = (name) => joined(parts.map(({ series }) => series[name]), shared && (name === "slots" || name === "pace"));
  const quotas = [...new Set(parts.flatMap(({ series }) => series.quotas.map((quota) => quota.name)))];
  const of = (name, value) => parts.map(({ series }) => series.quotas.find((quota) => quota.name === name)?.[value]);
  return {
    ...Object.fromEntries(PLAIN.slice(1).map((name) => [name, named(name)])),
    number,
    quotas: quotas.map((name) => ({ name, used: joined(of(name, "used"), shared), limit: joined(of(name, "limit"), true) })),
  };
}

// Return the changes of a key, oldest first. One that several programs have noted is one.
export function changesOf({ parts }) {
  const ids = new Set(parts.map(({ entry }) => entry.id));
  const same = (one, other) => one.kind === other.kind && one.subject === other.subject && one.before === other.before && one.after === other.after && Math.abs(one.at - other.at) <= SAME_FOR;
  const kept = [];
  for (const each of state.changes.filter(({ key_id: id }) => ids.has(id)).sort((one, other) => one.at - other.at)) {
    if (!kept.some((other) => other.key_id !== each.key_id && same(each, other))) kept.push(each);
  }
  return kept;
}
