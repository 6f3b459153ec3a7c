// Updates of the base station, one after another, over as many connections as it takes.

const RETRY_MS = 500;
const MOST_RETRY_MS = 5000;
const SILENCE_MS = 6000; // the base station says something every second, even while it loads

/** The token: given behind # in the address, which never leaves the browser, or typed in. */
const token = {
  get: () => sessionStorage.getItem("token"),
  set: (value) => sessionStorage.setItem("token", value),
};

function takeTokenFromAddress() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    token.set(given);
    history.replaceState(null, "", location.pathname);
  }
}

/** Follow for ever. `take` gets every update, `say` how things stand, `ask` resolves once there is another token. */
async function follow(take, say, ask) {
  let wait = RETRY_MS;
  for (;;) {
    try {
      await receive((update) => {
        wait = RETRY_MS;
        take(update);
      });
      say("gone", "the base station has closed; trying again");
    } catch (error) {
      if (error.status === 401) {
        say("wait", "a token is needed");
        await ask();
        continue;
      }
      const reason = error.status ? `the base station refuses (${error.status})` : "the base station is gone";
      say("gone", `${reason}; trying again`);
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
    wait = Math.min(2 * wait, MOST_RETRY_MS);
  }
}

/** One connection, until it ends or falls silent. */
async function receive(take) {
  const abort = new AbortController();
  let alarm;
  const heard = () => {
    clearTimeout(alarm);
    alarm = setTimeout(() => abort.abort(), SILENCE_MS);
  };
  heard();
  try {
    const headers = token.get() ? { authorization: `Bearer ${token.get()}` } : {};
    const answer = await fetch("events", { headers, signal: abort.signal, cache: "no-store", credentials: "omit" });
    if (!answer.ok) throw Object.assign(new Error("refused"), { status: answer.status });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      heard();
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) if (event.startsWith("data: ")) take(JSON.parse(event.slice(6)));
    }
  } finally {
    clearTimeout(alarm);
    abort.abort();
  }
}

/** Lists of values, as objects with these names. */
function named(names, lists) {
  return lists.map((values) => Object.fromEntries(names.map((name, i) => [name, values[i]])));
}
