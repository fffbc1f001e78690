// What the screens of experiments share: their texts, states and bars. What a model wrote is shown as text only.
import { html, useState } from "/static/vendor/preact-htm.js";
import { age, amount, count as exact, dollars } from "/static/parts.js";

export const BASE = "/experiments";

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

// Signs that change the direction of a text, or show nothing, are written as escapes.
export const plain = (text) => String(text ?? "").replace(HIDDEN, (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`);
export const score = (value) => {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  return size !== 0 && (size >= 1e6 || size < 1e-3) ? value.toExponential(2) : String(Number(value.toFixed(3)));
};
export const share = (part, whole) => (whole > 0 ? Math.min(1, part / whole) : 0);
export const percent = (part) => (part > 0 && part < 0.01 ? "< 1 %" : `${Math.floor(100 * part)} %`);
export const since = (seconds) => (seconds < 172800 ? `${age(Math.max(0, seconds))} ago` : day(Date.now() / 1000 - seconds));
// An instant: the time where it is of today, else with its date.
export const day = (seconds) => {
  const at = new Date(seconds * 1000);
  const today = at.toDateString() === new Date().toDateString();
  return at.toLocaleString([], { ...(today ? {} : { dateStyle: "medium" }), timeStyle: "short", hour12: false });
};

// Tokens and their cost; a cost that only a part of the answers has is a lower bound.
export const cost = (of) => (of.cost !== null ? dollars(of.cost) : "");
const tokens = (of) => html`<b>${amount(of.input_tokens)}</b> in · <b>${amount(of.output_tokens)}</b> out${of.cached_tokens > 0 && html` <span class="faint">(${amount(of.cached_tokens)} cached)</span>`}`;
export const Spent = ({ of }) => of.metered > 0 && html`<span class="spent">${tokens(of)} tokens${of.cost !== null ? html` · <b>${cost(of)}</b>` : html` · <span class="faint">${of.priced > 0 ? "not all models have a price" : "no price known"}</span>`}</span>`;

// ---------------------------------------------------------------- parts

const SIGNS = { RUNNING: "▶", COMPLETED: "✓", STOPPED: "■", ERROR: "!", BLOCKED: "×", READY: "○" };

export const State = ({ of }) => html`<span class=${`state ${of.dead ? "INTERRUPTED" : of.status}`}><i aria-hidden="true">${of.dead ? "‖" : SIGNS[of.status]}</i> ${of.state}</span>`;

// What is ok, what failed and what is parked, of all. A failed item is done; it is no success.
export function Bar({ label, of, name = "" }) {
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

export function Copied({ text }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text).catch(() => {});
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return html`<code class="command">${text}</code> <button type="button" class="quiet" onClick=${copy}>${done ? "copied" : "copy"}</button>`;
}
