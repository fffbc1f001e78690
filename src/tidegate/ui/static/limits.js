// The limits view: it fetches the samples that it lacks, and draws the keys of all programs.
import { html, useEffect, useLayoutEffect, useRef } from "/static/vendor/preact-htm.js";
import { amount, clock, colour, duration, fetchJson, many, per, time } from "/static/parts.js";

const SAMPLES = 600;

const state = { sample: 0, asOf: 0, runs: [], changes: [], series: new Map(), loaded: false };

// ---------------------------------------------------------------- data

const tail = (old, added) => old.concat(added).slice(-SAMPLES);

function merged(key) {
  const last = state.series.get(key.id);
  const given = key.series;
  if (!last) return given;
  const next = {};
  for (const name of ["number", "in_flight", "waiting", "slots", "refused"]) next[name] = tail(last[name], given[name]);
  next.quotas = given.quotas.map((quota, place) => {
    const before = last.quotas[place] ?? { used: last.number.map(() => null), limit: last.number.map(() => null) };
    return { name: quota.name, used: tail(before.used, quota.used), limit: tail(before.limit, quota.limit) };
  });
  return next;
}

// Fetch the samples that the page lacks; return the instant of the newest one.
async function poll() {
  const given = await fetchJson(`/api/limits?since=${state.sample}`);
  if (given.sample < state.sample || given.since !== state.sample) {
    state.series.clear();
    state.changes = [];
  }
  const series = new Map();
  for (const run of given.runs) for (const key of run.keys) series.set(key.id, merged(key));
  state.series = series;
  state.runs = given.runs;
  state.changes = state.changes.concat(given.changes).slice(-200);
  state.sample = given.sample;
  state.asOf = given.as_of;
  state.loaded = true;
  return given.as_of;
}

// ---------------------------------------------------------------- charts

function options(width, height, label) {
  const faint = colour("--faint");
  const grid = { stroke: colour("--edge"), width: 1 };
  return {
    width,
    height,
    legend: { show: false },
    cursor: { show: false },
    scales: { x: { time: false }, y: { range: (plot, low, high) => [0, Math.max(1, high * 1.08)] } },
    axes: [
      { stroke: faint, grid: { show: false }, ticks: { show: false }, size: 16, font: "10px system-ui",
        values: (plot, marks) => marks.map((mark) => (mark ? clock(-mark).replace(/^/, "−") : "now")) },
      { stroke: faint, grid, ticks: { show: false }, size: 40, space: 24, font: "10px system-ui",
        values: (plot, marks) => marks.map(amount) },
    ],
    series: [
      {},
      { label, stroke: colour("--use"), fill: colour("--fill"), width: 1.5, points: { show: false } },
      { label: "limit", stroke: colour("--limit"), dash: [4, 3], width: 1.5, points: { show: false } },
    ],
  };
}

function Chart({ label, numbers, used, limit, theme }) {
  const place = useRef(null);
  const plot = useRef(null);
  const data = useRef(null);
  data.current = [numbers.map((number) => number - state.sample), used, limit];
  useLayoutEffect(() => {
    const element = place.current;
    const build = () => {
      plot.current?.destroy();
      plot.current = new uPlot(options(element.clientWidth || 300, 84, label), data.current, element);
    };
    build();
    const watcher = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth || 300, height: 84 }));
    watcher.observe(element);
    return () => {
      watcher.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [label, theme]);
  useEffect(() => {
    plot.current?.setData(data.current);
  });
  const last = used.length - 1;
  const text = `${label}: ${amount(used[last])} used of ${amount(limit[last])} now`;
  const rows = [];
  for (let at = Math.max(0, last - 59); at <= last; at += 10) rows.push(at);
  return html`
    <div class="plot" role="img" aria-label=${text} ref=${place}></div>
    <table class="hidden-table">
      <caption>${label}, the last minute</caption>
      <thead><tr><th scope="col">seconds ago</th><th scope="col">used</th><th scope="col">limit</th></tr></thead>
      <tbody>${rows.map((at) => html`
        <tr key=${numbers[at]}><td>${state.sample - numbers[at]}</td><td>${amount(used[at])}</td><td>${amount(limit[at])}</td></tr>`)}
      </tbody>
    </table>`;
}

// ---------------------------------------------------------------- page

function Key({ entry, theme }) {
  const series = state.series.get(entry.id);
  const counts = entry.counts;
  const windows = new Map(entry.quotas.map((quota) => [quota.name, quota]));
  const last = series.number.length - 1;
  return html`
    <article class="key" aria-label=${entry.key}>
      <h3>${entry.key} ${entry.members > 1 && html`<span class="badge">shared by ${entry.members} processes</span>`}</h3>
      ${entry.blocked && html`<p class="blocked">${entry.blocked}</p>`}
      <ul class="numbers">
        <li><b>${amount(entry.in_flight)}</b> of at most ${amount(entry.slots)} in flight</li>
        <li><b>${amount(entry.waiting)}</b> waiting${entry.waiting > 0 && entry.eta !== null ? ` · ETA ${clock(entry.eta)}` : ""}</li>
        ${entry.latency !== null && html`<li>mean answer ${duration(entry.latency)}</li>`}
        <li><b>${amount(counts.answered)}</b> of ${many(counts.calls, "call")} answered</li>
        ${counts.refused > 0 && html`<li class="refused"><b>${amount(counts.refused)}</b> refused, ${amount(counts.retried)} tried again</li>`}
        ${counts.given_up > 0 && html`<li class="refused"><b>${amount(counts.given_up)}</b> given up</li>`}
        ${counts.failed > 0 && html`<li>${amount(counts.failed)} failed</li>`}
        ${counts.abandoned > 0 && html`<li>${amount(counts.abandoned)} abandoned</li>`}
      </ul>
      ${series.quotas.map((quota) => {
        const known = windows.get(quota.name);
        const unit = known ? `${quota.name} per ${per(known.window)}` : quota.name;
        const left = known ? ` · ${amount(Math.max(0, known.level))} left` : "";
        return html`
          <h4>${unit}: ${amount(quota.used[last])} of ${amount(quota.limit[last])} used${left}</h4>
          <${Chart} label=${unit} numbers=${series.number} used=${quota.used} limit=${quota.limit} theme=${theme} />`;
      })}
      <h4>in flight: ${amount(entry.in_flight)} of ${amount(entry.slots)}</h4>
      <${Chart} label="in flight" numbers=${series.number} used=${series.in_flight} limit=${series.slots} theme=${theme} />
    </article>`;
}

const KINDS = {
  limit: (change) => `limit of ${change.subject}: ${amount(change.before)} to ${amount(change.after)}`,
  slots: (change) => `calls in flight cut: ${amount(change.before)} to ${amount(change.after)}`,
  closed: (change) => `closed by ${change.subject}, ${duration(change.after ?? 0)} at first`,
  opened: (change) => `open again after ${change.subject}`,
};

function Changes() {
  if (!state.changes.length) return null;
  const names = new Map(state.runs.flatMap((run) => run.keys.map((key) => [key.id, key.key])));
  return html`
    <section class="changes" aria-label="Changes">
      <h2>Changes</h2>
      <ol tabindex="0">${[...state.changes].reverse().map((change, place) => html`
        <li key=${state.changes.length - place}>
          <time>${time(state.asOf - (state.sample - change.number))}</time>
          <span>${names.get(change.key_id) ?? "an ended program"} · ${KINDS[change.kind](change)}${change.cause && ` (${change.cause})`}</span>
        </li>`)}
      </ol>
    </section>`;
}

function Empty() {
  return html`
    <section class="empty">
      <h2>No active program found</h2>
      <p>Programs of this user appear here from their first call on. Start one in another terminal:</p>
      <pre>tidegate run python your_script.py</pre>
      <p class="faint">A program that calls <code>tidegate.install()</code> or <code>tidegate.wrap(client)</code> appears as well,
        unless <code>TIDEGATE_STATUS</code> is off; <code>tidegate run</code> keeps no counts where <code>TIDEGATE_LOG</code> is off.</p>
    </section>`;
}

function Limits({ theme }) {
  return html`
    ${state.loaded && !state.runs.length && html`<${Empty} />`}
    ${state.runs.map((run) => html`
      <section key=${`${run.pid} ${run.command}`} class=${run.ended ? "ended" : ""}>
        <h2>${run.command} <span class="faint">${run.unreadable
          ? `unreadable: ${run.unreadable}`
          : `pid ${run.pid}, ${run.ended ? "ended after" : "running for"} ${duration(run.elapsed)}`}</span></h2>
        <div class="keys">${run.keys.map((key) => html`<${Key} key=${key.id} entry=${key} theme=${theme} />`)}</div>
      </section>`)}
    <${Changes} />`;
}

function Summary() {
  const runs = state.runs.filter((run) => !run.ended);
  const keys = runs.flatMap((run) => run.keys);
  if (!keys.length) return null;
  const total = (name) => keys.reduce((sum, key) => sum + key.counts[name], 0);
  const waiting = keys.reduce((sum, key) => sum + key.waiting, 0);
  return html`
    <span>${many(runs.length, "program")} · ${many(keys.length, "key")}</span>
    <span>${many(total("calls"), "call")} · ${amount(total("answered"))} answered · ${amount(waiting)} waiting</span>
    <span>${many(total("retried"), "refusal")} absorbed · ${amount(total("given_up"))} given up</span>`;
}

export const limitsTab = { path: "/limits", title: "Limits", poll, content: Limits, summary: Summary };
