// The experiments view: its data, and the list.
//
// The location's fragment names the screen: `/experiments`, `/experiments/12`, `/experiments/12/rows?status=failed`,
// and `/experiments/12/rows/34.1` with the row 34 in its first repetition open.
import { html, useState } from "/static/vendor/preact-htm.js";
import { Comparison, comparePath } from "/static/experiment_comparison.js";
import { Actions, Head, One } from "/static/experiment_one.js";
import { BASE, Bar, cost, plain, score, since, State } from "/static/experiment_parts.js";
import { Filters, Rows } from "/static/experiment_rows.js";
import { amount, clock, count as exact, fetchJson, many } from "/static/parts.js";

const ROWS_MS = 5000;

const state = { path: "", data: null, rows: null, rowsAt: 0, rowsFor: "" };

// ---------------------------------------------------------------- data

function parse(path) {
  const [place, query = ""] = path.split("?");
  const [number, part, row] = place.slice(BASE.length + 1).split("/");
  if (number === "compare") {
    const pair = ["a", "b"].map((name) => Number(new URLSearchParams(query).get(name)));
    return { number: `compare ${pair}`, pair, rows: false, query };
  }
  return { number: /^\d+$/.test(number ?? "") ? Number(number) : null, rows: part === "rows", row: /^\d+\.\d+$/.test(row ?? "") ? row : null, query };
}

async function poll(path) {
  const at = parse(path);
  const url = at.pair ? comparePath(at.pair) : at.number === null ? `/api/experiments${at.query ? `?${at.query}` : ""}` : `/api/experiments/${at.number}`;
  const data = await fetchJson(url);
  if (at.rows && !data.problem) await pollRows(at, data.status === "RUNNING");
  Object.assign(state, { data, path });
  return data.as_of;
}

async function pollRows(at, running) {
  const wanted = `${at.number}?${at.query}`;
  const old = Date.now() - state.rowsAt > ROWS_MS;
  if (wanted === state.rowsFor && !(running && old)) return;
  if (wanted !== state.rowsFor) state.rows = null;
  const found = await fetchJson(`/api/experiments/${at.number}/rows?${at.query}`);
  Object.assign(state, { rows: found, rowsAt: Date.now(), rowsFor: wanted });
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

function List({ data, refresh }) {
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
      <thead><tr><th scope="col">experiment</th><th scope="col">state</th><th scope="col">answered, judged</th><th scope="col" class="number">failed</th><th scope="col" class="number">parked</th><th scope="col" class="number">ETA</th>${spends && html`<th scope="col" class="number">tokens</th><th scope="col" class="number">cost</th>`}<th scope="col">mean scores</th><th scope="col">last activity</th><th scope="col">action</th></tr></thead>
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
          <td data-title="mean scores" class="means"><${Means} of=${each} /></td>
          <td data-title="last activity" class="faint">${since(each.quiet ?? data.as_of - each.active)}</td>
          <td class="act">${each.status !== "COMPLETED" && html`<${Actions} of=${each} refresh=${refresh} short=${true} />`}</td>
        </tr>`)}</tbody>
    </table></div>
    ${data.more && html`<p><a href=${`#${BASE}/?before=${data.experiments.at(-1).id}`}>older experiments</a></p>`}`;
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
  if (at.number === null) return html`<${List} data=${data} refresh=${refresh} />`;
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
