// The page: what is known, brought up to date by the stream and drawn no more often than the screen can show it.

const RATE_S = 5; // rates are means over so long
const LINGER_S = 10; // for which a session that has ended is still shown
const MOST_ROUNDS = 500; // of a UE
const MOST_WORDS = 1500; // of a UE
const STILL_MS = 1000; // between drawings where motion is to be reduced

const $ = (id) => document.getElementById(id);
const still = matchMedia("(prefers-reduced-motion: reduce)");
const MOST_HISTORY = 2160; // points, one every ten seconds
const known = { about: {}, columns: null, now_s: 0, since_s: Infinity, sessions: 0, ues: new Map(), rounds: [], passes: [], history: [], historyNow_s: 0 };
const shown = { paused: false, chosen: null, drawn_ms: 0, due: false };

// ---------------------------------------------------------------- what is known

function take(update) {
  if (update.about) meet(update.about);
  if (update.columns) {
    Object.assign(known, { columns: update.columns, since_s: Infinity, rounds: [], passes: [], history: [] });
    known.ues.clear();
  }
  if (update.rows && known.columns) {
    known.now_s = update.now_s;
    known.sessions = update.sessions;
    named(known.columns.rounds, update.rounds).forEach(takeRound);
    named(known.columns.passes, update.passes).forEach((pass) => known.passes.push(pass));
    takeRows(named(known.columns.rows, update.rows));
    known.historyNow_s = update.history_now_s;
    known.history.push(...named(known.columns.history, update.history));
    known.history.splice(0, Math.max(0, known.history.length - MOST_HISTORY));
    forget();
  }
  plan();
}

function ueOf(row) {
  const key = `${row.ue}.${row.place}`;
  if (!known.ues.has(key)) {
    known.ues.set(key, { key, row: null, line: null, rounds: [], words: [], wordsGone: 0, shown: 0, session: null, ended_s: null });
  }
  return known.ues.get(key);
}

function takeRound(round) {
  known.rounds.push(round);
  known.since_s = Math.min(known.since_s, round.end_s);
  const ue = ueOf(round);
  if (ue.session !== null && ue.session !== round.session && round.tokens.length) {
    ue.words.push({ text: "\n— next output —\n", mark: "new" });
  }
  ue.session = round.session;
  ue.rounds.push(round);
  round.tokens.forEach((token, i) => {
    ue.words.push({ text: typeof token === "number" ? `${token} ` : token, mark: round.marks[i] });
  });
  if (ue.rounds.length > MOST_ROUNDS) ue.rounds.shift();
  const over = Math.max(0, ue.words.length - MOST_WORDS);
  ue.words.splice(0, over);
  ue.wordsGone += over;
}

function takeRows(rows) {
  const open = new Set();
  for (const row of rows) {
    const ue = ueOf(row);
    ue.row = row;
    ue.ended_s = null;
    open.add(ue);
  }
  for (const ue of known.ues.values()) {
    if (!open.has(ue) && ue.ended_s === null) ue.ended_s = known.now_s;
  }
}

/** Let go of what is too old to be shown. */
function forget() {
  const from_s = known.now_s - CHART_S;
  known.passes = known.passes.filter((pass) => pass.start_s > from_s);
  known.rounds = known.rounds.filter((round) => round.end_s > known.now_s - RATE_S);
  for (const [key, ue] of known.ues) {
    if (!ue.row || (ue.ended_s !== null && known.now_s - ue.ended_s > LINGER_S)) known.ues.delete(key);
  }
}

// ---------------------------------------------------------------- how it stands

function meet(about) {
  known.about = about;
  const parts = [about.model, about.engine && `engine ${about.engine}`, about.scheduler && `scheduler ${about.scheduler}`];
  put($("about"), [...parts, about.judge && `judge ${about.judge}`, `testbed ${about.version}`].filter(Boolean).join(" · "));
  if (about.state === "serving") say("ok", "serving");
  else say("wait", about.state);
}

function say(state, text) {
  const status = $("status");
  if (status.textContent !== text) status.textContent = text;
  status.dataset.state = state;
  document.body.classList.toggle("stale", state === "gone");
}

function askForToken() {
  const form = $("login");
  $("login-note").textContent = token.get() ? "That token is not the right one." : "";
  form.hidden = false;
  $("token").focus();
  return new Promise((resolve) => {
    form.onsubmit = (event) => {
      event.preventDefault();
      token.set($("token").value);
      form.hidden = true;
      resolve();
    };
  });
}

// ---------------------------------------------------------------- drawing

function plan() {
  if (shown.paused || shown.due || document.hidden) return;
  shown.due = true;
  const wait = still.matches ? Math.max(0, shown.drawn_ms + STILL_MS - performance.now()) : 0;
  setTimeout(() => requestAnimationFrame(draw), wait);
}

function draw() {
  shown.due = false;
  shown.drawn_ms = performance.now();
  const ues = ordered([...known.ues.values()], $("order").value, known.now_s);
  tiles();
  charts();
  history();
  legend(ues);
  $("empty").hidden = ues.length > 0 || !known.columns;
  drawTable(ues);
  const lanes = ues.map((ue) => ({ label: label(ue), rounds: ue.rounds, chosen: ue.key === shown.chosen }));
  drawLanes($("lanes"), lanes, known.now_s, Number($("span").value));
  detail();
}

function tiles() {
  const { now_s, passes, rounds } = known;
  const late = passes.filter((pass) => pass.start_s > now_s - RATE_S);
  const sum = (list, value) => list.reduce((total, one) => total + value(one), 0);
  const last = passes[passes.length - 1];
  const told = late.filter((pass) => pass.expected_s !== null && pass.seconds > 0);
  const error = sum(told, (pass) => Math.abs(pass.expected_s - pass.seconds) / pass.seconds) / told.length;
  put($("n-sessions"), `${known.sessions}`);
  const over_s = Math.min(RATE_S, Math.max(0.5, now_s - known.since_s)); // less just after the start
  put($("n-rounds"), (rounds.length / over_s).toFixed(1));
  put($("n-tokens"), (sum(rounds, (round) => round.committed) / over_s).toFixed(1));
  put($("n-waiting"), `${last && last.start_s > now_s - 1 ? last.waiting : 0}`);
  put($("n-batch"), late.length ? (sum(late, (pass) => pass.requests) / late.length).toFixed(1) : "–");
  put($("n-busy"), share(Math.min(RATE_S, sum(late, (pass) => pass.seconds)), RATE_S));
  put($("n-error"), told.length ? `${Math.round(100 * error)} %` : "–");
}

function charts() {
  const { now_s, passes } = known;
  overTime($("chart-queue"), now_s, [{ color: "verify", size: [3, 3], points: passes.map((pass) => [pass.start_s, pass.waiting]) }]);
  histogram($("chart-batch"), passes.map((pass) => pass.requests));
  const told = passes.filter((pass) => pass.expected_s !== null);
  $("no-estimate").hidden = !passes.length || told.length > 0;
  $("key-estimated").hidden = !told.length;
  overTime($("chart-time"), now_s, [
    { color: "verify", size: [3, 3], points: passes.map((pass) => [pass.start_s, 1e3 * pass.seconds]) },
    { color: "draft", size: [5, 1.5], points: told.map((pass) => [pass.start_s, 1e3 * pass.expected_s]) },
  ]);
}

/** Minutes and hours: a point for every ten seconds. */
function history() {
  const span = $("history-span");
  const [span_s, name] = [Number(span.value), `−${span.selectedOptions[0].textContent}`];
  const draw = (id, field, color, scale = 1) => {
    const points = known.history.filter((one) => one[field] !== null).map((one) => [one.at_s, scale * one[field]]);
    overTime($(id), known.historyNow_s, [{ color, size: [3, 3], points }], span_s, name);
  };
  draw("history-sessions", "sessions", "verify");
  draw("history-tokens", "tokens_per_s", "draft");
  draw("history-pass", "pass_s", "verify", 1e3);
}

/** Keys of the parts that some round in view has. */
function legend(ues) {
  for (const part of ["hidden", "judge", "queue", "draft", "link", "overlap"]) {
    const field = `${part}_s`;
    $(`key-${part}`).hidden = !ues.some((ue) => ue.rounds.some((round) => round[field] > 0));
  }
}

function drawTable(ues) {
  for (const ue of ues) {
    ue.line ??= line(ue, choose);
    fill(ue, ue.key === shown.chosen, known.now_s);
  }
  arrange($("ues").tBodies[0], ues);
}

function detail() {
  const ue = known.ues.get(shown.chosen);
  $("detail").hidden = shown.chosen === null;
  if (!ue) {
    if (shown.chosen !== null) put($("detail-heading"), `UE ${shown.chosen.split(".")[0]} has no session now`);
    return;
  }
  put($("detail-heading"), `${label(ue)}: ${ue.row.protocol}, ${channel(ue.row.csi)}`);
  showParts($("parts"), ue.rounds);
  $("text").hidden = !known.about.text;
  if (known.about.text) showText($("text"), ue);
}

function noteOnText() {
  const note = $("text-note");
  if (note.noted === known.about.text) return;
  note.noted = known.about.text;
  note.replaceChildren();
  if (!known.about.text) note.append("This base station shows no outputs; started with --monitor-text it would.");
  else note.append("Plain: drafted. ", element("span", { class: "t" }, "Underlined"), ": the target's own. ", element("span", { class: "j" }, "Marked"), ": drafted, not the target's choice, and kept by the judge.");
}

// ---------------------------------------------------------------- the viewer's wishes

function choose(key) {
  shown.chosen = shown.chosen === key ? null : key;
  noteOnText();
  draw();
  if (shown.chosen !== null) $("detail").scrollIntoView({ block: "nearest" });
}

function start() {
  head($("ues"));
  takeTokenFromAddress();
  $("pause").addEventListener("click", () => {
    shown.paused = !shown.paused;
    $("pause").setAttribute("aria-pressed", `${shown.paused}`);
    put($("pause"), shown.paused ? "Resume" : "Pause");
    plan();
  });
  $("close").addEventListener("click", () => {
    const ue = known.ues.get(shown.chosen);
    choose(shown.chosen);
    ue?.line?.querySelector("button").focus();
  });
  for (const id of ["order", "span", "history-span"]) $(id).addEventListener("change", draw);
  for (const event of ["resize", "hashchange"]) addEventListener(event, () => (takeTokenFromAddress(), plan()));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  document.addEventListener("visibilitychange", plan);
  $("lanes").addEventListener("click", (event) => {
    const row = $("ues").tBodies[0].rows[Math.floor((event.offsetY - AXIS_PX) / LANE_PX)];
    row?.querySelector("button").click();
  });
  follow(take, say, askForToken);
}

start();
