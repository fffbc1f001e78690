// The rows of an experiment: filters, a page of the table, and one whole row.
import { html, useEffect, useLayoutEffect, useRef, useState } from "/static/vendor/preact-htm.js";
import { BASE, day, plain, score, Spent } from "/static/experiment_parts.js";
import { count as exact, duration, fetchJson, many, time } from "/static/parts.js";


// A field that keeps what is typed while the screen is drawn again. A new address replaces the text.
function Field({ name, label, given, go, search = false }) {
  const field = useRef(null);
  useLayoutEffect(() => {
    field.current.value = given;
  }, [given]);
  return search
    ? html`<input ref=${field} type="search" name=${name} aria-label=${label} placeholder=${`${label} ( / )`} data-search onChange=${go} />`
    : html`<input ref=${field} name=${name} aria-label=${label} inputmode="decimal" size="6" onChange=${go} />`;
}

export function Filters({ of, query }) {
  const given = new URLSearchParams(query);
  const outputs = (of.stages ?? []).flatMap((stage) => stage.outputs.map((each) => ({ ...each, evaluator: stage.name })));
  const go = (event) => {
    event.preventDefault();
    const values = new FormData(event.currentTarget.closest("form"));
    const next = new URLSearchParams();
    if (values.get("status")) next.set("status", values.get("status"));
    if (values.get("text")) next.set("text", values.get("text"));
    // A text is searched in all rows, or in those of a status.
    if (!next.size && values.get("of")) {
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
    <form class="filters" role="search" onSubmit=${go}>
      <${Field} name="text" label="search in texts" given=${given.get("text") ?? ""} go=${(event) => {
        if (event.currentTarget.value) event.currentTarget.form.elements.of.value = "";
        go(event);
      }} search=${true} />
      <label>rows <select name="status" aria-label="rows" value=${given.get("status") ?? ""} onChange=${(event) => {
        if (event.currentTarget.value) event.currentTarget.form.elements.of.value = "";
        go(event);
      }}>
        <option value="">all</option><option value="failed">failed</option><option value="parked">parked</option><option value="invalid">invalid</option>
      </select></label>
      <label>judged <select name="of" aria-label="judged" value=${chosen < 0 ? "" : String(chosen)} onChange=${(event) => {
        event.currentTarget.form.elements.status.value = "";
        event.currentTarget.form.elements.text.value = "";
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

// Fields of the rows that are columns, by experiment, as far as they were chosen.
const chosenColumns = new Map();
const MOST_COLUMNS = 3;

// The fields of a page's rows. One that only repeats the name of its row is none.
function fieldsOf(rows) {
  const names = new Set(rows.flatMap((row) => Object.keys(row.fields ?? {})));
  return [...names].filter((name) => rows.some((row) => row.fields && row.fields[name] !== undefined && row.fields[name] !== row.name));
}

// What a page can be sorted by: each has a text, and the value of a row.
function sorts(rows, fields) {
  const scores = [...new Set(rows.flatMap((row) => row.judgements.filter((each) => each.score !== null).map((each) => each.title)))];
  return [
    ["", "row", (row) => row.ordinal * 1e6 + row.repetition],
    ["state", "state", (row) => row.status],
    ["time", "time", (row) => row.seconds],
    ...scores.map((title) => [`score ${title}`, title, (row) => row.judgements.find((each) => each.title === title)?.score ?? null]),
    ...fields.map((name) => [`field ${name}`, name, (row) => row.fields?.[name] ?? null]),
  ];
}

const NUMBER = /^-?\d+(\.\d+)?$/;
function compare(one, other) {
  // Rows without a value are last.
  if (one === null || other === null) return (one === null) - (other === null);
  if (NUMBER.test(one) && NUMBER.test(other)) return Number(one) - Number(other);
  return typeof one === "string" ? one.localeCompare(other) : one - other;
}

export function Rows({ of, found, at }) {
  const [sort, setSort] = useState(["", 1]);
  const [, setColumns] = useState(0);
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
  const go = (place) => {
    location.hash = `${BASE}/${of.id}/rows${place ? `/${place}` : ""}${at.query ? `?${at.query}` : ""}`;
  };
  const back = query.has("before");
  const rows = found.rows;
  const end = found.searched ? `${found.searched[0]}.${found.searched[1]}` : null;
  const next = back || found.more ? (!back && end) || (rows.length && cursor(rows.at(-1))) || query.get("before") : null;
  const last = back ? (found.more ? end ?? (rows.length && cursor(rows[0])) : null) : query.has("after") && ((rows.length && cursor(rows[0])) || query.get("after"));
  const fields = fieldsOf(rows);
  const columns = fields.filter((name) => (chosenColumns.get(of.id) ?? fields.slice(0, MOST_COLUMNS)).includes(name));
  const choose = (name) => {
    chosenColumns.set(of.id, columns.includes(name) ? columns.filter((each) => each !== name) : [...columns, name]);
    setColumns((turns) => turns + 1);
  };
  const kinds = sorts(rows, fields);
  const value = (kinds.find(([key]) => key === sort[0]) ?? kinds[0])[2];
  const shown = [...rows].sort((one, other) => {
    const [a, b] = [value(one), value(other)];
    return a === null || b === null ? compare(a, b) : sort[1] * compare(a, b);
  });
  const place = at.row === null ? -1 : shown.findIndex((row) => cursor(row) === at.row);
  const step = (by) => shown[place + by] && go(cursor(shown[place + by]));
  const failed = (row) => row.status !== "ok" || row.judgements.some((each) => each.status !== "ok");
  const state = (row) => (row.status === "error" ? "failed" : row.status !== "ok" ? row.status : failed(row) ? "judgement failed" : "ok");
  return html`
    <div class="filters sorting">
      <label>sort ${found.more || query.has("after") || back ? "this page" : ""} by <select aria-label="sort by" value=${sort[0]} onChange=${(event) => setSort([event.currentTarget.value, event.currentTarget.value ? -1 : 1])}>${kinds.map(([key, text]) => html`<option key=${key} value=${key}>${plain(text).slice(0, 60)}</option>`)}</select></label>
      <button type="button" class="quiet" aria-label=${sort[1] < 0 ? "largest first" : "smallest first"} onClick=${() => setSort([sort[0], -sort[1]])}>${sort[1] < 0 ? "↓ largest first" : "↑ smallest first"}</button>
      ${fields.length > 0 && html`<details class="columns"><summary>columns</summary>${fields.map((name) => html`
        <label key=${name}><input type="checkbox" checked=${columns.includes(name)} onChange=${() => choose(name)} /> <bdi>${plain(name).slice(0, 60)}</bdi></label>`)}</details>`}
    </div>
    <div class="scroll"><table class="rows" aria-rowcount=${at.query ? -1 : of.tasks.done}>
      <thead><tr><th scope="col">row</th><th scope="col">state</th>${fields.length ? columns.map((name) => html`<th scope="col" key=${name}><bdi>${plain(name)}</bdi></th>`) : html`<th scope="col">content</th>`}<th scope="col">answer</th><th scope="col">judgements</th><th scope="col" class="number">time</th></tr></thead>
      <tbody>${shown.map((row) => {
        const open = () => go(cursor(row));
        const cell = (text, key) => html`<td class="cell" key=${key} onClick=${open}><bdi>${plain(text)}</bdi></td>`;
        return html`
        <tr key=${cursor(row)} aria-rowindex=${row.ordinal * of.repetitions + row.repetition} aria-current=${cursor(row) === at.row ? "true" : null}>
          <th scope="row"><button type="button" class="link" onClick=${open}><bdi>${plain(row.name)}</bdi></button>${of.repetitions > 1 && html`<small class="faint">× ${row.repetition}</small>`}</th>
          <td class=${failed(row) ? "refused" : "faint"}>${state(row)}</td>
          ${!fields.length ? cell(row.row, "content") : row.fields ? columns.map((name) => cell(row.fields[name], name)) : columns.length > 0 && html`<td class="cell" colspan=${columns.length} onClick=${open}><bdi>${plain(row.row)}</bdi></td>`}
          <td class="cell" onClick=${open}>${row.status === "ok" ? html`<bdi>${plain(row.output)}</bdi>` : html`<bdi class="refused">${plain(row.error ?? row.error_kind)}</bdi>`}</td>
          <td class="verdicts">${row.judgements.map((each) => html`<${Verdict} key=${each.title} of=${each} />`)}</td>
          <td class="number faint">${row.seconds ? duration(row.seconds) : "–"}</td>
        </tr>`;
      })}</tbody>
    </table></div>
    ${!rows.length && html`<p class="faint">${found.searched ? `none up to row ${exact(found.searched[0])}` : "no such row"}</p>`}
    <nav class="pages" aria-label="Pages">
      ${last ? html`<a href=${turn("before", last)}>previous</a>` : html`<span class="faint">previous</span>`}
      ${next ? html`<a href=${turn("after", next)}>${end && !back ? `search on from row ${exact(found.searched[0] + 1)}` : "next"}</a>` : html`<span class="faint">next</span>`}
      ${(query.has("after") || back) && html`<a href=${turn("")}>first</a>`}
    </nav>
    ${at.row !== null && html`<${Drawer} key="row" number=${of.id} row=${shown[place] ?? addressed(at.row)} close=${() => go("")} step=${place < 0 ? null : step} place=${place} count=${shown.length} />`}`;
}

// The row of an address that is on no page which is shown.
function addressed(cursor) {
  const [ordinal, repetition] = cursor.split(".").map(Number);
  return { name: "", ordinal, repetition };
}

const Whole = ({ title, of }) => of && html`
  <section><h3>${title} <span class="faint">${of.length > of.text.length ? `the first ${exact(of.text.length)} of ${exact(of.length)} characters` : ""}</span></h3>
    <pre tabindex="0"><bdi>${plain(of.text)}</bdi></pre></section>`;

// One row. `step` goes to a row of the same page before or after it, by the keys j and k too.
export function Drawer({ number, row, close, step = null, place: at = 0, count = 0 }) {
  const place = useRef(null);
  const [answer, setAnswer] = useState({ of: "", found: null });
  const address = `/api/experiments/${number}/rows/${row.ordinal}/${row.repetition}`;
  useEffect(() => place.current.showModal(), []);
  useEffect(() => {
    let wanted = true;
    const set = (found) => wanted && setAnswer({ of: address, found });
    fetchJson(address).then(set, (error) => set({ problem: error.message }));
    return () => {
      wanted = false;
    };
  }, [address]);
  const found = answer.of === address ? answer.found : null;
  const name = row.name || found?.name || "";
  const keys = (event) => {
    const by = { j: 1, k: -1 }[event.key];
    if (by && step && !event.ctrlKey && !event.metaKey && !event.altKey) step(by);
  };
  return html`
    <dialog class="drawer" ref=${place} onClose=${close} onKeyDown=${keys} onClick=${(event) => event.target === place.current && place.current.close()} aria-label=${`Row ${name}`}>
      <div>
      <header><h2>row <bdi>${plain(name)}</bdi>${row.repetition > 1 ? ` × ${row.repetition}` : ""}</h2>
        <span>${step && html`<button type="button" class="quiet" disabled=${at === 0} title="k" onClick=${() => step(-1)}>previous</button> <button type="button" class="quiet" disabled=${at === count - 1} title="j" onClick=${() => step(1)}>next</button> `}<button type="button" class="quiet" onClick=${() => place.current.close()}>close</button></span></header>
      ${!found ? html`<p class="faint">loading</p>` : found.problem ? html`<p>${plain(found.problem)}</p>` : html`
        <p class="about">${found.status === "ok" ? "answered" : found.status === "error" ? "failed" : found.status} at ${day(found.finished)} · ${many(found.attempts, "attempt")} · ${duration(found.seconds)}${found.answered_by.map((by) => html` · answered by ${plain(by.choice)}`)}</p>
        ${found.error && html`<section><h3>Error <span class="faint">${plain(found.error_kind)}</span></h3><pre class="refused" tabindex="0"><bdi>${plain(found.error)}</bdi></pre></section>`}
        <div class="beside"><${Whole} title="Row" of=${found.row} /><${Whole} title="Answer" of=${found.output} /></div>
        ${found.judgements.length > 0 && html`<section><h3>Judgements</h3><div class="scroll"><table class="judgements"><tbody>${found.judgements.map((each) => html`
          <tr key=${`${each.evaluator} ${each.output}`}><th scope="row">${plain(each.evaluator === each.output ? each.evaluator : `${each.evaluator}.${each.output}`)}</th>
            <td class="number">${each.score !== null ? score(each.score) : ""}</td>
            <td class=${each.status === "ok" ? "" : "refused"}><bdi>${plain(each.label ?? each.value?.text ?? each.error ?? each.error_kind ?? "")}</bdi></td></tr>`)}</tbody></table></div></section>`}
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
