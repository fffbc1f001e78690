// The limits view: the overview of all keys, the cards of the opened ones, and the programs that have finished.
import { html } from "/static/vendor/preact-htm.js";
import { Card } from "/static/key_card.js";
import { Overview } from "/static/overview.js";
import { amount, count, duration, many, per, time } from "/static/parts.js";
import { groups, KEPT, poll as fetchSamples, state } from "/static/samples.js";

// Keys whose cards are open at first. More would hide each other.
const OPENED = matchMedia("(max-width: 40rem)").matches ? 1 : 3;
const SPANS = [[60, "1 m"], [600, "10 m"], [KEPT, "all"]];

// `open` has the keys whose cards are open or were closed, in the order in which they were opened.
const view = { open: new Map(), words: "", span: 600, unfolded: false };

let keys = [];

const opened = () => [...view.open.values()].filter(Boolean).length;

async function poll() {
  const asOf = await fetchSamples();
  keys = groups();
  for (const of of keys) {
    if (!view.open.has(of.name) && of.state.kind !== "idle" && opened() < OPENED) view.open.set(of.name, true);
  }
  const waiting = total("waiting");
  document.title = waiting ? `tidegate · ${count(waiting)} waiting` : "tidegate";
  return asOf;
}

const total = (name) => keys.reduce((sum, key) => sum + key[name], 0);

// ---------------------------------------------------------------- parts

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

function Controls({ redraw, refresh }) {
  const set = (change) => {
    Object.assign(view, change);
    redraw();
  };
  const pause = () => {
    state.paused = !state.paused;
    if (state.paused) redraw();
    else refresh();
  };
  return html`
    <form class="controls" role="search" onSubmit=${(event) => event.preventDefault()}>
      <input type="search" data-search placeholder="filter: model, host, program, state ( / )" aria-label="filter keys" value=${view.words}
        onInput=${(event) => set({ words: event.currentTarget.value })} onKeyDown=${(event) => event.key === "Escape" && event.currentTarget.blur()} />
      <span role="group" aria-label="time range of the charts">${SPANS.map(([span, text]) => html`
        <button type="button" key=${span} aria-pressed=${view.span === span} title=${span === KEPT ? "since this page was opened, at most an hour" : null} onClick=${() => set({ span })}>${text}</button>`)}</span>
      <button type="button" aria-pressed=${state.paused} onClick=${pause}>${state.paused ? "paused: go on" : "pause"}</button>
    </form>`;
}

// What cannot be read, and the programs that have no key yet.
function Programs() {
  const silent = state.runs.filter((run) => !run.ended && !run.unreadable && !run.keys.length);
  return html`
    ${state.runs.filter((run) => run.unreadable).map((run) => html`
      <p class="lost" key=${run.command}><span aria-hidden="true">✕</span> <code>${run.command}</code> unreadable: ${run.unreadable}</p>`)}
    ${state.runs.flatMap((run) => run.lost.map((each) => html`
      <p class="lost" key=${each.pid}><span aria-hidden="true">✕</span> counts of process ${each.pid} unreadable: ${each.why}; they are not shown</p>`))}
    ${silent.map((run) => html`<p class="faint" key=${run.pid}>no call yet: <code>${run.command}</code> pid ${run.pid} · running for ${duration(run.elapsed)}</p>`)}`;
}

function Finished() {
  if (!state.finished.length) return null;
  return html`
    <details class="finished">
      <summary>${many(state.finished.length, "finished program")}</summary>
      <ul>${state.finished.map((end) => {
        const { calls, answered, given_up: givenUp, failed, abandoned, refused } = end.counts;
        const lost = [[givenUp, "given up"], [failed, "failed"], [abandoned, "abandoned"]].filter(([number]) => number > 0);
        return html`
          <li key=${`${end.pid} ${end.at}`}><code>${end.command}</code>
            <span>ended ${time(end.at)} after ${duration(end.elapsed)} · ${count(answered)} of ${many(calls, "call")} answered${lost.map(([number, title]) => html` · <span class="bad">${count(number)} ${title}</span>`)} · ${many(refused, "refusal")}${end.binding && ` · ${Math.round(100 * end.binding.share)} % of ${amount(end.binding.limit)} ${end.binding.name.replaceAll("_", " ")}/${per(end.binding.window)} used`}</span></li>`;
      })}</ul>
      <p class="faint">as last seen by this server, at most a second before their end</p>
    </details>`;
}

// ---------------------------------------------------------------- page

function Limits({ theme, redraw, refresh }) {
  const words = view.words.toLowerCase().split(/\s+/).filter(Boolean);
  const found = keys.filter((of) => words.every((word) => of.words.includes(word)));
  const resting = found.filter((of) => of.state.kind === "idle");
  // Who filters wants to see what matches, also where it is idle.
  const folds = !words.length && resting.length > 0;
  const shown = folds ? found.filter((of) => of.state.kind !== "idle") : found;
  const isOpen = (of) => view.open.get(of.name) === true;
  const toggle = (of) => {
    const opens = !isOpen(of);
    view.open.set(of.name, opens);
    redraw();
    if (opens) requestAnimationFrame(() => document.getElementById(`key ${of.name}`)?.scrollIntoView({ block: "nearest" }));
  };
  const unfold = () => {
    view.unfolded = !view.unfolded;
    redraw();
  };
  const byName = new Map(found.map((of) => [of.name, of]));
  const cards = [...view.open].filter(([name, open]) => open && byName.has(name)).map(([name]) => byName.get(name));
  return html`
    ${state.loaded && !state.runs.length && html`<${Empty} />`}
    ${keys.length > 0 && html`
      <${Controls} redraw=${redraw} refresh=${refresh} />
      ${found.length ? html`<${Overview} keys=${shown} idle=${folds ? resting : []} unfolded=${view.unfolded} unfold=${unfold} isOpen=${isOpen} toggle=${toggle} />` : html`<p class="faint">no key matches; the filter looks at model, host, program and state</p>`}`}
    <${Programs} />
    ${cards.map((of, place) => html`<div class="card" id=${`key ${of.name}`} key=${of.name}><${Card} of=${of} theme=${theme} span=${view.span} hint=${place === 0} close=${() => toggle(of)} /></div>`)}
    <${Finished} />`;
}

function Summary() {
  if (!state.totals.calls && !keys.length) return null;
  const programs = state.runs.filter((run) => !run.ended).length;
  // Ended programs keep counting, so that no total falls.
  const { answered, calls, retried, given_up: givenUp } = state.totals;
  return html`
    <ul class="summary">
      <li>${many(programs, "program")}</li>
      <li><b>${count(answered)}</b> of ${count(calls)} calls answered</li>
      <li><b>${count(total("waiting"))}</b> waiting</li>
      <li><b>${count(retried)}</b> refusals sent again</li>
      <li class=${givenUp ? "bad" : ""}><b>${count(givenUp)}</b> given up</li>
    </ul>`;
}

export const limitsTab = { path: "/limits", title: "Limits", poll, content: Limits, summary: Summary, isPaused: () => state.paused };
