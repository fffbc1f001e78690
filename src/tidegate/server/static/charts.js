// A chart of the last ten minutes: the limit as a dashed line, the use as an area, and hatched bands of closed times.
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

function options(width, label, bands) {
  const faint = colour("--faint");
  const tile = hatch(colour("--closed"));
  return {
    width,
    height: HEIGHT,
    padding: [6, 12, 0, 0],
    legend: { show: false },
    cursor: { show: false },
    hooks: { drawAxes: [(plot) => drawBands(plot, bands.current, tile)] },
    scales: {
      x: { time: false, range: (plot, low) => [Math.min(low ?? 0, -LEAST_SPAN), 0] },
      y: { range: (plot, low, high) => [0, Math.max(1, (high ?? 0) * 1.1)] },
    },
    axes: [
      { stroke: faint, grid: { show: false }, ticks: { show: false }, gap: 5, size: 19, space: 60, font: FONT,
        incrs: [10, 15, 30, 60, 120, 300],
        values: (plot, marks) => marks.map((mark) => (mark ? `−${clock(-mark)}` : "now")) },
      { stroke: faint, grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false }, gap: 4, size: 38, space: 26,
        font: FONT, values: (plot, marks) => marks.map(amount) },
    ],
    series: [
      {},
      { label, stroke: colour("--use"), fill: colour("--fill"), width: 1.5, points: { show: false } },
      { label: "limit", stroke: colour("--limit"), dash: [5, 3], width: 1.5, points: { show: false },
        paths: uPlot.paths.stepped({ align: 1 }) },
    ],
  };
}

// `numbers` are those of the samples, `newest` the last of them; `bands` are pairs of seconds, 0 for now.
export function Chart({ label, text, numbers, newest, used, limit, bands, theme }) {
  const place = useRef(null);
  const plot = useRef(null);
  const shown = useRef(null);
  const closed = useRef(null);
  shown.current = [numbers.map((number) => number - newest), used, limit];
  closed.current = bands;
  useLayoutEffect(() => {
    const element = place.current;
    const width = () => element.clientWidth || 300;
    plot.current = new uPlot(options(width(), label, closed), shown.current, element);
    const watcher = new ResizeObserver(() => plot.current?.setSize({ width: width(), height: HEIGHT }));
    watcher.observe(element);
    return () => {
      watcher.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [label, theme]);
  useEffect(() => {
    plot.current?.setData(shown.current);
  });
  const last = used.length - 1;
  const rows = [];
  for (let at = last; at >= Math.max(0, last - 60); at -= 10) rows.push(at);
  return html`
    <div class="plot" role="img" aria-label=${text} ref=${place}></div>
    <table class="hidden-table">
      <caption>${label}, the last minute</caption>
      <thead><tr><th scope="col">seconds ago</th><th scope="col">used</th><th scope="col">limit</th></tr></thead>
      <tbody>${rows.map((at) => html`
        <tr key=${numbers[at]}><td>${newest - numbers[at]}</td><td>${amount(used[at])}</td><td>${amount(limit[at])}</td></tr>`)}
      </tbody>
    </table>`;
}
