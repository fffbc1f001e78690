// The card of a key: its facts, the programs that use it, its charts with one cursor for all, and its changes.
import { html, useState } from "/static/vendor/preact-htm.js";
import { Changes, closedBands, said } from "/static/changes.js";
import { Chart } from "/static/charts.js";
import { age, amount, clock, count, dollars, duration, many, paced, per, time } from "/static/parts.js";
import { changesOf, seriesOf, state } from "/static/samples.js";

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

// ---------------------------------------------------------------- facts

const BREAKER = { closed: "closed", half_open: "half open, one probe is under way" };
const GROUPS = { rate: "rate", overload: "overload", elsewhere: "others’ capacity", day: "day", money: "money" };
const FATES = { absorbed: "sent again", handed_back: "returned to the program", given_up: "given up" };

const summed = (entries, of) => entries.reduce((all, entry) => all + of(entry), 0);

// Refusals by what became of them, each with its causes; those that did not occur are left out.
function Refusals({ entries }) {
  const parts = Object.entries(FATES).flatMap(([fate, title]) => {
    const causes = Object.entries(GROUPS).map(([group, name]) => [summed(entries, ({ refusals }) => refusals[fate][group]), name]).filter(([number]) => number > 0);
    if (!causes.length) return [];
    const sum = causes.reduce((all, [number]) => all + number, 0);
    const why = causes.map(([number, name]) => (causes.length > 1 ? `${count(number)} ${name}` : name)).join(", ");
    return [html`<span key=${fate} class="part"><b class=${fate === "absorbed" ? "" : "bad"}>${count(sum)}</b> ${title} <span class="faint">(${why})</span></span>`];
  });
  return parts.length ? parts : html`<span class="faint">none</span>`;
}

// When the last waiting call of a key is admitted, and what that leaves out.
export function lastIn({ eta, lead }) {
  const others = lead.eta_without;
  return eta === null ? "unknown time" : `${duration(eta)}${others > 0 ? `, without ${others} other ${others === 1 ? "process" : "processes"}` : ""}`;
}

function Facts({ of }) {
  const { lead } = of;
  const entries = of.parts.map(({ entry }) => entry);
  const total = (name) => summed(entries, ({ counts }) => counts[name]);
  const spent = (name) => summed(entries, ({ tokens }) => tokens[name] ?? 0);
  const priced = entries.every(({ tokens }) => !tokens.metered || tokens.cost !== null);
  const { breaker } = lead;
  const opens = breaker.state === "open" ? `open, probe in ${clock(breaker.probe_in ?? 0)}` : BREAKER[breaker.state];
  const others = [["given_up", "given up", "bad"], ["failed", "failed", ""], ["abandoned", "abandoned", ""]]
    .map(([name, title, style]) => [total(name), title, style]).filter(([number]) => number > 0);
  return html`
    <dl class="facts">
      <div><dt>waiting</dt><dd><b>${count(of.waiting)}</b>${of.waiting > 0 && ` · last in ${lastIn(of)}`}</dd></div>
      <div><dt>calls</dt>
        <dd><b>${count(total("answered"))}</b> of ${count(total("calls"))} answered${others.map(([number, title, style]) => html`
          <span key=${title} class=${style}>${` · ${count(number)} ${title}`}</span>`)}</dd></div>
      <div><dt>429s</dt><dd><${Refusals} entries=${entries} /></dd></div>
      ${spent("metered") > 0 && html`
        <div><dt>tokens</dt>
          <dd><b>${amount(spent("input_tokens"))}</b> in · <b>${amount(spent("output_tokens"))}</b> out${spent("cached_tokens") > 0 && html` <span class="faint">(${amount(spent("cached_tokens"))} cached)</span>`}${priced && html` · <b>${dollars(spent("cost"))}</b>`}</dd></div>`}
      ${lead.pace !== null && html`
        <div><dt>learned rate</dt><dd><b>${paced(lead.pace)}</b> <${Badge} known=${lead.pace_from} /></dd></div>`}
      <div><dt>breaker</dt><dd class=${breaker.state === "closed" ? "" : "bad"}>${opens}</dd></div>
    </dl>`;
}

function Programs({ of }) {
  return html`
    <ul class="programs" aria-label="Programs of this key">${of.parts.map(({ run, entry }) => html`
      <li key=${entry.id} class=${run.ended ? "program ended" : "program"}><code>${run.command}</code>
        <span class="faint">pid ${run.pid} · ${run.ended ? "ended after" : "running for"} ${duration(run.elapsed)} ·${!run.ended && ` ${count(entry.waiting)} waiting ·`} ${count(entry.counts.answered)} of ${count(entry.counts.calls)} answered</span></li>`)}</ul>`;
}

// ---------------------------------------------------------------- charts

function QuotaFigure({ quota, known, ...chart }) {
  const last = quota.used.length - 1;
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
      <${Chart} ...${chart} label=${`${unit}${window}`} text=${`${unit}${window}: ${amount(used)} used of ${amount(limit)}, ${left || "level unknown"}`}
        lines=${[{ name: "used", values: quota.used, style: "use" }, { name: "limit", values: quota.limit, style: "limit" }]} />
    </figure>`;
}

// The sum over the last `width` samples at each of them.
function rolling(values, width) {
  let sum = 0;
  return values.map((value, place) => {
    sum += (value ?? 0) - (place >= width ? values[place - width] ?? 0 : 0);
    return value === null ? null : sum;
  });
}

const MINUTE = 60;
const SMOOTHED = 5;

// Slow keys are counted by the minute: a chart of lone attempts by the second shows no rate.
function attemptsOf(series) {
  const slow = Math.max(0, ...rolling(series.sent, MINUTE)) < 2 * MINUTE;
  const [width, factor] = slow ? [MINUTE, 1] : [SMOOTHED, 1 / SMOOTHED];
  const rates = (values) => rolling(values, width).map((sum) => (sum === null ? null : sum * factor));
  const pace = series.pace.map((rate) => (rate === null ? null : rate * (slow ? MINUTE : 1)));
  return { unit: slow ? "min" : "s", sent: rates(series.sent), refused: rates(series.refused), pace };
}

function AttemptsFigure({ attempts, lead, ...chart }) {
  const { unit, sent, refused, pace } = attempts;
  const [now, back] = [sent.at(-1), refused.at(-1)];
  const learned = lead.pace === null ? "" : `learned rate ${paced(lead.pace)}`;
  return html`
    <figure>
      <figcaption>
        <span class="what">attempts per ${unit}</span>
        <span><b>${amount(now)}</b> sent · <span class=${back ? "bad" : ""}><b>${amount(back)}</b> refused</span></span>
        <div class="badges"><${Badge} known=${lead.pace_from} /><span class="left">${learned || "no rate learned"}</span></div>
      </figcaption>
      <${Chart} ...${chart} label=${`attempts per ${unit}`} text=${`attempts per ${unit}: ${amount(now)} sent, ${amount(back)} refused${learned && `, ${learned}`}`}
        lines=${[{ name: "sent", values: sent, style: "use" }, { name: "refused", values: refused, drawn: refused.map((value) => value || null), style: "refused" }, { name: "learned rate", values: pace, style: "limit" }]} />
    </figure>`;
}

function FlightFigure({ of, series, ...chart }) {
  const { latency, slots_from: from } = of.lead;
  const most = series.slots.at(-1);
  return html`
    <figure>
      <figcaption>
        <span class="what">in flight</span>
        <span><b>${count(of.inFlight)}</b> of ${count(most)}</span>
        <div class="badges">
          <${Badge} known=${from} />
          ${latency && html`<span class="left">p50 ${duration(latency.p50)} · p99 ${duration(latency.p99)}</span>`}
        </div>
      </figcaption>
      <${Chart} ...${chart} label="in flight" text=${`in flight: ${count(of.inFlight)} of at most ${count(most)}`}
        lines=${[{ name: "used", values: series.in_flight, style: "use" }, { name: "limit", values: series.slots, style: "limit" }]} />
    </figure>`;
}

// What all charts of a card show at one sample, and what changed in its second.
function Readout({ at, series, attempts, changes, hint }) {
  const place = at === null ? -1 : series.number.indexOf(at);
  if (place < 0) return html`<p class="readout faint">${hint && "Point at a chart, or press ← and → on the charts, to read all values of one second."}</p>`;
  const then = state.asOf - (state.sample - at);
  const values = [
    ...series.quotas.map(({ name, used, limit }) => `${amount(used[place])} of ${amount(limit[place])} ${name.replaceAll("_", " ")}`),
    `${amount(attempts.sent[place])} sent and ${amount(attempts.refused[place])} refused per ${attempts.unit}`,
    `${amount(series.in_flight[place])} in flight`,
    `${amount(series.waiting[place])} waiting`,
    ...changes.filter((each) => Math.abs(each.at - then) <= 1).map(said),
  ];
  return html`<p class="readout" role="status"><b>${time(then)}</b>${values.map((text, place) => html`<span key=${place}>${text}</span>`)}</p>`;
}

// `hint` says how to read values.
export function Card({ of, theme, span, close, hint }) {
  const [at, point] = useState(null);
  const series = seriesOf(of);
  const attempts = attemptsOf(series);
  const known = new Map(of.lead.quotas.map((quota) => [quota.name, quota]));
  const changes = changesOf(of);
  const bands = closedBands(changes, state.asOf).filter(([, to]) => to > -span);
  const chart = { numbers: series.number, newest: state.sample, bands, theme, span, at, point };
  const step = (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
    if (event.key === "Escape") point(null);
    if (!by) return;
    event.preventDefault();
    const place = at === null ? series.number.length - 1 : series.number.indexOf(at) + by;
    point(series.number[Math.max(0, Math.min(series.number.length - 1, place))] ?? null);
  };
  const flew = of.inFlight > 0 || series.in_flight.some((number) => number > 0);
  return html`
    <article class=${of.state.ended ? "key ended" : "key"} aria-label=${of.name}>
      <header>
        <h2>${of.model} <span class="faint">${of.rest}</span></h2>
        ${of.lead.members > 1 && html`<span class="badge">shared by ${of.lead.members} processes${of.lead.carrier && ` (${of.lead.carrier})`}</span>`}
        <p class=${`state ${of.state.kind}`}><span aria-hidden="true">${of.state.mark}</span> ${of.state.text}${of.state.since && ` for ${duration(of.state.since)}`}</p>
        <button type="button" class="quiet" aria-label=${`close ${of.name}`} onClick=${close}>close</button>
      </header>
      <${Programs} of=${of} />
      <${Facts} of=${of} />
      <div class="body">
        <div>
          <${Readout} at=${at} series=${series} attempts=${attempts} changes=${changes} hint=${hint} />
          <div class="figures" role="group" tabindex="0" aria-label="Charts" onKeyDown=${step} onBlur=${() => point(null)}>
            ${series.quotas.map((quota) => html`<${QuotaFigure} ...${chart} key=${quota.name} quota=${quota} known=${known.get(quota.name)} />`)}
            <${AttemptsFigure} ...${chart} key=${`attempts ${attempts.unit}`} attempts=${attempts} lead=${of.lead} />
            ${flew && html`<${FlightFigure} ...${chart} key="in flight" of=${of} series=${series} />`}
          </div>
        </div>
        <div class="side">
          <h3>changes${bands.length > 0 && html` <span class="legend"><span class="hatched" aria-hidden="true"></span> cooldown or breaker</span>`}</h3>
          <${Changes} changes=${changes} />
        </div>
      </div>
    </article>`;
}

export const programsText = ({ live }) => many(live.length, "program");
