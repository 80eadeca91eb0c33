// Hotness: one curve per kind of table, and lines where a cache ends.
const HEIGHT = 320;

function rowsText(rows) {
  if (rows >= 1e6) return `${+(rows / 1e6).toPrecision(3)}M`;
  if (rows >= 1e3) return `${+(rows / 1e3).toPrecision(3)}K`;
  return String(rows);
}

// A vertical line with its name for each mark inside of the plot.
function drawMarks(u) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = css("--quiet");
  ctx.setLineDash([4, 4]);
  ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.textBaseline = "bottom";
  for (const mark of DATA.marks) {
    const x = u.valToPos(mark.rows, "x", true);
    if (mark.rows < 1 || x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    const right = x + 90 * devicePixelRatio > bbox.left + bbox.width;
    ctx.textAlign = right ? "right" : "left";
    ctx.fillText(mark.label, x + (right ? -6 : 6), bbox.top + bbox.height - 6);
  }
  ctx.restore();
}

function tell(u) {
  const { idx, left, top } = u.cursor;
  if (idx == null || left < 0) return tip.hide();
  const rows = DATA.curves
    .map((curve, i) => [curve.label, percent(curve.shares[idx]), colour(i), false, curve.shares[idx]])
    .filter((row) => row[4] != null)
    .sort((a, b) => b[4] - a[4]);
  if (rows.length === 0) return tip.hide();
  const box = u.over.getBoundingClientRect();
  tip.show(box.left + left, box.top + top, `${DATA.rows[idx].toLocaleString("en")} hottest rows`, rows.slice(0, 14));
}

let chart = null;

function drawHotness() {
  const section = $("#plot-hotness"), frame = $(".frame", section);
  chart?.destroy();
  frame.replaceChildren();
  section.dataset.visible = String(DATA.curves.length);
  if (DATA.rows.length === 0) return frame.replaceChildren(el("p", "empty", "No ids were looked up."));
  $(".keys", section).replaceChildren(...DATA.curves.map((curve, i) => keyed(colour(i), curve.label)));
  const grid = { stroke: css("--line"), width: 1 };
  const axis = { stroke: css("--quiet"), grid, ticks: { ...grid, size: 5 }, font: "12px system-ui, sans-serif" };
  const furthest = Math.max(...DATA.rows, ...DATA.marks.map((mark) => mark.rows), 10);
  chart = new uPlot({
    width: frame.clientWidth,
    height: HEIGHT,
    legend: { show: false },
    padding: [8, 10, 0, 0],
    cursor: { y: false, drag: { x: false, y: false } },
    scales: { x: { time: false, distr: 3, range: [1, furthest] }, y: { range: [0, 1] } },
    axes: [
      { ...axis, size: 30, label: "hottest rows, log scale", labelSize: 18, labelGap: 0, labelFont: axis.font, values: (_, splits) => splits.map((v) => Number.isInteger(Math.log10(v)) ? rowsText(v) : "") },
      { ...axis, size: 52, values: (_, splits) => splits.map((v) => `${Math.round(v * 100)} %`) },
    ],
    series: [{}, ...DATA.curves.map((curve, i) => ({
      label: curve.label, stroke: colour(i), dash: DASHES[Math.floor(i / PALETTE) % DASHES.length],
      width: 1.8, points: { show: false }, spanGaps: true,
    }))],
    hooks: { draw: [drawMarks], setCursor: [tell] },
  }, [DATA.rows, ...DATA.curves.map((curve) => curve.shares)], frame);
  chart.over.addEventListener("mouseleave", () => tip.hide());
}

drawHotness();
new ResizeObserver(() => chart?.setSize({ width: $("#plot-hotness .frame").clientWidth, height: HEIGHT })).observe($("#plot-hotness"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawHotness);
