// Drawing: three small charts of the engine, and the lanes of the rounds. Colours are the page's own, dark or light.

const LANE_PX = 15;
const LABEL_PX = 58;
const AXIS_PX = 18;
const CHART_S = 30;
const SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256];

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** A canvas's context, in CSS pixels, cleared; `height` in place of that of its style. */
function context(canvas, height) {
  if (height !== undefined && canvas.style.height !== `${height}px`) canvas.style.height = `${height}px`;
  const scale = window.devicePixelRatio || 1;
  const { clientWidth, clientHeight } = canvas;
  const [width, high] = [Math.round(clientWidth * scale), Math.round(clientHeight * scale)];
  if (canvas.width !== width || canvas.height !== high) [canvas.width, canvas.height] = [width, high];
  const c = canvas.getContext("2d");
  c.setTransform(scale, 0, 0, scale, 0, 0);
  c.clearRect(0, 0, clientWidth, clientHeight);
  c.font = "11px system-ui, sans-serif";
  c.textBaseline = "middle";
  return { c, width: clientWidth, height: clientHeight };
}

/** The next number of 1, 2, 4, 6, 10, 20, … that is no less: a whole one from 2 on has a whole half. */
function axisTop(value) {
  const ten = 10 ** Math.floor(Math.log10(Math.max(value, 1e-6)));
  return [1, 2, 4, 6, 10].map((m) => m * ten).find((bound) => bound >= value * 0.999);
}

/** Frame of a chart with a vertical axis from 0 to `top`; returns where things go. */
function frame(canvas, top, below) {
  const { c, width, height } = context(canvas);
  const [left, bottom] = [38, height - AXIS_PX];
  c.strokeStyle = color("line");
  c.fillStyle = color("muted");
  c.textAlign = "right";
  for (const part of [0, 0.5, 1]) {
    const y = Math.round(bottom - part * (bottom - 8)) + 0.5;
    c.beginPath();
    c.moveTo(left, y);
    c.lineTo(width, y);
    c.stroke();
    c.fillText(`${+(part * top).toPrecision(3)}`, left - 5, y);
  }
  below.forEach((text, i) => {
    c.textAlign = i === 0 ? "left" : i === below.length - 1 ? "right" : "center";
    c.fillText(text, left + (i * (width - left)) / Math.max(1, below.length - 1), height - 7);
  });
  return { c, x: (part) => left + part * (width - left), y: (value) => bottom - (Math.min(value, top) / top) * (bottom - 8) };
}

/** Values over the last `span_s`; each series is {color, size: [wide, high], points: [[s, value], …]}. */
function overTime(canvas, now_s, series, span_s = CHART_S, name = `−${CHART_S} s`) {
  const values = series.flatMap((one) => one.points.map((point) => point[1])).sort((a, b) => a - b);
  const least = values.every(Number.isInteger) ? 2 : 1e-3;
  const top = axisTop(Math.max(least, values[Math.floor(0.995 * (values.length - 1))] || 1));
  const { c, x, y } = frame(canvas, top, [name, "now"]);
  for (const one of series) {
    const [wide, high] = one.size;
    c.fillStyle = color(one.color);
    c.beginPath();
    for (const [at_s, value] of one.points) {
      if (now_s - at_s <= span_s) c.rect(x(1 - (now_s - at_s) / span_s) - wide / 2, y(value) - high / 2, wide, high);
    }
    c.fill();
  }
}

/** How many passes had so many requests. */
function histogram(canvas, sizes) {
  const counts = SIZES.map(() => 0);
  for (const size of sizes) counts[Math.max(0, SIZES.findIndex((bound) => size <= bound))] += 1;
  const last = Math.max(3, counts.findLastIndex((count) => count > 0));
  const labels = SIZES.slice(0, last + 1).map((bound, i) => (i < 2 ? `${bound}` : `${SIZES[i - 1] + 1}–${bound}`));
  const { c, x, y } = frame(canvas, axisTop(Math.max(4, ...counts)), []);
  const wide = 1 / labels.length;
  c.textAlign = "center";
  labels.forEach((label, i) => {
    c.fillStyle = color("verify");
    const [from, to] = [x(i * wide) + 2, x((i + 1) * wide) - 2];
    c.fillRect(from, y(counts[i]), to - from, y(0) - y(counts[i]));
    c.fillStyle = color("muted");
    c.fillText(label, (from + to) / 2, y(0) + 11);
  });
}

/** Parts of a round as [colour, from, to], on the base station's clock; overlap lies below the round before it. */
function segments(round, before) {
  const found = [];
  if (round.overlap_s && before) found.push(["overlap", before.end_s - round.overlap_s, before.end_s]);
  const draft_s = Math.max(0, round.draft_s - (round.overlap_s || 0));
  let at_s = round.arrived_s;
  const half_s = (round.link_s || 0) / 2;
  if (round.drafted) {
    found.push(["link", at_s - half_s, at_s]);
    found.push(["draft", at_s - half_s - draft_s, at_s - half_s]);
    if (round.link_s) found.push(["link", at_s - 2 * half_s - draft_s, at_s - half_s - draft_s]);
  }
  for (const part of ["queue", "verify", "hidden", "judge"]) {
    found.push([part, at_s, at_s + round[`${part}_s`]]);
    at_s += round[`${part}_s`];
  }
  return found;
}

/** A lane for each of `lanes` ({label, rounds, chosen}). */
function drawLanes(canvas, lanes, now_s, span_s) {
  const { c, width, height } = context(canvas, Math.max(1, lanes.length) * LANE_PX + AXIS_PX);
  const x = (at_s) => Math.max(LABEL_PX, LABEL_PX + (1 - (now_s - at_s) / span_s) * (width - LABEL_PX));
  const colors = Object.fromEntries(["draft", "link", "queue", "verify", "hidden", "judge"].map((n) => [n, color(n)]));
  const [muted, text, line, chosen] = ["muted", "text", "line", "chosen"].map(color);
  lanes.forEach((lane, i) => {
    const top = AXIS_PX + i * LANE_PX;
    if (lane.chosen) {
      c.fillStyle = chosen;
      c.fillRect(0, top, width, LANE_PX);
    }
    c.fillStyle = lane.chosen ? text : muted;
    c.textAlign = "left";
    c.fillText(lane.label, 0, top + LANE_PX / 2, LABEL_PX - 4);
    lane.rounds.forEach((round, j) => {
      if (round.end_s < now_s - span_s) return;
      for (const [part, from_s, to_s] of segments(round, lane.rounds[j - 1])) {
        if (to_s <= from_s) continue;
        c.fillStyle = colors[part] ?? colors.draft;
        const [y, high] = part === "overlap" ? [LANE_PX - 3, 3] : [2, LANE_PX - 5];
        c.fillRect(x(from_s), top + y, Math.max(0.75, x(to_s) - x(from_s)), high);
      }
    });
  });
  axis(c, { width, height, span_s, muted, line });
}

/** Seconds before now, above the lanes. */
function axis(c, { width, height, span_s, muted, line }) {
  c.fillStyle = muted;
  c.strokeStyle = line;
  for (let i = 0; i <= 4; i++) {
    const px = LABEL_PX + ((width - LABEL_PX) * i) / 4;
    c.beginPath();
    c.moveTo(Math.min(px, width - 1) + 0.5, AXIS_PX);
    c.lineTo(Math.min(px, width - 1) + 0.5, height);
    c.stroke();
    c.textAlign = i === 4 ? "right" : "center";
    c.fillText(i === 4 ? "now" : `−${+((span_s * (4 - i)) / 4).toPrecision(3)} s`, px, AXIS_PX / 2);
  }
}
