// The experiments view: the list, one experiment, and its rows. What a model wrote is shown as text only.
//
// The location's fragment names the screen: `/experiments`, `/experiments/12`, `/experiments/12/rows?status=failed`.
import { html, useEffect, useLayoutEffect, useRef, useState } from "/static/vendor/preact-htm.js";
import { age, amount, clock, count as exact, dollars, duration, fetchJson, isJson, many, send, time } from "/static/parts.js";

const BASE = "/experiments";
const ROWS_MS = 5000;

const state = { path: "", data: null, rows: null, rowsAt: 0, rowsFor: "" };

// ---------------------------------------------------------------- texts

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

// Signs that change the direction of a text, or show nothing, are written as escapes.
const plain = (text) => String(text ?? "").replace(HIDDEN, (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`);
const score = (value) => {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  return size !== 0 && (size >= 1e6 || size < 1e-3) ? value.toExponential(2) : String(Number(value.toFixed(3)));
};
const share = (part, whole) => (whole > 0 ? Math.min(1, part / whole) : 0);
const percent = (part) => (part > 0 && part < 0.01 ? "< 1 %" : `${Math.floor(100 * part)} %`);
const since = (seconds) => (seconds < 172800 ? `${age(Math.max(0, seconds))} ago` : day(Date.now() / 1000 - seconds));
const day = (seconds) => new Date(seconds * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "short", hour12: false });

// Tokens and their cost; a cost that only a part of the answers has is a lower bound.
const cost = (of) => (of.cost !== null ? dollars(of.cost) : "");
const tokens = (of) => html`<b>${amount(of.input_tokens)}</b> in · <b>${amount(of.output_tokens)}</b> out${of.cached_tokens > 0 && html` <span class="faint">(${amount(of.cached_tokens)} cached)</span>`}`;
const Spent = ({ of }) => of.metered > 0 && html`<span class="spent">${tokens(of)} tokens${of.cost !== null ? html` · <b>${cost(of)}</b>` : html` · <span class="faint">${of.priced > 0 ? "not all models have a price" : "no price known"}</span>`}</span>`;

// ---------------------------------------------------------------- data

function parse(path) {
  const [place, query = ""] = path.split("?");
  const [number, part] = place.slice(BASE.length + 1).split("/");
  if (number === "compare") {
    const pair = ["a", "b"].map((name) => Number(new URLSearchParams(query).get(name)));
    return { number: `compare ${pair}`, pair, rows: false, query };
  }
  return { number: /^\d+$/.test(number ?? "") ? Number(number) : null, rows: part === "rows", query };
}

async function poll(path) {
  const at = parse(path);
  const url = at.pair ? comparePath(at.pair) : at.number === null ? `/api/experiments${at.query ? `?${at.query}` : ""}` : `/api/experiments/${at.number}`;
  const data = await fetchJson(url);
  if (at.rows && !data.problem) await pollRows(at, data.status === "RUNNING");
  Object.assign(state, { data, path });
  return data.as_of;
}

const comparePath = ([a, b]) => `/api/experiments/compare?${new URLSearchParams({ a, b })}`;

async function pollRows(at, running) {
  const wanted = `${at.number}?${at.query}`;
  const old = Date.now() - state.rowsAt > ROWS_MS;
  if (wanted === state.rowsFor && !(running && old)) return;
  if (wanted !== state.rowsFor) state.rows = null;
  const found = await fetchJson(`/api/experiments/${at.number}/rows?${at.query}`);
  Object.assign(state, { rows: found, rowsAt: Date.now(), rowsFor: wanted });
}

// ---------------------------------------------------------------- parts

const SIGNS = { RUNNING: "▶", COMPLETED: "✓", STOPPED: "■", ERROR: "!", BLOCKED: "×", READY: "○" };

const State = ({ of }) => html`<span class=${`state ${of.dead ? "INTERRUPTED" : of.status}`}><i aria-hidden="true">${of.dead ? "‖" : SIGNS[of.status]}</i> ${of.state}</span>`;

// What is ok, what failed and what is parked, of all. A failed item is done; it is no success.
function Bar({ label, of, name = "" }) {
  const parts = [["fill", of.ok], ["bad", of.failed], ["parked", of.parked]];
  const text = `${exact(of.ok)} of ${exact(of.total)} ok, ${exact(of.failed)} failed, ${exact(of.parked)} parked`;
  let x = 0;
  return html`
    <div class=${name ? "bar named" : "bar"} role="progressbar" aria-label=${label} aria-valuenow=${of.done} aria-valuemin="0" aria-valuemax=${of.total} aria-valuetext=${text} title=${text}>
      ${name && html`<span class="faint">${name}</span>`}
      <svg viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">
        <rect class="track" width="100" height="1" />
        ${parts.map(([kind, count]) => {
          const width = 100 * share(count, of.total);
          const rect = html`<rect class=${kind} key=${kind} x=${x} width=${width} height="1" />`;
          x += width;
          return rect;
        })}
      </svg>
      <span><b>${exact(of.ok)}</b> of ${exact(of.total)} <span class="faint">${percent(share(of.ok, of.total))}</span></span>
    </div>`;
}

function Histogram({ of }) {
  const places = of.bins.map(([place]) => place);
  if (places.length < 2) {
    return places.length ? html`<p class="faint one">all ${exact(of.n)} scores are about ${score(of.mean)}</p>` : null;
  }
  // The whole scale from 0 to 1 where all scores are on it.
  const unit = of.low >= 0 && of.high <= 1 ? Math.round(1 / of.width) : 0;
  const first = unit ? 0 : Math.min(...places);
  const last = unit || Math.max(...places);
  const high = Math.max(...of.bins.map(([, count]) => count));
  const step = 100 / (last - first + 1);
  const range = (place) => `${score(place * of.width)} to below ${score((place + 1) * of.width)}`;
  return html`
    <div class="histogram">
      <svg viewBox="0 0 100 40" preserveAspectRatio="none" role="img" aria-label=${`Scores of ${of.title}: ${exact(of.n)}, mean ${score(of.mean)}, from ${score(of.low)} to ${score(of.high)}`}>
        ${of.bins.map(([place, count]) => {
          const height = Math.max(0.8, (39 * count) / high);
          return html`<rect key=${place} x=${(place - first) * step + step * 0.06} y=${40 - height} width=${step * 0.88} height=${height}><title>${range(place)}: ${exact(count)}</title></rect>`;
        })}
        ${of.mean !== null && html`<line x1=${(of.mean / of.width - first) * step} x2=${(of.mean / of.width - first) * step} y1="0" y2="40" />`}
      </svg>
      <div class="scale faint" aria-hidden="true"><span>${score(first * of.width)}</span><span>${score((unit ? last : last + 1) * of.width)}</span></div>
      <table class="hidden-table">
        <caption>${of.title}: scores by bin</caption>
        <thead><tr><th scope="col">scores</th><th scope="col">count</th></tr></thead>
        <tbody>${of.bins.map(([place, count]) => html`<tr key=${place}><td>${range(place)}</td><td>${count}</td></tr>`)}</tbody>
      </table>
    </div>`;
}

function Labels({ of, link }) {
  if (of.labels === null) return html`<p class="faint">${many(of.labelled, "label")}, too many different ones to list</p>`;
  if (!of.labels.length) return null;
  const high = of.labels[0][1];
  return html`
    <ul class="labels">${of.labels.slice(0, 12).map(([label, count]) => html`
      <li key=${label}>
        <a href=${link(label)}><bdi>${plain(label)}</bdi></a>
        <svg viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true"><rect width=${(100 * count) / high} height="1" /></svg>
        <span>${exact(count)}</span>
      </li>`)}
      ${of.labels.length > 12 && html`<li class="faint">${of.labels.length - 12} more labels</li>`}
    </ul>`;
}

function Copied({ text }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text).catch(() => {});
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return html`<code class="command">${text}</code> <button type="button" class="quiet" onClick=${copy}>${done ? "copied" : "copy"}</button>`;
}

function Problem({ data }) {
  return html`
    <section class="empty">
      <h2>${data.missing ? "No experiments yet" : "Experiments not shown"}</h2>
      <p>${plain(data.problem)}</p>
      ${data.missing && html`
        <p>This page of the documentation has a first experiment, and this command runs it:</p>
        <pre>tidegate docs experiments${"\n"}tidegate experiment run my_eval.py:experiment</pre>
        <p class="faint">Another database: <code>tidegate serve --db FILE</code>, or the variable <code>TIDEGATE_DB</code>.</p>`}
    </section>`;
}

// ---------------------------------------------------------------- list

function Progress({ of }) {
  return html`
    <${Bar} label=${`tasks of ${of.name}`} of=${of.tasks} name="tasks" />
    ${of.evaluations && html`<${Bar} label=${`evaluations of ${of.name}`} of=${of.evaluations} name="evaluations" />`}`;
}

const Means = ({ of }) => (of.means ?? []).slice(0, 4).map((each) => html`<span class="mean" key=${each.title}>${plain(each.title)} <b>${score(each.mean)}</b></span>`);

function List({ data }) {
  const spends = data.experiments.some((each) => each.tokens.metered > 0);
  // The older one is A.
  const [chosen, setChosen] = useState([]);
  const choose = (number) => setChosen(chosen.includes(number) ? chosen.filter((each) => each !== number) : [...chosen.slice(-1), number].sort((one, other) => one - other));
  if (!data.experiments.length) {
    return html`<${Problem} data=${{ missing: true, problem: "The database has no experiment." }} />`;
  }
  return html`
    ${data.experiments.length > 1 && html`<p class="choice">${chosen.length === 2 ? html`<a href=${`#${BASE}/compare?a=${chosen[0]}&b=${chosen[1]}`}>compare the two chosen experiments</a>` : html`<span class="faint">choose two experiments to compare them</span>`}</p>`}
    <div class="scroll"><table class="list">
      <thead><tr><th scope="col">experiment</th><th scope="col">state</th><th scope="col">answered, judged</th><th scope="col" class="number">failed</th><th scope="col" class="number">parked</th><th scope="col" class="number">ETA</th>${spends && html`<th scope="col" class="number">tokens</th><th scope="col" class="number">cost</th>`}<th scope="col">means</th><th scope="col">last activity</th></tr></thead>
      <tbody>${data.experiments.map((each) => html`
        <tr key=${each.id}>
          <th scope="row"><input type="checkbox" aria-label=${`compare ${each.name}`} checked=${chosen.includes(each.id)} onChange=${() => choose(each.id)} /> <a href=${`#${BASE}/${each.id}`}><bdi>${plain(each.name)}</bdi></a><small class="faint">${exact(each.rows)}${each.rows_complete ? "" : "+"} rows${each.repetitions > 1 ? ` × ${each.repetitions}` : ""}</small></th>
          <td data-title="state"><${State} of=${each} />${each.why && html`<small class="why">${plain(each.why)}</small>`}</td>
          <td data-title="progress" class="progress"><${Progress} of=${each} /></td>
          <td data-title="failed" class=${`number ${each.failed ? "refused" : ""}`}>${exact(each.failed)}</td>
          <td data-title="parked" class="number">${exact(each.parked)}</td>
          <td data-title="ETA" class="number">${each.eta ? clock(each.eta) : "–"}</td>
          ${spends && html`<td data-title="tokens" class="number">${each.tokens.metered ? amount(each.tokens.input_tokens + each.tokens.output_tokens) : "–"}</td>
          <td data-title="cost" class="number">${cost(each.tokens) || "–"}</td>`}
          <td data-title="means" class="means"><${Means} of=${each} /></td>
          <td data-title="last activity" class="faint">${since(each.quiet ?? data.as_of - each.active)}</td>
        </tr>`)}</tbody>
    </table></div>
    ${data.more && html`<p><a href=${`#${BASE}/?before=${data.experiments.at(-1).id}`}>older experiments</a></p>`}`;
}

// ---------------------------------------------------------------- one experiment

function Actions({ of, refresh }) {
  const [told, setTold] = useState("");
  const [busy, setBusy] = useState(false);
  const act = async (verb) => {
    setBusy(true);
    try {
      const answer = await fetchJson(`/api/experiments/${of.id}/${verb}`, {});
      setTold(answer.problem ?? {
        done: verb === "stop" ? "Stopped in the database. Its process ends the run at its next heartbeat, within 15 s." : `Started as process ${answer.pid}. It goes on when this page is closed.`,
        already: verb === "stop" ? "It does not run." : "It runs already.",
        cooling: "It was stopped or resumed a moment ago; try again in some seconds.",
        missing: "It does not exist any more.",
      }[answer.result]);
    } catch (error) {
      setTold(error.message);
    }
    setBusy(false);
    refresh();
  };
  const runs = of.status === "RUNNING" && !of.dead;
  const started = of.started;
  return html`
    <div class="actions">
      <p>
        ${runs || of.status === "READY"
          ? html`<button type="button" disabled=${busy || of.cooling > 0} onClick=${() => act("stop")}>Stop</button> <span class="faint">ends the run within a heartbeat, 15 s; finished results are kept</span>`
          : html`<button type="button" disabled=${busy || of.cooling > 0} onClick=${() => act("resume")}>Resume</button> <span class="faint">tries failed and parked rows again, as a process of its own:</span> <${Copied} text=${of.commands.run} />`}
      </p>
      ${of.cooling > 0 && html`<p class="faint" role="timer">stopped or resumed a moment ago; the next one is possible in ${Math.ceil(of.cooling)} s</p>`}
      <p role="status">${told}${started && html` <span class=${started.code ? "refused" : "faint"}>Process ${started.pid} ${started.code === null ? "runs" : `has ended with code ${started.code}`}${started.said && `: ${plain(started.said)}`}</span>`}</p>
    </div>`;
}

function Failures({ of, number }) {
  if (!of.length) return null;
  return html`
    <div class="scroll"><table class="failures">
      <caption class="faint">failures by kind</caption>
      <thead><tr><th scope="col">kind</th><th scope="col" class="number">count</th><th scope="col">example</th></tr></thead>
      <tbody>${of.map((each) => html`
        <tr key=${`${each.status} ${each.kind}`}>
          <td><a href=${`#${BASE}/${number}/rows?status=${each.status === "error" ? "failed" : each.status || "failed"}`}>${each.status ? each.status === each.kind ? each.status : `${each.status} ${plain(each.kind)}` : "other kinds"}</a></td>
          <td class="number refused">${exact(each.count)}</td>
          <td class="cell"><bdi>${plain(each.example)}</bdi></td>
        </tr>`)}</tbody>
    </table></div>`;
}

function Stage({ of, number }) {
  const failed = Object.entries(of.counts).filter(([status]) => status !== "ok");
  const link = (output) => (label) => `#${BASE}/${number}/rows?${new URLSearchParams({ evaluator: of.name, output, label })}`;
  return html`
    <article class="stage" aria-label=${of.name}>
      <h3><bdi>${plain(of.name)}</bdi> ${of.former && html`<span class="badge">of an earlier run</span>`}</h3>
      <${Bar} label=${`results of ${of.name}`} of=${of} />
      <ul class="numbers">
        ${failed.map(([status, count]) => html`<li key=${status} class="refused"><b>${exact(count)}</b> ${status === "error" ? "failed" : status}</li>`)}
        ${of.seconds >= 0.05 && html`<li>mean time <b>${duration(of.seconds)}</b></li>`}
        ${of.attempts > of.done && html`<li><b>${exact(of.attempts)}</b> attempts</li>`}
        ${of.tokens.metered > 0 && html`<li><${Spent} of=${of.tokens} /></li>`}
      </ul>
      ${of.outputs.map((each) => html`
        <section class="output" key=${each.output}>
          <h4><span class="title"><bdi>${plain(each.title)}</bdi></span>
            ${each.n > 0 && html`<span><b>${score(each.mean)}</b> mean${each.deviation !== null ? ` ± ${score(each.deviation)}` : ""} of ${exact(each.n)}</span>`}
            ${each.failed > 0 && html`<span class="refused">${exact(each.failed)} failed</span>`}</h4>
          <${Histogram} of=${each} />
          <${Labels} of=${each} link=${link(each.output)} />
        </section>`)}
      ${of.more_outputs && html`<p class="faint">It has more outputs than are counted.</p>`}
      <${Failures} of=${of.failures} number=${number} />
    </article>`;
}

// The budget of the experiment's own code; one that a command or a variable gave is not in the database.
function Money({ of }) {
  const { tokens: spent, budget } = of;
  if (!spent.metered && !budget) return null;
  const parts = [];
  if (budget?.usd) parts.push(["cost", spent.metered && spent.cost === null ? null : spent.cost ?? 0, budget.usd, dollars]);
  if (budget?.tokens) parts.push(["tokens", spent.input_tokens + spent.output_tokens, budget.tokens, exact]);
  return html`
    <section class="money" aria-label="Tokens and cost">
      <p>spent: ${spent.metered > 0 ? html`<${Spent} of=${spent} />` : "nothing yet"}</p>
      ${parts.map(([name, part, whole, text]) => html`
        <div class="bar" key=${name} role="progressbar" aria-label=${`budget: ${name}`} aria-valuenow=${part ?? 0} aria-valuemin="0" aria-valuemax=${Math.max(whole, part ?? 0)}>
          <svg viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true"><rect class="track" width="100" height="1" /><rect class="fill" width=${100 * share(part ?? 0, whole)} height="1" /></svg>
          <span>${part === null ? "–" : html`<b>${text(part)}</b>`} of the budget of ${text(whole)}${name === "tokens" ? " tokens" : ""}${part === null ? "" : html` <span class="faint">${percent(part / whole)}</span>`}</span>
        </div>`)}
    </section>`;
}

function Batches({ of }) {
  if (!of) return null;
  return html`
    <section aria-label="Batches">
      <h2>Batches</h2>
      <p>${Object.entries(of.counts).map(([state, count]) => html`<span key=${state}><b>${exact(count)}</b> ${state} </span>`)}</p>
      ${of.left.length > 0 && html`<div class="scroll"><table class="failures">
        <caption class="faint">batches that are not fetched${of.more ? ": the first ones" : ""}</caption>
        <thead><tr><th scope="col" class="number">batch</th><th scope="col">state</th><th scope="col" class="number">rows</th><th scope="col">at the provider</th><th scope="col">its word</th></tr></thead>
        <tbody>${of.left.map((each) => html`
          <tr key=${each.batch}>
            <td class="number">${each.batch}</td>
            <td>${each.state}</td>
            <td class="number">${exact(each.rows)}</td>
            <td class="cell"><bdi>${plain(`${each.provider} ${each.id ?? ""}`)}</bdi></td>
            <td class="cell"><bdi>${plain(each.detail)}</bdi></td>
          </tr>`)}</tbody>
      </table></div>`}
    </section>`;
}

function Waits({ of }) {
  if (of.status !== "RUNNING") return null;
  return html`
    <section aria-label="Waits">
      <h2>Waits</h2>
      ${of.keys.length ? html`<ul class="waits">${of.keys.map((key) => html`
        <li key=${key.key}><a href="#/limits">${key.key}</a> <span>${amount(key.in_flight)} of at most ${amount(key.slots)} in flight${key.waiting > 0 && `, ${amount(key.waiting)} waiting`}</span> ${key.blocked && html`<span class="blocked">${key.blocked}</span>`}</li>`)}</ul>`
      : html`<p class="faint">Its limits are seen where it runs: on another machine, or before its first call.</p>`}
    </section>`;
}

function Log({ lines }) {
  return html`
    <section class="log" aria-label="Log">
      <h2>Log</h2>
      <ol tabindex="0">${lines.map((line, place) => html`
        <li key=${lines.length - place} class=${line.level === "ERROR" ? "refused" : ""}><time>${time(line.at)}</time><span>${line.category.toLowerCase()} <b>${plain(line.event)}</b> <bdi class="faint">${plain(line.text)}</bdi></span></li>`)}</ol>
    </section>`;
}

async function download(of, format) {
  const answer = await send(`/api/experiments/${of.id}/export?format=${format}`);
  // A JSON object is no export: it says why there is none.
  if (isJson(answer)) throw new Error((await answer.json()).problem);
  if (!answer.ok) throw new Error(`export failed: the server answered ${answer.status}; its terminal says why`);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await answer.blob());
  link.download = `${of.name.replace(/[^\w.-]+/g, "_")}.${format}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

function Exports({ of }) {
  const [told, setTold] = useState("");
  const load = async (format) => {
    setTold(`${format} is being written`);
    await download(of, format).then(() => setTold(""), (error) => setTold(plain(error.message)));
  };
  return html`
    <span class="exports">export ${["jsonl", "csv", "parquet"].map((format) => html`<button type="button" class="quiet" key=${format} onClick=${() => load(format)}>${format}</button> `)}
      <span role="status" class="faint">${told}</span></span>`;
}

function Head({ of, rows }) {
  return html`
    <nav class="path" aria-label="Experiment">
      <a href=${`#${BASE}`}>all experiments</a>
      <h2><bdi>${plain(of.name)}</bdi></h2>
      <${State} of=${of} />
      <a href=${`#${BASE}/${of.id}`} aria-current=${rows ? null : "page"}>Overview</a>
      <a href=${`#${BASE}/${of.id}/rows`} aria-current=${rows ? "page" : null}>Rows</a>
      <${Exports} of=${of} />
    </nav>`;
}

function One({ of, refresh }) {
  const why = [of.why, of.run_by && `run by ${of.run_by}`, of.quiet !== null && `last heartbeat ${since(of.quiet)}`, of.stopped_by && `stopped by ${of.stopped_by}`].filter(Boolean);
  return html`
    <${Head} of=${of} />
    <p class="about">${exact(of.rows)}${of.rows_complete ? "" : " so far of"} rows of <bdi>${plain(of.source)}</bdi>${of.repetitions > 1 ? ` × ${of.repetitions}` : ""}${of.eta ? html` · ETA <b>${clock(of.eta)}</b>` : ""}${why.map((each) => html` · <span>${plain(each)}</span>`)}</p>
    <${Money} of=${of} />
    <${Actions} of=${of} refresh=${refresh} />
    <${Waits} of=${of} />
    <${Batches} of=${of.batches} />
    <div class="stages">${of.stages.map((each) => html`<${Stage} key=${each.name} of=${each} number=${of.id} />`)}</div>
    ${of.calls && html`<p class="about">all runs: ${many(of.calls.calls, "function call")} in ${duration(of.calls.wall_seconds)} · ${exact(of.calls.capacity_retries)} refused · throttled for ${duration(of.calls.throttled_for)} · ${exact(of.calls.input_tokens)} input + ${exact(of.calls.output_tokens)} output tokens${of.calls.latency_p50 !== null ? ` · latency ${duration(of.calls.latency_p50)}, p99 ${duration(of.calls.latency_p99)}` : ""}</p>`}
    <${Log} lines=${of.log} />`;
}

// ---------------------------------------------------------------- rows

// A field that keeps what is typed while the screen is drawn again. A new address replaces the text.
function Field({ name, label, given, go }) {
  const field = useRef(null);
  useLayoutEffect(() => {
    field.current.value = given;
  }, [given]);
  return html`<input ref=${field} name=${name} aria-label=${label} inputmode="decimal" size="6" onChange=${go} />`;
}

function Filters({ of, query }) {
  const given = new URLSearchParams(query);
  const outputs = (of.stages ?? []).flatMap((stage) => stage.outputs.map((each) => ({ ...each, evaluator: stage.name })));
  const go = (event) => {
    event.preventDefault();
    const values = new FormData(event.currentTarget.closest("form"));
    const next = new URLSearchParams();
    if (values.get("status")) next.set("status", values.get("status"));
    else if (values.get("of")) {
      const chosen = outputs[Number(values.get("of"))];
      next.set("evaluator", chosen.evaluator);
      next.set("output", chosen.output);
      for (const name of ["label", "low", "high"]) if (values.get(name)) next.set(name, values.get(name));
    }
    location.hash = `${BASE}/${of.id}/rows${next.size ? `?${next}` : ""}`;
  };
  const chosen = outputs.findIndex((each) => each.evaluator === given.get("evaluator") && each.output === given.get("output"));
  const output = outputs[chosen];
  return html`
    <form class="filters" onSubmit=${go}>
      <label>rows <select name="status" aria-label="rows" value=${given.get("status") ?? ""} onChange=${(event) => {
        if (event.currentTarget.value) event.currentTarget.form.elements.of.value = "";
        go(event);
      }}>
        <option value="">all</option><option value="failed">failed</option><option value="parked">parked</option><option value="invalid">invalid</option>
      </select></label>
      <label>judged <select name="of" aria-label="judged" value=${chosen < 0 ? "" : String(chosen)} onChange=${(event) => {
        event.currentTarget.form.elements.status.value = "";
        for (const name of ["label", "low", "high"]) if (event.currentTarget.form.elements[name]) event.currentTarget.form.elements[name].value = "";
        go(event);
      }}>
        <option value="">any</option>
        ${outputs.map((each, place) => html`<option key=${place} value=${String(place)}>${plain(each.title)}</option>`)}
      </select></label>
      ${output?.labels?.length > 0 && html`<label>label <select name="label" aria-label="label" value=${given.get("label") ?? ""} onChange=${go}>
        <option value="">any</option>${output.labels.map(([label, count]) => html`<option key=${label} value=${label}>${plain(label).slice(0, 60)} (${exact(count)})</option>`)}
      </select></label>`}
      ${output?.n > 0 && html`
        <label>score from <${Field} name="low" label="score from" given=${given.get("low") ?? ""} go=${go} /></label>
        <label>to <${Field} name="high" label="score to" given=${given.get("high") ?? ""} go=${go} /></label>
        <button type="submit" class="quiet">show</button>`}
    </form>`;
}

const Verdict = ({ of }) => html`
  <span class=${`verdict ${of.status === "ok" ? "" : "refused"}`}><span class="faint">${plain(of.title)}</span> ${of.status !== "ok" ? plain(of.error ?? of.status)
    : of.score !== null ? html`<b>${score(of.score)}</b>${of.label !== null ? ` ${plain(of.label)}` : ""}` : plain(of.label ?? of.value)}</span>`;

function Rows({ of, found, at }) {
  const [open, setOpen] = useState(null);
  if (!found) return html`<p class="faint">loading</p>`;
  if (found.problem) return html`<p>${plain(found.problem)}</p>`;
  const query = new URLSearchParams(at.query);
  const turn = (name, cursor) => {
    const next = new URLSearchParams(query);
    next.delete("after");
    next.delete("before");
    if (cursor) next.set(name, cursor);
    return `#${BASE}/${of.id}/rows?${next}`;
  };
  const cursor = (row) => `${row.ordinal}.${row.repetition}`;
  const back = query.has("before");
  const rows = found.rows;
  const end = found.searched ? `${found.searched[0]}.${found.searched[1]}` : null;
  const next = back || found.more ? (!back && end) || (rows.length && cursor(rows.at(-1))) || query.get("before") : null;
  const last = back ? (found.more ? end ?? (rows.length && cursor(rows[0])) : null) : query.has("after") && ((rows.length && cursor(rows[0])) || query.get("after"));
  return html`
    <div class="scroll"><table class="rows" aria-rowcount=${at.query ? -1 : of.tasks.done}>
      <thead><tr><th scope="col">row</th><th scope="col">state</th><th scope="col">content</th><th scope="col">answer</th><th scope="col">judgements</th></tr></thead>
      <tbody>${rows.map((row) => html`
        <tr key=${cursor(row)} aria-rowindex=${row.ordinal * of.repetitions + row.repetition}>
          <th scope="row"><button type="button" class="link" onClick=${() => setOpen(row)}><bdi>${plain(row.name)}</bdi></button>${of.repetitions > 1 && html`<small class="faint">× ${row.repetition}</small>`}</th>
          <td class=${row.status === "ok" ? "faint" : "refused"}>${row.status === "error" ? "failed" : row.status}</td>
          <td class="cell" onClick=${() => setOpen(row)}><bdi>${plain(row.row)}</bdi></td>
          <td class="cell" onClick=${() => setOpen(row)}>${row.status === "ok" ? html`<bdi>${plain(row.output)}</bdi>` : html`<bdi class="refused">${plain(row.error ?? row.error_kind)}</bdi>`}</td>
          <td class="verdicts">${row.judgements.map((each) => html`<${Verdict} key=${each.title} of=${each} />`)}</td>
        </tr>`)}</tbody>
    </table></div>
    ${!rows.length && html`<p class="faint">${found.searched ? `none up to row ${exact(found.searched[0])}` : "no such row"}</p>`}
    <nav class="pages" aria-label="Pages">
      ${last ? html`<a href=${turn("before", last)}>previous</a>` : html`<span class="faint">previous</span>`}
      ${next ? html`<a href=${turn("after", next)}>${end && !back ? `search on from row ${exact(found.searched[0] + 1)}` : "next"}</a>` : html`<span class="faint">next</span>`}
      ${(query.has("after") || back) && html`<a href=${turn("")}>first</a>`}
    </nav>
    ${open && html`<${Drawer} key=${cursor(open)} number=${of.id} row=${open} close=${() => setOpen(null)} />`}`;
}

const Whole = ({ title, of }) => of && html`
  <section><h3>${title} <span class="faint">${of.length > of.text.length ? `the first ${exact(of.text.length)} of ${exact(of.length)} characters` : ""}</span></h3>
    <pre tabindex="0"><bdi>${plain(of.text)}</bdi></pre></section>`;

function Drawer({ number, row, close }) {
  const place = useRef(null);
  const [found, setFound] = useState(null);
  useEffect(() => {
    place.current.showModal();
    fetchJson(`/api/experiments/${number}/rows/${row.ordinal}/${row.repetition}`).then(setFound, (error) => setFound({ problem: error.message }));
  }, []);
  return html`
    <dialog class="drawer" ref=${place} onClose=${close} onClick=${(event) => event.target === place.current && place.current.close()} aria-label=${`Row ${row.name}`}>
      <div>
      <header><h2>row <bdi>${plain(row.name)}</bdi>${row.repetition > 1 ? ` × ${row.repetition}` : ""}</h2><button type="button" onClick=${() => place.current.close()}>close</button></header>
      ${!found ? html`<p class="faint">loading</p>` : found.problem ? html`<p>${plain(found.problem)}</p>` : html`
        <p class="about">${found.status === "ok" ? "answered" : found.status === "error" ? "failed" : found.status} at ${day(found.finished)} · ${many(found.attempts, "attempt")} · ${duration(found.seconds)}${found.answered_by.map((by) => html` · answered by ${plain(by.choice)}`)}</p>
        ${found.error && html`<section><h3>Error <span class="faint">${plain(found.error_kind)}</span></h3><pre class="refused" tabindex="0"><bdi>${plain(found.error)}</bdi></pre></section>`}
        <${Whole} title="Answer" of=${found.output} />
        ${found.judgements.length > 0 && html`<section><h3>Judgements</h3><div class="scroll"><table class="judgements"><tbody>${found.judgements.map((each) => html`
          <tr key=${`${each.evaluator} ${each.output}`}><th scope="row">${plain(each.evaluator === each.output ? each.evaluator : `${each.evaluator}.${each.output}`)}</th>
            <td class="number">${each.score !== null ? score(each.score) : ""}</td>
            <td class=${each.status === "ok" ? "" : "refused"}><bdi>${plain(each.label ?? each.value?.text ?? each.error ?? each.error_kind ?? "")}</bdi></td></tr>`)}</tbody></table></div></section>`}
        <${Whole} title="Row" of=${found.row} />
        ${found.usages.length > 0 && html`<section><h3>Tokens and cost</h3>${found.usages.map((each) => html`
          <dl class="usage" key=${each.stage}>
            <div><dt>${plain(each.stage)}</dt><dd><${Spent} of=${each} /></dd></div>
            ${[["model", each.model], ["finish reason", each.finish_reason], ["request id", each.request_id]].map(([name, value]) => value !== null && html`<div key=${name}><dt>${name}</dt><dd><bdi>${plain(value)}</bdi></dd></div>`)}
            <div><dt>waited for capacity</dt><dd>${duration(each.waited)}</dd></div>
            ${each.reasoning_tokens > 0 && html`<div><dt>reasoning tokens</dt><dd>${exact(each.reasoning_tokens)}</dd></div>`}
          </dl>`)}</section>`}
        ${found.kept_attempts.length > 0 && html`<section><h3>Kept attempts</h3><div class="scroll"><table><thead><tr><th scope="col">at</th><th scope="col">stage</th><th scope="col">outcome</th><th scope="col" class="number">waited</th><th scope="col" class="number">latency</th></tr></thead>
          <tbody>${found.kept_attempts.map((each, n) => html`<tr key=${n}><td>${time(each.at)}</td><td>${plain(each.stage)}</td><td>${each.status.replace("_", " ")}${each.cause && each.cause !== "none" ? `, ${each.cause}` : ""}${each.http_status ? `, ${each.http_status}` : ""}</td><td class="number">${duration(each.waited)}</td><td class="number">${duration(each.latency)}</td></tr>`)}</tbody></table></div></section>`}`}
      </div>
    </dialog>`;
}

// ---------------------------------------------------------------- comparison

const signed = (value) => `${value > 0 ? "+" : ""}${score(value)}`;
const Mean = ({ mean, interval, text }) => mean === null ? "–" : html`<b>${text(mean)}</b>${interval && html` <span class="faint">[${text(interval[0])}, ${text(interval[1])}]</span>`}`;

function Sides({ data, found }) {
  const statuses = found ? Object.keys(found.a.runs).filter((status) => found.a.runs[status] || found.b.runs[status]) : [];
  return html`
    <div class="scroll"><table class="sides">
      <caption class="faint">${found ? html`results of the ${exact(found.matched)} rows that are in both by their id; tokens and cost of all rows` : "both experiments"}</caption>
      <thead><tr><th scope="col"></th><th scope="col">experiment</th>${statuses.map((status) => html`<th scope="col" class="number" key=${status}>${status}</th>`)}${found && html`<th scope="col" class="number">untried</th><th scope="col" class="number">time a result</th>`}<th scope="col" class="number">tokens</th><th scope="col" class="number">cost</th></tr></thead>
      <tbody>${["a", "b"].map((side) => html`
        <tr key=${side}>
          <th scope="row">${side.toUpperCase()}</th>
          <td><a href=${`#${BASE}/${data[side].id}`}><bdi>${plain(data[side].name)}</bdi></a> <${State} of=${data[side]} /></td>
          ${statuses.map((status) => html`<td class=${`number ${status === "ok" ? "" : "refused"}`} key=${status}>${exact(found[side].runs[status])}</td>`)}
          ${found && html`<td class="number">${exact(found[side].untried)}</td><td class="number">${found[side].seconds === null ? "–" : `${score(found[side].seconds)} s`}</td>`}
          <td class="number">${data[side].tokens.metered ? amount(data[side].tokens.input_tokens + data[side].tokens.output_tokens) : "–"}</td>
          <td class="number">${cost(data[side].tokens) || "–"}</td>
        </tr>`)}</tbody>
    </table></div>`;
}

function ComparedOutput({ of, confidence, pair, open }) {
  const title = of.output === of.evaluator || !of.output ? of.evaluator : `${of.evaluator}.${of.output}`;
  const labelled = of.same_labels + of.other_labels;
  const clear = of.interval && (of.interval[0] > 0 || of.interval[1] < 0);
  return html`
    <article class="stage" aria-label=${`comparison of ${title}`}>
      <h3><bdi>${plain(title)}</bdi> <span class="faint">${many(of.rows, "row")} scored in both</span></h3>
      ${of.rows > 0 && html`
        <dl class="means-of-both">
          <div><dt>mean A</dt><dd><${Mean} mean=${of.a.mean} interval=${of.a.interval} text=${score} /></dd></div>
          <div><dt>mean B</dt><dd><${Mean} mean=${of.b.mean} interval=${of.b.interval} text=${score} /></dd></div>
          <div><dt>B − A</dt><dd><${Mean} mean=${of.difference} interval=${of.interval} text=${signed} /></dd></div>
        </dl>
        <p class="faint">intervals of ${score(confidence * 100)} %${of.interval ? clear ? "; that of the difference does not hold 0" : "; that of the difference holds 0: no difference is shown" : ""}</p>
        <ul class="numbers"><li>B higher in <b>${exact(of.wins)}</b></li><li>lower in <b>${exact(of.losses)}</b></li><li>the same in <b>${exact(of.ties)}</b></li>
          ${["a", "b"].map((side) => of[side].failed > 0 && html`<li class="refused" key=${side}><b>${exact(of[side].failed)}</b> failed in ${side.toUpperCase()}</li>`)}</ul>`}
      ${labelled > 0 && html`<p>${exact(of.same_labels)} of ${exact(labelled)} rows have the same label in both</p>`}
      ${of.different.length > 0 && html`
        <table class="different">
          <thead><tr><th scope="col">most different rows</th><th scope="col" class="number">A</th><th scope="col" class="number">B</th></tr></thead>
          <tbody>${of.different.map((row) => html`
            <tr key=${row.id}><th scope="row"><bdi>${plain(row.id)}</bdi></th>
              ${["a", "b"].map((side, place) => html`<td class="number" key=${side}><button type="button" class="link" aria-label=${`row ${row.id} in ${side.toUpperCase()}, ${score(row[side])}`} onClick=${() => open({ number: pair[place], row: { name: row.id, ordinal: row[`${side}_ordinal`], repetition: 1 } })}>${score(row[side])}</button></td>`)}</tr>`)}</tbody>
        </table>`}
    </article>`;
}

function Comparison({ data, pair, refresh }) {
  const [open, setOpen] = useState(null);
  const [told, setTold] = useState("");
  const found = data.comparison;
  const again = () => fetchJson(comparePath(pair), {}).then(() => setTold(""), (error) => setTold(error.message)).then(refresh);
  return html`
    <nav class="path" aria-label="Comparison"><a href=${`#${BASE}`}>all experiments</a><h2>comparison</h2><a href=${`#${BASE}/compare?a=${pair[1]}&b=${pair[0]}`}>swap A and B</a></nav>
    <${Sides} data=${data} found=${found} />
    <p role="status">${data.computing !== null ? html`computing for ${duration(data.computing)}; 100 000 rows need about ten seconds` : data.queued ? "waiting: another comparison is being computed" : ""}${told}</p>
    ${data.failure && html`<p class="refused">${plain(data.failure)}</p>`}
    ${data.made !== null && html`<p class="about">computed at ${day(data.made)}${data.changed ? "; results have been added since" : ""} <button type="button" class="quiet" onClick=${again}>compute again</button></p>`}
    ${found && html`
      ${found.changed > 0 && html`<p>${exact(found.changed)} of these rows have the same id and different content</p>`}
      ${["a", "b"].map((side) => found[`only_${side}`].length > 0 && html`<p key=${side} class="faint">only in ${side.toUpperCase()}: ${plain(found[`only_${side}`].join(", "))}</p>`)}
      ${found.outputs.length === 0 && html`<p>No output of an evaluator is in both.</p>`}
      <div class="stages">${found.outputs.map((each) => html`<${ComparedOutput} key=${`${each.evaluator} ${each.output}`} of=${each} confidence=${found.confidence} pair=${pair} open=${setOpen} />`)}</div>`}
    ${open && html`<${Drawer} key=${`${open.number} ${open.row.ordinal}`} number=${open.number} row=${open.row} close=${() => setOpen(null)} />`}`;
}

// ---------------------------------------------------------------- tab

function Experiments({ path, refresh }) {
  const at = parse(path);
  const data = state.data;
  const shown = state.path ? parse(state.path) : null;
  // Until the first answer for this screen, the one before is not shown under its name.
  if (!data || shown.number !== at.number) return html`<p class="faint">loading</p>`;
  if (data.problem) return html`<${Problem} data=${data} />`;
  if (at.pair) return html`<${Comparison} key=${at.number} data=${data} pair=${at.pair} refresh=${refresh} />`;
  if (at.number === null) return html`<${List} data=${data} />`;
  if (!at.rows) return html`<${One} of=${data} refresh=${refresh} />`;
  const found = state.rowsFor === `${at.number}?${at.query}` ? state.rows : null;
  return html`<${Head} of=${data} rows=${true} /><${Filters} of=${data} query=${at.query} /><${Rows} key=${at.query} of=${data} found=${found} at=${at} />`;
}

function Summary() {
  const found = state.data?.experiments;
  if (!found?.length) return null;
  const running = found.filter((each) => each.status === "RUNNING").length;
  return html`<span>${many(found.length, "experiment")}${state.data.more ? " and older ones" : ""} · ${exact(running)} running</span>`;
}

export const experimentsTab = { path: BASE, title: "Experiments", poll, content: Experiments, summary: Summary };
