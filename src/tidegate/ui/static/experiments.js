// The tab of experiments: one component, which gets a function that fetches JSON with the token of the page.
import { html } from "/static/vendor/preact-htm.js";

export function Experiments() {
  return html`
    <section class="empty">
      <h2>No experiment database known</h2>
      <p>This page shows limits only. A terminal shows experiments:</p>
      <pre>tidegate experiment list</pre>
    </section>`;
}
