// The limits view: it fetches the samples that it lacks, and draws the keys of all programs.
import { html } from "/static/vendor/preact-htm.js";
import { Changes, closedBands } from "/static/changes.js";
import { Chart } from "/static/charts.js";
import { age, amount, clock, count, dollars, duration, fetchJson, many, per } from "/static/parts.js";

const SAMPLES = 600;
const CHANGES = 200;
const IDLE_AFTER = 10;

const state = { sample: 0, asOf: 0, runs: [], totals: {}, changes: [], series: new Map(), loaded: false };

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
  state.totals = given.totals;
  state.changes = state.changes.concat(given.changes).slice(-CHANGES);
  state.sample = given.sample;
  state.asOf = given.as_of;
  state.loaded = true;
  const waiting = total("waiting");
  document.title = waiting ? `tidegate · ${count(waiting)} waiting` : "tidegate";
  return given.as_of;
}

const liveKeys = () => state.runs.filter((run) => !run.ended).flatMap((run) => run.keys);
const total = (name) => liveKeys().reduce((sum, key) => sum + key[name], 0);

// ---------------------------------------------------------------- parts of a key

const BADGES = {
  stated: "the provider stated it",
  inferred: "inferred from answers and refusals",
  assumed: "assumed: nothing has confirmed it",
  saved: "saved by an earlier run: nothing has confirmed it yet",
};

function Badge({ known }) {
  if (!known) return null;
  const old = known.old ? " old" : "";
  return html`<span class=${`badge ${known.badge}${old}`} title=${`${BADGES[known.badge]} (${known.origin})`}>
    ${known.badge}${known.age === null ? "" : known.age < 3 ? " · now" : ` · ${age(known.age)} ago`}</span>`;
}

// The state of a key: a mark, a word, and what follows. The mark differs in shape, not only in colour.
function stateOf(entry, ended) {
  if (ended) return ["idle", "○", "ended"];
  if (entry.gate === "breaker" || entry.breaker.state === "open") return ["down", "✕", entry.blocked || "breaker open"];
  if (entry.rejected) return ["down", "✕", entry.blocked || `key rejected: ${entry.rejected.replace("_", " ")}`];
  if (entry.gate === "pause") return ["held", "‖", entry.blocked];
  if (entry.blocked) return ["held", "◐", entry.blocked];
  if (!entry.in_flight && entry.idle_for > IDLE_AFTER) return ["idle", "○", `idle for ${duration(entry.idle_for)}`];
  return ["open", "●", "sending"];
}

const BREAKER = { closed: "closed", half_open: "half open, one probe is under way" };
const GROUPS = { rate: "rate", overload: "overload", elsewhere: "others’ capacity", day: "day", money: "money" };
const FATES = { absorbed: "absorbed", handed_back: "handed back", given_up: "given up" };

// Refusals by what became of them, each with its causes; those that did not occur are left out.
function Refusals({ refusals }) {
  const parts = Object.entries(FATES).flatMap(([fate, title]) => {
    const causes = Object.entries(GROUPS).filter(([group]) => refusals[fate][group] > 0);
    if (!causes.length) return [];
    const sum = causes.reduce((all, [group]) => all + refusals[fate][group], 0);
    const why = causes.map(([group, name]) => (causes.length > 1 ? `${count(refusals[fate][group])} ${name}` : name)).join(", ");
    return [html`<span key=${fate} class="part"><b class=${fate === "absorbed" ? "" : "bad"}>${count(sum)}</b> ${title} <span class="faint">(${why})</span></span>`];
  });
  return parts.length ? parts : html`<span class="faint">none</span>`;
}

function Facts({ entry }) {
  const { counts, breaker } = entry;
  const opens = breaker.state === "open" ? `open, probe in ${clock(breaker.probe_in ?? 0)}` : BREAKER[breaker.state];
  const others = [
    [counts.given_up, "given up", "bad"],
    [counts.failed, "failed", ""],
    [counts.abandoned, "abandoned", ""],
  ].filter(([number]) => number > 0);
  return html`
    <dl class="facts">
      <div><dt>waiting</dt>
        <dd><b>${count(entry.waiting)}</b>${entry.waiting > 0 && ` · last in ${entry.eta === null ? "unknown time" : duration(entry.eta)}${entry.eta !== null && entry.eta_without > 0 ? `, without ${entry.eta_without} other ${entry.eta_without === 1 ? "process" : "processes"}` : ""}`}</dd></div>
      <div><dt>calls</dt>
        <dd><b>${count(counts.answered)}</b> of ${count(counts.calls)} answered${others.map(([number, title, style]) => html`
          <span key=${title} class=${style}>${` · ${count(number)} ${title}`}</span>`)}</dd></div>
      <div><dt>429s</dt><dd><${Refusals} refusals=${entry.refusals} /></dd></div>
      ${entry.tokens.metered > 0 && html`
        <div><dt>tokens</dt>
          <dd><b>${amount(entry.tokens.input_tokens)}</b> in · <b>${amount(entry.tokens.output_tokens)}</b> out${entry.tokens.cached_tokens > 0 && html` <span class="faint">(${amount(entry.tokens.cached_tokens)} cached)</span>`}${entry.tokens.cost !== null && html` · <b>${dollars(entry.tokens.cost)}</b>`}</dd></div>`}
      ${entry.pace !== null && html`
        <div><dt>learned rate</dt><dd><b>${amount(entry.pace)}</b>/s <${Badge} known=${entry.pace_from} /></dd></div>`}
      <div><dt>breaker</dt><dd class=${breaker.state === "closed" ? "" : "bad"}>${opens}</dd></div>
    </dl>`;
}

function QuotaFigure({ quota, known, series, bands, theme }) {
  const last = series.number.length - 1;
  const [used, limit] = [quota.used[last], quota.limit[last]];
  const unit = quota.name.replaceAll("_", " ");
  const window = known?.window ? ` per ${per(known.window)}` : "";
  const left = known && known.level !== null ? `${amount(Math.max(0, known.level))} left` : "";
  const back = known?.back_in ? ` · refilled in ${duration(known.back_in)}` : "";
  const doubt = known?.from?.badge === "stated" && known.window_from !== "stated" ? known.window_from : "";
  return html`
    <figure>
      <figcaption>
        <span class="what">${unit}</span>
        <span><b>${amount(used)}</b> of ${amount(limit)}${window}</span>
        <div class="badges">
          <${Badge} known=${known?.from} />
          ${doubt && html`<span class=${`badge ${doubt}`} title="no answer names the length of the window">window ${doubt}</span>`}
          <span class="left">${left}${back}</span>
        </div>
      </figcaption>
      <${Chart} label=${`${unit}${window}`} text=${`${unit}${window}: ${amount(used)} used of ${amount(limit)}, ${left || "level unknown"}`}
        numbers=${series.number} newest=${state.sample} used=${quota.used} limit=${quota.limit} bands=${bands} theme=${theme} />
    </figure>`;
}

function FlightFigure({ entry, series, bands, theme }) {
  const { latency } = entry;
  return html`
    <figure>
      <figcaption>
        <span class="what">in flight</span>
        <span><b>${count(entry.in_flight)}</b> of ${count(entry.slots)}</span>
        <div class="badges">
          <${Badge} known=${entry.slots_from} />
          ${latency && html`<span class="left">p50 ${duration(latency.p50)} · p99 ${duration(latency.p99)}</span>`}
        </div>
      </figcaption>
      <${Chart} label="in flight" text=${`in flight: ${count(entry.in_flight)} of at most ${count(entry.slots)}`} numbers=${series.number}
        newest=${state.sample} used=${series.in_flight} limit=${series.slots} bands=${bands} theme=${theme} />
    </figure>`;
}

function Key({ entry, ended, theme }) {
  const series = state.series.get(entry.id);
  const known = new Map(entry.quotas.map((quota) => [quota.name, quota]));
  const changes = state.changes.filter((each) => each.key_id === entry.id).sort((one, other) => one.at - other.at);
  const bands = closedBands(changes, state.asOf).filter(([, to]) => to > -SAMPLES);
  const [kind, mark, text] = stateOf(entry, ended);
  const names = entry.key.split(" · ");
  const model = names.length > 2 ? names[2] : names[0];
  const rest = names.filter((each, place) => place !== (names.length > 2 ? 2 : 0)).join(" · ");
  return html`
    <article class="key" aria-label=${entry.key}>
      <header>
        <h3>${model} <span class="faint">${rest}</span></h3>
        ${entry.members > 1 && html`<span class="badge">shared by ${entry.members} processes${entry.carrier && ` (${entry.carrier})`}</span>`}
        <p class=${`state ${kind}`}><span aria-hidden="true">${mark}</span> ${text}</p>
      </header>
      <${Facts} entry=${entry} />
      <div class="body">
        <div class="figures">
          ${series.quotas.map((quota) => html`
            <${QuotaFigure} key=${quota.name} quota=${quota} known=${known.get(quota.name)} series=${series} bands=${bands} theme=${theme} />`)}
          <${FlightFigure} entry=${entry} series=${series} bands=${bands} theme=${theme} />
        </div>
        <div class="side">
          <h4>changes${bands.length > 0 && html` <span class="legend"><span class="hatched" aria-hidden="true"></span> cooldown or breaker</span>`}</h4>
          <${Changes} changes=${changes} />
        </div>
      </div>
    </article>`;
}

// ---------------------------------------------------------------- page

function Empty() {
  return html`
    <section class="empty">
      <h2>No active program found</h2>
      <p>Programs of this user appear here from their first call on. Start one in another terminal:</p>
      <pre tabindex="0">tidegate run python your_script.py</pre>
      <p>Nothing to run yet? The demo needs no key and no network:</p>
      <pre tabindex="0">tidegate demo</pre>
      <p class="faint">A program that calls <code>tidegate.install()</code> or <code>tidegate.wrap(client)</code> appears as well,
        unless <code>TIDEGATE_STATUS</code> is off; <code>tidegate run</code> keeps no counts where <code>TIDEGATE_LOG</code> is off.</p>
    </section>`;
}

function Program({ run, theme }) {
  return html`
    <section class=${`program${run.ended ? " ended" : ""}`}>
      <h2><code>${run.command}</code>
        ${!run.unreadable && html`<span class="faint">pid ${run.pid} · ${run.ended ? "ended after" : "running for"} ${duration(run.elapsed)}</span>`}
      </h2>
      ${run.unreadable && html`<p class="lost"><span aria-hidden="true">✕</span> unreadable: ${run.unreadable}</p>`}
      ${run.lost.map((each) => html`
        <p class="lost" key=${each.pid}><span aria-hidden="true">✕</span> counts of process ${each.pid} unreadable: ${each.why}; they are not shown</p>`)}
      ${run.keys.map((key) => html`<${Key} key=${key.id} entry=${key} ended=${run.ended} theme=${theme} />`)}
    </section>`;
}

function Limits({ theme }) {
  return html`
    ${state.loaded && !state.runs.length && html`<${Empty} />`}
    ${state.runs.map((run) => html`<${Program} key=${`${run.pid} ${run.command}`} run=${run} theme=${theme} />`)}`;
}

function Summary() {
  if (!state.totals.calls && !liveKeys().length) return null;
  const programs = state.runs.filter((run) => !run.ended).length;
  // Ended programs keep counting, so that no total falls.
  const { answered, calls, retried, given_up: givenUp } = state.totals;
  return html`
    <ul class="summary">
      <li>${many(programs, "program")}</li>
      <li><b>${count(answered)}</b> of ${count(calls)} calls answered</li>
      <li><b>${count(total("waiting"))}</b> waiting</li>
      <li><b>${count(retried)}</b> refusals absorbed</li>
      <li class=${givenUp ? "bad" : ""}><b>${count(givenUp)}</b> given up</li>
    </ul>`;
}

export const limitsTab = { path: "/limits", title: "Limits", poll, content: Limits, summary: Summary };
