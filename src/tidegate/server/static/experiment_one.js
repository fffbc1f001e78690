// One experiment: what it has spent, its stages with their scores and failures, its waits, batches and log.
import { html, useState } from "/static/vendor/preact-htm.js";
import { BASE, Bar, Copied, cost, day, percent, plain, score, share, since, Spent, State } from "/static/experiment_parts.js";
import { amount, clock, count as exact, dollars, duration, fetchJson, isJson, many, send, time } from "/static/parts.js";

// Most integers that have a column of their own.
const INTEGERS = 40;

// Return one bin for each integer, where each bin holds one; else null. Bins are pairs of a place and a count.
function integerBins({ low, high, width, bins }) {
  if (!Number.isInteger(low) || !Number.isInteger(high) || width > 1 || high - low >= INTEGERS) return null;
  const found = new Map();
  for (const [place, count] of bins) {
    const value = Math.ceil(place * width - 1e-9);
    if (value >= (place + 1) * width - 1e-12) return null;
    found.set(value, (found.get(value) ?? 0) + count);
  }
  return [...found];
}

const WIDE = 100;
const HIGH = 40;

function Histogram({ of }) {
  if (!of.bins.length) return null;
  if (of.low === of.high) return html`<p class="faint one">all ${exact(of.n)} scores are ${score(of.mean)}</p>`;
  const whole = integerBins(of);
  if (!whole && of.bins.length < 2) return html`<p class="faint one">all ${exact(of.n)} scores are about ${score(of.mean)}</p>`;
  const width = whole ? 1 : of.width;
  const bins = whole ?? of.bins;
  const places = bins.map(([place]) => place);
  // The whole scale from 0 to 1 where all scores are on it.
  const unit = !whole && of.low >= 0 && of.high <= 1 ? Math.round(1 / width) : 0;
  const first = unit ? 0 : Math.min(...places);
  const last = unit || Math.max(...places);
  const most = Math.max(...bins.map(([, count]) => count));
  const step = WIDE / (last - first + 1);
  const range = (place) => (whole ? score(place) : `${score(place * width)} to below ${score((place + 1) * width)}`);
  const mean = of.mean === null ? null : (of.mean / width - first + (whole ? 0.5 : 0)) * step;
  return html`
    <div class="histogram">
      <div class="counts faint" aria-hidden="true"><span>${exact(most)}</span><span>0</span></div>
      <div>
        <svg viewBox="0 0 ${WIDE} ${HIGH}" preserveAspectRatio="none" role="img" aria-label=${`Scores of ${of.title}: ${exact(of.n)}, mean ${score(of.mean)}, from ${score(of.low)} to ${score(of.high)}`}>
          ${bins.map(([place, count]) => {
            const height = Math.max(0.8, ((HIGH - 1) * count) / most);
            return html`<g key=${place}><title>${range(place)}: ${exact(count)}</title><rect class="hover" x=${(place - first) * step} y="0" width=${step} height=${HIGH} /><rect x=${(place - first) * step + step * 0.06} y=${HIGH - height} width=${step * 0.88} height=${height} /></g>`;
          })}
          ${mean !== null && html`<line x1=${mean} x2=${mean} y1="0" y2=${HIGH} />`}
        </svg>
        <div class=${whole ? "scale whole faint" : "scale faint"} aria-hidden="true"><span>${score(first * width)}</span>${mean !== null && html`<span class="mean">mean ${score(of.mean)}</span>`}<span>${score((unit || whole ? last : last + 1) * width)}</span></div>
      </div>
      <table class="hidden-table">
        <caption>${of.title}: scores by bin</caption>
        <thead><tr><th scope="col">scores</th><th scope="col">count</th></tr></thead>
        <tbody>${bins.map(([place, count]) => html`<tr key=${place}><td>${range(place)}</td><td>${count}</td></tr>`)}</tbody>
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

// `short`: the button alone, as in the list.
export function Actions({ of, refresh, short = false }) {
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
  if (short) {
    const verb = runs || of.status === "READY" ? "stop" : "resume";
    return html`<button type="button" class="quiet" disabled=${busy || of.cooling > 0} aria-label=${`${verb} ${of.name}`} onClick=${() => act(verb)}>${verb}</button>
      <small role="status" class="faint">${told}</small>`;
  }
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

const BATCH_STATES = { intent: "being sent", submitted: "at the provider", ended: "ended, answers to be fetched", fetched: "done" };
// OpenAI, Azure OpenAI and Anthropic end a batch within a day.
const BATCH_SECONDS = 86400;

function Batches({ of, now }) {
  if (!of) return null;
  return html`
    <section aria-label="Batches">
      <h2>Batches</h2>
      <p>${Object.entries(of.counts).map(([state, count], place) => html`<span key=${state}>${place ? " · " : ""}<b>${exact(count)}</b> ${BATCH_STATES[state]}</span>`)}${of.rows > 0 && html` · <b>${exact(of.rows)}</b> rows wait for answers`}</p>
      ${of.left.length > 0 && html`<div class="scroll"><table class="failures">
        <caption class="faint">batches that are not done${of.more ? ": the first ones" : ""}</caption>
        <thead><tr><th scope="col">state</th><th scope="col" class="number">rows</th><th scope="col">age</th><th scope="col">its id</th><th scope="col">the provider says</th></tr></thead>
        <tbody>${of.left.map((each) => {
          const old = each.created === null ? null : Math.max(0, now - each.created);
          return html`
          <tr key=${each.batch}>
            <td>${BATCH_STATES[each.state]}</td>
            <td class="number">${exact(each.rows)}</td>
            <td>${old !== null && html`${clock(old)}${each.state === "submitted" && html` <span class="faint">· ${old < BATCH_SECONDS ? `expires in ${clock(BATCH_SECONDS - old)} at the latest` : "older than a day"}</span>`}`}</td>
            <td class="cell"><bdi>${plain(each.provider)}</bdi> ${each.id ? html`<${Copied} text=${plain(each.id)} />` : html`<span class="faint">none yet</span>`}</td>
            <td class="cell"><bdi>${plain(each.detail) || "–"}</bdi></td>
          </tr>`;
        })}</tbody>
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
      : html`<p class="faint">${of.batches?.rows > 0 ? `${exact(of.batches.rows)} rows are in a batch of the provider: no call of them waits here.` : "No call yet, or it runs on another machine: its limits are seen there."}</p>`}
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
    <span class="exports">export ${["jsonl", "csv", "parquet"].map((format) => html`<button type="button" class="quiet" key=${format} disabled=${of.unusable[format] !== undefined} title=${of.unusable[format] ?? null} onClick=${() => load(format)}>${format}</button> `)}
      ${Object.values(of.unusable).map((why) => html`<small key=${why} class="faint">${why}</small>`)}
      <span role="status" class="faint">${told}</span></span>`;
}

export function Head({ of, rows }) {
  const { tasks } = of;
  const lost = [[of.failed, "failed"], [of.parked, "parked"]].filter(([number]) => number > 0);
  return html`
    <nav class="path" aria-label="Experiment">
      <a href=${`#${BASE}`}>all experiments</a>
      <h2><bdi>${plain(of.name)}</bdi></h2>
      <${State} of=${of} />
      <${Exports} of=${of} />
    </nav>
    <dl class="three">
      <div><dt>progress</dt><dd><b>${percent(share(tasks.done, tasks.total))}</b> · ${exact(tasks.done)} of ${exact(tasks.total)}${lost.map(([number, title]) => html` · <span key=${title} class=${title === "failed" ? "refused" : ""}>${exact(number)} ${title}</span>`)}${of.eta ? html` · ETA <b>${clock(of.eta)}</b>` : ""}</dd></div>
      <div><dt>time</dt><dd>created ${day(of.created)}${of.calls && ` · ran ${duration(of.calls.wall_seconds)} in ${many(of.runs, "run")}`}${of.quiet !== null && ` · last heartbeat ${since(of.quiet)}`}</dd></div>
      <div><dt>spent</dt><dd>${of.model && html`<bdi>${plain(of.model)}</bdi> · `}${of.tokens.metered > 0 ? html`<b>${amount(of.tokens.input_tokens + of.tokens.output_tokens)}</b> tokens${cost(of.tokens) && html` · <b>${cost(of.tokens)}</b>`}` : "no tokens yet"}</dd></div>
    </dl>
    <nav class="tabs" aria-label="Screens">
      <a href=${`#${BASE}/${of.id}`} aria-current=${rows ? null : "page"}>Overview</a>
      <a href=${`#${BASE}/${of.id}/rows`} aria-current=${rows ? "page" : null}>Rows</a>
    </nav>`;
}

export function One({ of, refresh }) {
  const why = [of.why, of.run_by && `run by ${of.run_by}`, of.stopped_by && `stopped by ${of.stopped_by}`].filter(Boolean);
  return html`
    <${Head} of=${of} />
    <p class="about">${exact(of.rows)}${of.rows_complete ? "" : " so far of"} rows of <bdi>${plain(of.source)}</bdi>${of.repetitions > 1 ? ` × ${of.repetitions}` : ""}${why.map((each) => html` · <span>${plain(each)}</span>`)}</p>
    <${Money} of=${of} />
    <${Actions} of=${of} refresh=${refresh} />
    <${Waits} of=${of} />
    <${Batches} of=${of.batches} now=${of.as_of} />
    <div class="stages">${of.stages.map((each) => html`<${Stage} key=${each.name} of=${each} number=${of.id} />`)}</div>
    ${of.calls && html`<p class="about">all runs: ${many(of.calls.calls, "function call")} in ${duration(of.calls.wall_seconds)} · ${exact(of.calls.capacity_retries)} refused · throttled for ${duration(of.calls.throttled_for)} · ${exact(of.calls.input_tokens)} input + ${exact(of.calls.output_tokens)} output tokens${of.calls.latency_p50 !== null ? ` · latency ${duration(of.calls.latency_p50)}, p99 ${duration(of.calls.latency_p99)}` : ""}</p>`}
    <${Log} lines=${of.log} />`;
}
