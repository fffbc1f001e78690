// The overview: one line a key, the worst first, with why it waits, until when, and what would help.
import { html } from "/static/vendor/preact-htm.js";
import { Sparkline } from "/static/charts.js";
import { lastIn, programsText } from "/static/key_card.js";
import { amount, clock, count, many, paced, per } from "/static/parts.js";
import { seriesOf, state } from "/static/samples.js";

const LINE = 60;

// What a user could change about what holds the key up; nothing where there is nothing to change.
function helps({ lead, live, state: { kind } }) {
  const { gate, rejected } = lead;
  const others = live.length > 1 ? `, or fewer of its ${live.length} programs at once` : "";
  if (rejected === "money") return "add credit at the provider, or use another key";
  if (rejected) return "give the program a key that the provider accepts";
  if (kind === "down") return "check the base URL, the network and the provider's status page; the calls wait and are not lost";
  if (gate === "quota day" || gate.includes("day")) return "use another key or model, or wait for the reset";
  if (gate === "pause") return lead.stated_wait ? "nothing: the provider named this time" : "check whether other programs use the same key";
  if (gate === "pace") return `a higher limit at the provider, another key or model${others}`;
  if (gate === "concurrency") return "shorter answers free slots sooner; the number grows while answers come";
  if (gate.includes("token")) return `shorter prompts or a smaller max_tokens, a higher limit at the provider${others}`;
  if (gate.startsWith("quota")) return `a higher limit at the provider, another key or model${others}`;
  return "";
}

// The use of the limit that is nearest: of the quotas, else of the learned rate, else of the slots.
function used(of, series) {
  const known = new Map(of.lead.quotas.map((quota) => [quota.name, quota]));
  const quotas = series.quotas.map(({ name, used, limit }) => ({ name, used: used.at(-1) ?? null, limit: limit.at(-1), window: known.get(name)?.window }))
    .filter((each) => each.used !== null && each.limit > 0);
  if (quotas.length) {
    const most = quotas.reduce((one, other) => (other.used / other.limit > one.used / one.limit ? other : one));
    return [`${amount(most.used)} of ${amount(most.limit)}`, `${most.name.replaceAll("_", " ")}${most.window ? `/${per(most.window)}` : ""}`];
  }
  if (of.lead.pace) {
    const sent = series.sent.reduce((all, number) => all + (number ?? 0), 0);
    return [`${amount(sent)} in 1 min`, `learned rate ${paced(of.lead.pace)}`];
  }
  return [`${count(of.inFlight)} of ${count(series.slots.at(-1) ?? 0)}`, "in flight"];
}

function Row({ of, open, toggle }) {
  const series = seriesOf(of, LINE);
  const help = helps(of);
  const [use, unit] = used(of, series);
  return html`
    <tr class=${`row ${of.state.kind}`} onClick=${(event) => event.target.closest("button") || toggle()}>
      <th scope="row"><span class=${`state ${of.state.kind}`} aria-hidden="true"><span>${of.state.mark}</span></span><button type="button" class="link" aria-expanded=${open} title=${of.name} onClick=${toggle}>${of.model}</button><small class="faint">${of.rest}${of.live.length > 1 && ` · ${programsText(of)}`}</small></th>
      <td class="why"><span class=${`state ${of.state.kind}`}>${of.state.text}</span>${help && html`<small class="faint">what helps: ${help}</small>`}</td>
      <td class="number" data-title="waiting">${of.waiting > 0 ? html`<b>${count(of.waiting)}</b>` : html`<span class="faint">0</span>`}</td>
      <td class="number" data-title="ETA">${of.waiting === 0 ? html`<span class="faint">–</span>` : of.eta === null ? "unknown" : html`<span title=${`the last one goes in ${lastIn(of)}`}>${clock(of.eta)}</span>`}</td>
      <td class="last"><${Sparkline} series=${series} newest=${state.sample} /></td>
      <td class="use">${use} <small class="faint">${unit}</small></td>
    </tr>`;
}

// `keys` are shown in their order; the `idle` ones stay folded until `unfold`.
export function Overview({ keys, idle, unfolded, unfold, isOpen, toggle }) {
  const row = (of) => html`<${Row} key=${of.name} of=${of} open=${isOpen(of)} toggle=${() => toggle(of)} />`;
  const ended = idle.filter((of) => of.state.ended).length;
  const resting = idle.length - ended;
  const text = [resting > 0 && many(resting, "idle key"), ended > 0 && `${count(ended)} ${resting ? "" : ended === 1 ? "key " : "keys "}of ended programs`].filter(Boolean).join(", ");
  return html`
    <table class="overview">
      <caption class="hidden-table">Keys, the worst first</caption>
      <thead><tr><th scope="col">key</th><th scope="col">state</th><th scope="col" class="number">waiting</th><th scope="col" class="number">ETA</th><th scope="col">last minute</th><th scope="col">used</th></tr></thead>
      <tbody>${keys.map(row)}${unfolded && idle.map(row)}</tbody>
    </table>
    ${idle.length > 0 && html`<p><button type="button" class="quiet fold" aria-expanded=${unfolded} onClick=${unfold}>${unfolded ? "fold" : "show"} ${text}</button></p>`}`;
}
