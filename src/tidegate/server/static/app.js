// The page's shell: tabs, the polls of the open tab (one request at a time), and "as of".
//
// A tab has a `path` of the location's fragment, a `title`, `poll(path)`, which fetches its data and returns the
// instant of it in seconds since 1970, and the components `content` and `summary` (of the header). A tab may have
// `isPaused()`: data that stays the same is then not old. Components get
// `theme`, which changes with the colours, and `path`, the whole path in the fragment, which may go on below that of
// the tab. `redraw()` draws the page again after a change of the tab's own state; `refresh()` polls at once.
import { html, render } from "/static/vendor/preact-htm.js";
import { limitsTab } from "/static/limits.js";
import { takeToken, time } from "/static/parts.js";

const SHOWN_MS = 1000;
const HIDDEN_MS = 10000;
const STALE_MS = 5000;

// A tab with `load` gets its code when it is first opened, so that the first page is small.
const TABS = [limitsTab, { path: "/experiments", title: "Experiments", load: async () => (await import("/static/experiments.js")).experimentsTab }];

const state = { asOf: 0, problem: "", heardAt: 0 };

const openPath = () => (location.hash.startsWith("#/") ? location.hash.slice(1) : TABS[0].path);

// A path below that of a tab belongs to that tab.
const openTab = () => TABS.find(({ path }) => `${openPath()}/`.startsWith(`${path}/`)) ?? TABS[0];

let timer = 0;
let polling = false;
let again = false;

async function poll() {
  if (polling) {
    again = true;
    return;
  }
  clearTimeout(timer);
  polling = true;
  let tab = openTab();
  try {
    if (tab.load) tab = TABS[TABS.indexOf(tab)] = await tab.load();
    const asOf = await tab.poll(openPath());
    // Data that stays the same for long is old, even where the server answers.
    const heardAt = asOf === state.asOf && !tab.isPaused?.() ? state.heardAt : Date.now();
    if (tab === openTab()) Object.assign(state, { asOf, problem: "", heardAt });
  } catch (error) {
    state.problem = error.message;
  }
  polling = false;
  draw();
  // The next request begins when the last one has ended, so a slow server is never asked twice at once.
  timer = setTimeout(poll, again ? 0 : document.hidden ? HIDDEN_MS : SHOWN_MS);
  again = false;
}

function Page({ theme, stale }) {
  const tab = openTab();
  const shown = { theme, path: openPath(), redraw: draw, refresh: poll };
  return html`
    <div class=${stale ? "stale" : ""}>
      <header>
        <h1><img src="/static/icon.svg" alt="" width="16" height="16" /> tidegate</h1>
        ${TABS.length > 1 && html`<nav aria-label="Tabs">${TABS.map((each) => html`
          <a key=${each.path} href=${`#${each.path}`} aria-current=${each === tab ? "page" : null}>${each.title}</a>`)}</nav>`}
        ${tab.summary && html`<${tab.summary} key=${tab.path} ...${shown} />`}
        <p class="as-of">
          <span role="status">${state.problem ? `${state.problem} ` : stale && state.asOf ? "not up to date " : ""}</span>
          <span class="faint">${state.asOf ? `${tab.isPaused?.() ? "paused, " : ""}as of ${time(state.asOf)}` : state.problem ? "" : "loading"}</span>
        </p>
      </header>
      <main>${tab.content ? html`<${tab.content} key=${tab.path} ...${shown} />` : html`<p class="faint">loading</p>`}</main>
    </div>`;
}

const dark = matchMedia("(prefers-color-scheme: dark)");
const root = document.getElementById("page");

const isStale = () => state.problem !== "" || (state.heardAt > 0 && Date.now() - state.heardAt > STALE_MS);
let stale = false;

function draw() {
  stale = isStale();
  render(html`<${Page} theme=${dark.matches ? "dark" : "light"} stale=${stale} />`, root);
}

addEventListener("hashchange", () => {
  takeToken();
  draw();
  poll();
});
addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, select, textarea");
  const search = document.querySelector("[data-search]");
  if (event.key !== "/" || typing || !search || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  search.focus();
  search.select();
});
dark.addEventListener("change", draw);
document.addEventListener("visibilitychange", () => (document.hidden ? draw() : poll()));
// A request that hangs must not leave old numbers that look new.
setInterval(() => {
  if (isStale() !== stale) draw();
}, 1000);
takeToken();
poll();
