// A chart of the history of a key: areas and lines by second, and hatched bands of closed times.
//
// A canvas says nothing to a screen reader: each chart has a label, and a visually hidden table of the last minute.
import { html, useEffect, useLayoutEffect, useRef } from "/static/vendor/preact-htm.js";
import { amount, clock, colour } from "/static/parts.js";

const HEIGHT = 92;
const LEAST_SPAN = 60;
const FONT = "10px system-ui, sans-serif";

function hatch(stroke) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const brush = tile.getContext("2d");
  brush.strokeStyle = stroke;
  brush.lineWidth = 1;
  brush.beginPath();
  brush.moveTo(-1, 7);
  brush.lineTo(7, -1);
  brush.stroke();
  return tile;
}

function drawBands(plot, bands, tile) {
  if (!bands.length) return;
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.fillStyle = ctx.createPattern(tile, "repeat");
  for (const [from, to] of bands) {
    const left = plot.valToPos(from, "x", true);
    ctx.fillRect(left, bbox.top, Math.max(2, plot.valToPos(to, "x", true) - left), bbox.height);
  }
  ctx.restore();
}

function drawCross(plot, at, stroke) {
  if (at === null || at < plot.scales.x.min) return;
  const { ctx, bbox } = plot;
  const x = Math.round(plot.valToPos(at, "x", true)) + 0.5;
  ctx.save();
  ctx.strokeStyle = stroke;
  ctx.lineWidth = devicePixelRatio;
  ctx.beginPath();
  ctx.moveTo(x, bbox.top);
  ctx.lineTo(x, bbox.top + bbox.height);
  ctx.stroke();
  ctx.restore();
}

const STYLES = {
  use: () => ({ stroke: colour("--use"), fill: colour("--fill"), width: 1.5 }),
  limit: () => ({ stroke: colour("--limit"), dash: [5, 3], width: 1.5, paths: uPlot.paths.stepped({ align: 1 }) }),
  refused: () => ({ stroke: colour("--bad"), fill: colour("--closed"), width: 1 }),
};

function options(width, lines, span, shown) {
  const faint = colour("--faint");
  const cross = colour("--text");
  const tile = hatch(colour("--closed"));
  return {
    width,
    height: HEIGHT,
    padding: [6, 12, 0, 0],
    legend: { show: false },
    cursor: { show: false },
    hooks: {
      drawAxes: [(plot) => drawBands(plot, shown.current.bands, tile)],
      draw: [(plot) => drawCross(plot, shown.current.at, cross)],
    },
    scales: {
      x: { time: false, range: (plot, low) => [span === LEAST_SPAN ? -span : Math.max(-span, Math.min(low ?? 0, -LEAST_SPAN)), 0] },
      y: { range: (plot, low, high) => [0, Math.max(1, (high ?? 0) * 1.1)] },
    },
    axes: [
      { stroke: faint, grid: { show: false }, ticks: { show: false }, gap: 5, size: 19, space: 60, font: FONT,
        incrs: [10, 15, 30, 60, 120, 300, 600, 1200],
        values: (plot, marks) => marks.map((mark) => (mark ? `−${clock(-mark)}` : "now")) },
      { stroke: faint, grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false }, gap: 4, size: 38, space: 26,
        font: FONT, values: (plot, marks) => marks.map(amount) },
    ],
    series: [{}, ...lines.map(({ name, style }) => ({ label: name, points: { show: false }, ...STYLES[style]() }))],
  };
}

// `numbers` are those of the samples, `newest` the last of them; `lines` have a name, values and a style, and may
// have values that are `drawn` in their place; `bands` are
// pairs of seconds, 0 for now. `span` is the seconds that are shown, `at` the number of the sample that is pointed at.
export function Chart({ label, text, numbers, newest, lines, bands, theme, span, at, point }) {
  const place = useRef(null);
  const plot = useRef(null);
  const shown = useRef(null);
  shown.current = { data: [numbers.map((number) => number - newest), ...lines.map(({ values, drawn }) => drawn ?? values)], bands, numbers, at: at === null ? null : at - newest, point };
  useLayoutEffect(() => {
    const element = place.current;
    const width = () => element.clientWidth || 300;
    plot.current = new uPlot(options(width(), lines, span, shown), shown.current.data, element);
    const watcher = new ResizeObserver(() => plot.current?.setSize({ width: width(), height: HEIGHT }));
    watcher.observe(element);
    const { over } = plot.current;
    const point = (event) => {
      const found = plot.current.posToIdx(event.clientX - over.getBoundingClientRect().left);
      shown.current.point(shown.current.numbers[found] ?? null);
    };
    over.addEventListener("pointermove", point);
    over.addEventListener("pointerdown", point);
    over.addEventListener("pointerleave", () => shown.current.point(null));
    return () => {
      watcher.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [label, theme, span]);
  useEffect(() => {
    plot.current?.setData(shown.current.data);
  });
  const last = numbers.length - 1;
  const rows = [];
  for (let row = last; row >= Math.max(0, last - 60); row -= 10) rows.push(row);
  return html`
    <div class="plot" role="img" aria-label=${text} ref=${place}></div>
    <table class="hidden-table">
      <caption>${label}, the last minute</caption>
      <thead><tr><th scope="col">seconds ago</th>${lines.map(({ name }) => html`<th scope="col" key=${name}>${name}</th>`)}</tr></thead>
      <tbody>${rows.map((row) => html`
        <tr key=${numbers[row]}><td>${newest - numbers[row]}</td>${lines.map(({ name, values }) => html`<td key=${name}>${amount(values[row])}</td>`)}</tr>`)}
      </tbody>
    </table>`;
}

// The attempts of the last minute, three seconds a column; refused ones stand at the bottom in red.
const COLUMNS = 20;
const STEP = 3;
export function Sparkline({ series, newest }) {
  const sent = Array(COLUMNS).fill(0);
  const refused = Array(COLUMNS).fill(0);
  for (let row = series.number.length - 1; row >= 0; row -= 1) {
    const column = COLUMNS - 1 - Math.floor((newest - series.number[row]) / STEP);
    if (column < 0) break;
    sent[column] += series.sent[row] ?? 0;
    refused[column] += series.refused[row] ?? 0;
  }
  const high = Math.max(1, ...sent);
  const total = (values) => values.reduce((all, value) => all + value, 0);
  const bars = (values) => values.map((value, column) => (value ? `M${column * 3} 16v-${Math.max(1, (15 * value) / high).toFixed(1)}h2.4V16z` : "")).join("");
  return html`
    <svg class="spark" viewBox="0 0 60 16" role="img" aria-label=${`the last minute: ${total(sent)} sent, ${total(refused)} refused`}>
      <path class="base" d="M0 15.5h60v.5h-60z" /><path d=${bars(sent)} /><path class="refused" d=${bars(refused)} />
    </svg>`;
}
