// The table of UEs and the panel of one of them. What comes from UEs goes into text alone, never into markup.

const STATES = { ue: "drafts", bs: "at the BS", hidden: "uploads hidden states", alone: "BS decodes alone", stream: "in a stream", waits: "drafts, the BS waits" };
const SHOWN_ROUNDS = 8;

const ms = (seconds) => (seconds === null ? "–" : (1e3 * seconds).toFixed(seconds < 0.01 ? 2 : 1));
const share = (part, whole) => (whole ? `${Math.round((100 * part) / whole)} %` : "–");
const few = (value) => `${+value.toPrecision(3)}`;

/** Mean speed of a session so far, tokens a second; null before its first tokens. */
function speed(row, now_s) {
  return row.begun_s === null || !row.tokens ? null : row.tokens / Math.max(1e-3, now_s - row.begun_s);
}

function channel(csi) {
  if (!csi) return "not known";
  const [up, down, rtt_ms, per_up, per_down, , , , source] = csi;
  if (source === "passive") return `RTT ${few(rtt_ms)} ms · rates unknown`; // small messages do not reveal them
  const per = per_up || per_down ? ` · PER ${few(100 * per_up)}/${few(100 * per_down)} %` : "";
  return `↑${few(up)} ↓${few(down)} Mbit/s · ${few(rtt_ms)} ms${per}`;
}

/** Protocol of the last window, θ, and the protocol hinted for the next one. */
function protocol(row) {
  const hint = row.hint_protocol ? ` (hint ${row.hint_protocol})` : "";
  return row.protocol + (row.threshold > 0 ? ` θ ${few(row.threshold)}` : "") + hint;
}

/** What came before it was due: tokens verified and dropped, the time that this hid, and the lookahead hinted. */
function ahead(row) {
  const came = `${row.used} of ${row.ahead} used, ${row.void} void · ${row.overlap_s.toFixed(1)} s hidden`;
  return (row.ahead ? came : "–") + (row.hint_lookahead >= 0 ? ` (hint ${row.hint_lookahead})` : "");
}

function speedText(row, now_s) {
  const now = speed(row, now_s);
  const text = now === null ? "–" : `${now.toFixed(1)} tok/s`;
  if (row.promise_tps === null) return [text, ""];
  if (now === null) return [`${text} of ${few(row.promise_tps)}`, ""];
  const kept = now >= row.promise_tps;
  return [`${text} of ${few(row.promise_tps)} ${kept ? "✓" : "✗ behind"}`, kept ? "kept-up" : "late"];
}

/** Columns after the first: heading, text (or [text, class]) of a UE, whether it takes a whole line on a phone. */
const CELLS = [
  ["State", (ue) => (ue.ended_s === null ? STATES[ue.row.state] : "ended")],
  ["Protocol", ({ row }) => protocol(row)],
  ["Window", ({ row }) => `${row.window || "–"}${row.hint >= 0 ? ` (hint ${row.hint})` : ""}`],
  ["Channel", ({ row }) => channel(row.csi) + (row.weight === null ? "" : ` · weight ${few(row.weight)}`), true],
  ["AAL", ({ row }) => (row.rounds ? (row.tokens / row.rounds).toFixed(2) : "–")],
  ["Accepted", ({ row }) => share(row.accepted, row.drafted) + (row.judged ? ` (${row.judged} judged)` : "")],
  ["Ahead", ({ row }) => ahead(row), true],
  ["Speed", (ue, now_s) => speedText(ue.row, ue.ended_s === null ? now_s : ue.ended_s), true],
  ["Tokens", ({ row }) => `${row.tokens}`],
  ["Rounds", ({ row }) => `${row.rounds}`],
];

const ORDERS = {
  ue: () => 0,
  behind: (ue, now_s) => (ue.row.promise_tps === null ? Infinity : (speed(ue.row, now_s) ?? 0) / ue.row.promise_tps),
  slow: (ue, now_s) => speed(ue.row, now_s) ?? Infinity,
  aal: (ue) => (ue.row.rounds ? ue.row.tokens / ue.row.rounds : Infinity),
};

/** UEs in an order; equals by number. */
function ordered(ues, order, now_s) {
  const keys = new Map(ues.map((ue) => [ue, ORDERS[order](ue, now_s)]));
  const by = (a, b) => (keys.get(a) < keys.get(b) ? -1 : keys.get(a) > keys.get(b) ? 1 : 0);
  return ues.sort((a, b) => by(a, b) || a.row.ue - b.row.ue || a.row.place - b.row.place);
}

const label = ({ row }) => `UE ${row.ue}${row.place ? `·${row.place + 1}` : ""}`;

function put(node, text, name = "") {
  if (node.textContent !== text) node.textContent = text;
  if (node.className !== name) node.className = name;
}

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** The table's heading. */
function head(table) {
  const cell = (text) => element("th", { role: "columnheader", scope: "col" }, text);
  table.tHead.rows[0].append(cell("UE"), ...CELLS.map(([text]) => cell(text)));
}

/** A UE's line; its button chooses it. */
function line(ue, choose) {
  const button = element("button", { type: "button", "aria-expanded": "false", "aria-controls": "detail" }, label(ue));
  button.addEventListener("click", () => choose(ue.key));
  const cells = CELLS.map(([text, , wide]) => element("td", { role: "cell", "data-label": text }, element("span")));
  cells.forEach((cell, i) => CELLS[i][2] && cell.classList.add("wide"));
  return element("tr", { role: "row" }, element("td", { role: "cell" }, button), ...cells);
}

function fill(ue, chosen, now_s) {
  const [first, ...cells] = ue.line.cells;
  const name = ue.ended_s !== null ? "ended" : chosen ? "chosen" : "";
  if (ue.line.className !== name) ue.line.className = name;
  first.firstChild.setAttribute("aria-expanded", `${chosen}`);
  cells.forEach((cell, i) => put(cell.firstChild, ...[CELLS[i][1](ue, now_s)].flat()));
}

/** Lines of the table in this order; only what changes place is moved, so that the focus stays where it is. */
function arrange(body, ues) {
  ues.forEach((ue, i) => {
    if (body.rows[i] !== ue.line) body.insertBefore(ue.line, body.rows[i] ?? null);
  });
  while (body.rows.length > ues.length) body.lastElementChild.remove();
}

// ---------------------------------------------------------------- one UE

function showParts(body, rounds) {
  const last = rounds.slice(-SHOWN_ROUNDS).reverse();
  while (body.rows.length < last.length) body.append(element("tr", {}, ...Array.from({ length: 12 }, () => element("td"))));
  while (body.rows.length > last.length) body.lastElementChild.remove();
  last.forEach((round, i) => {
    const times = ["draft_s", "link_s", "queue_s", "verify_s", "hidden_s", "judge_s", "overlap_s"].map((part) => ms(round[part]));
    const values = [round.round, round.drafted, round.accepted, round.judged, round.batch, ...times];
    values.forEach((value, j) => put(body.rows[i].cells[j], `${value}`));
  });
}

/** Add the words that are not shown yet; the view stays at the end where it was there. */
function showText(box, ue) {
  const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 24;
  if (box.shownFor !== ue.key || ue.shown === 0) {
    box.replaceChildren();
    ue.shown = 0;
    box.shownFor = ue.key;
  }
  const skip = ue.shown - ue.wordsGone;
  for (const { text, mark } of ue.words.slice(Math.max(0, skip))) {
    const word = mark === "d" ? "" : text.trimEnd();
    box.append(...(word ? [element("span", { class: mark }, word)] : []), text.slice(word.length));
  }
  ue.shown = ue.wordsGone + ue.words.length;
  while (box.childNodes.length > 2 * MOST_WORDS) box.firstChild.remove();
  if (atEnd) box.scrollTop = box.scrollHeight;
}
