// Two experiments side by side, by the rows that are in both.
import { html, useState } from "/static/vendor/preact-htm.js";
import { BASE, cost, day, plain, score, State } from "/static/experiment_parts.js";
import { Drawer } from "/static/experiment_rows.js";
import { amount, count as exact, duration, fetchJson, many } from "/static/parts.js";

export const comparePath = ([a, b]) => `/api/experiments/compare?${new URLSearchParams({ a, b })}`;

const signed = (value) => `${value > 0 ? "+" : ""}${score(value)}`;
const Mean = ({ mean, interval, text }) => mean === null ? "–" : html`<b>${text(mean)}</b>${interval && html` <span class="faint">[${text(interval[0])}, ${text(interval[1])}]</span>`}`;

function Sides({ data, found }) {
  const statuses = found ? Object.keys(found.a.runs).filter((status) => found.a.runs[status] || found.b.runs[status]) : [];
  return html`
    <div class="scroll"><table class="sides">
      <caption class="faint">${found ? html`results of the ${exact(found.matched)} rows that are in both by their id; tokens and cost of all rows` : "both experiments"}</caption>
      <thead><tr><th scope="col"></th><th scope="col">experiment</th>${statuses.map((status) => html`<th scope="col" class="number" key=${status}>${status}</th>`)}${found && html`<th scope="col" class="number">untried</th><th scope="col" class="number">seconds per result</th>`}<th scope="col" class="number">tokens</th><th scope="col" class="number">cost</th></tr></thead>
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

const titleOf = (of) => (of.output === of.evaluator || !of.output ? of.evaluator : `${of.evaluator}.${of.output}`);

// B − A of each output with its interval, on a scale of its own, with zero in the middle.
function Forest({ outputs, confidence }) {
  const known = outputs.filter((each) => each.difference !== null && each.interval);
  if (!known.length) return null;
  const at = (value, wide) => 50 + (46 * value) / wide;
  return html`
    <div class="scroll"><table class="forest">
      <caption class="faint">B − A with its interval of ${score(confidence * 100)} %; the line is 0, each output has a scale of its own</caption>
      <tbody>${known.map((of) => {
        const [low, high] = of.interval;
        const wide = Math.max(Math.abs(low), Math.abs(high), Math.abs(of.difference), 1e-9);
        const clear = low > 0 || high < 0;
        return html`
          <tr key=${titleOf(of)}><th scope="row"><bdi>${plain(titleOf(of))}</bdi></th>
            <td class="plotted"><svg class=${clear ? "clear" : ""} viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label=${`${titleOf(of)}: ${signed(of.difference)}, from ${signed(low)} to ${signed(high)}`}>
              <line class="zero" x1="50" x2="50" y1="0" y2="10" /><line x1=${at(low, wide)} x2=${at(high, wide)} y1="5" y2="5" /><rect x=${at(of.difference, wide) - 0.5} y="1.5" width="1" height="7" /></svg></td>
            <td class="number"><b>${signed(of.difference)}</b> <span class="faint">[${signed(low)}, ${signed(high)}]</span></td>
            <td>${clear ? html`<span aria-hidden="true">${of.difference > 0 ? "▲" : "▼"}</span> B ${of.difference > 0 ? "higher" : "lower"}` : html`<span class="faint">no difference is shown</span>`}</td></tr>`;
      })}</tbody>
    </table></div>`;
}

function ComparedOutput({ of, confidence, pair, open }) {
  const title = titleOf(of);
  const labelled = of.same_labels + of.other_labels;
  const clear = of.interval && (of.interval[0] > 0 || of.interval[1] < 0);
  return html`
    <article class="stage" aria-label=${`comparison of ${title}`}>
      <h3><bdi>${plain(title)}</bdi> ${of.rows > 0 && html`<span class="faint">${many(of.rows, "row")} scored in both</span>`}</h3>
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

export function Comparison({ data, pair, refresh }) {
  const [open, setOpen] = useState(null);
  const [told, setTold] = useState("");
  const found = data.comparison;
  const shown = (found?.outputs ?? []).filter((each) => each.rows > 0 || each.same_labels + each.other_labels > 0);
  const empty = (found?.outputs ?? []).filter((each) => !shown.includes(each)).map(titleOf);
  const again = () => fetchJson(comparePath(pair), {}).then(() => setTold(""), (error) => setTold(error.message)).then(refresh);
  return html`
    <nav class="path" aria-label="Comparison"><a href=${`#${BASE}`}>all experiments</a><h2>comparison</h2><a href=${`#${BASE}/compare?a=${pair[1]}&b=${pair[0]}`}>swap A and B</a></nav>
    <${Sides} data=${data} found=${found} />
    <p role="status">${data.computing !== null ? html`computing for ${duration(data.computing)}` : data.queued ? "waiting: another comparison is being computed" : ""}${told}</p>
    ${data.failure && html`<p class="refused">${plain(data.failure)}</p>`}
    ${data.made !== null && html`<p class="about">computed at ${day(data.made)}${data.changed ? "; results have been added since" : ""} <button type="button" class="quiet" onClick=${again}>compute again</button></p>`}
    ${found && html`
      ${found.changed > 0 && html`<p>${exact(found.changed)} of these rows have the same id and different content</p>`}
      ${["a", "b"].map((side) => found[`only_${side}`].length > 0 && html`<p key=${side} class="faint">only in ${side.toUpperCase()}: ${plain(found[`only_${side}`].join(", "))}</p>`)}
      ${found.outputs.length === 0 && html`<p>No output of an evaluator is in both.</p>`}
      ${empty.length > 0 && html`<p class="faint">without a score or label in both: ${plain(empty.join(", "))}</p>`}
      <${Forest} outputs=${shown} confidence=${found.confidence} />
      <div class="stages">${shown.map((each) => html`<${ComparedOutput} key=${`${each.evaluator} ${each.output}`} of=${each} confidence=${found.confidence} pair=${pair} open=${setOpen} />`)}</div>`}
    ${open && html`<${Drawer} key=${`${open.number} ${open.row.ordinal}`} number=${open.number} row=${open.row} close=${() => setOpen(null)} />`}`;
}
