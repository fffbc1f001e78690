// The texts of a key's changes, their list, and the times for which it was closed.
import { html } from "/static/vendor/preact-htm.js";
import { amount, duration, paced, per, time } from "/static/parts.js";

const CAUSES = {
  rate: "429: rate",
  concurrency: "429: too many at once",
  slope: "429: rise too steep",
  day: "the day's quota is spent",
  money: "no money left",
  others_capacity: "others use the capacity",
  not_ready: "model not ready",
  overload: "overload",
  unavailable: "503 without a reason",
  outage: "outage",
  auth: "credential refused",
};

const ORIGINS = {
  headers: "stated by headers",
  "retry-after": "stated by the provider",
  answers: "inferred from answers",
  refusals: "inferred from refusals",
  "earlier run": "saved by an earlier run",
  usage: "inferred from usage",
};

// Each kind has a mark, a text, and whether the key was closed by it.
const KINDS = {
  limit: (each) => {
    const unit = each.window ? ` per ${per(each.window)}` : "";
    if (!each.before) return ["●", `${each.subject} learned: ${amount(each.after)}${unit}`];
    const [mark, verb] = each.after > each.before ? ["▲", "raised"] : ["▼", "cut"];
    return [mark, `${each.subject} ${verb} ${amount(each.before)} → ${amount(each.after)}${unit}`];
  },
  concurrency: (each) => (each.after > each.before
    ? ["▲", `in flight raised ${amount(each.before)} → ${amount(each.after)}`]
    : ["▼", `in flight cut ${amount(each.before)} → ${amount(each.after)}`]),
  pace: (each) => {
    if (!each.before) return ["●", `rate learned: ${paced(each.after)}`];
    if (!each.after) return ["○", `learned rate ${paced(each.before)} lifted`];
    return each.after > each.before
      ? ["▲", `learned rate raised ${paced(each.before)} → ${paced(each.after)}`]
      : ["▼", `learned rate cut ${paced(each.before)} → ${paced(each.after)}`];
  },
  cooldown: (each) => ["‖", `cooldown of ${duration(each.after ?? 0)}${each.before ? `; provider asked for ${duration(each.before)}` : ""}`],
  breaker_opened: (each) => ["✕", `breaker opened; first probe after ${duration(each.after ?? 0)}`],
  breaker_closed: () => ["✓", "breaker closed: provider answers again"],
  rejected: () => ["✕", "key rejected"],
  accepted: () => ["✓", "key accepted again"],
  members: (each) => ["●", each.after > 1 ? `shared by ${each.after} processes now (${each.before} before)` : "no longer shared"],
};

function reason(each) {
  if (each.cause !== "none" && CAUSES[each.cause]) return CAUSES[each.cause];
  return ["limit", "concurrency", "pace"].includes(each.kind) ? ORIGINS[each.origin] : undefined;
}

const marked = (each) => (KINDS[each.kind] ?? (() => ["●", each.kind]))(each);

// Return a change in words, without its cause.
export const said = (each) => marked(each)[1];

export function Changes({ changes }) {
  if (!changes.length) return html`<p class="faint">None yet.</p>`;
  return html`
    <ol class="changes" tabindex="0" aria-label="Changes, newest first">${[...changes].reverse().map((each) => {
      const [mark, text] = marked(each);
      const why = reason(each);
      return html`
        <li key=${each.id}>
          <time>${time(each.at)}</time>
          <span class=${`mark ${each.kind}`} aria-hidden="true">${mark}</span>
          <span>${text}${why && html` <span class="faint">· ${why}</span>`}</span>
        </li>`;
    })}</ol>`;
}

// Return the times for which cooldowns and the breaker closed the key, as pairs of seconds before `now`.
export function closedBands(changes, now) {
  const bands = [];
  let opened = null;
  for (const each of changes) {
    if (each.kind === "cooldown") bands.push([each.at - now, Math.min(0, each.at + (each.after ?? 0) - now)]);
    else if (each.kind === "breaker_opened") opened ??= each.at;
    else if (each.kind === "breaker_closed" && opened !== null) {
      bands.push([opened - now, each.at - now]);
      opened = null;
    }
  }
  if (opened !== null) bands.push([opened - now, 0]);
  return bands;
}
