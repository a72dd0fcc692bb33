// The page draws what the playground computes; it computes nothing about the penalty itself. Texts
// of models and files only ever become text nodes.
const $ = (id) => document.getElementById(id);
const NAMES = ["none", "known", "lz"];
const TITLES = { none: "No penalty", known: "A known penalty", lz: "LZ penalty" };
const HEAT = [0, 0.5, 1, 2, 4, 8];
const [TEXT, LOGPROB, NATS, DISTANCE, MATCH, COPIES, COVER, MEMORY] = [1, 2, 3, 4, 5, 6, 7, 8];
const COVERED = 64;
// How many tokens are coloured between two frames, and how long a long output waits for its next
// lines, in milliseconds: laying it out takes the longer the more there is.
const SLICE = 256, PAUSE = 200, LONG = 512;
// By how much another penalty lowers a logit cannot be known from outside, so the page shows how much a
// log probability fell. If it fell by less than FALL, in nats, it may have been rounded.
const FALL = 0.01;
// A token that is lowered by more is practically forbidden, so a mean counts no more (as in bench.harm).
const MOST_NATS = 20;
const HINT = "Point at a token, or focus an output and use the arrow keys.";

const element = (tag, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
};
const shape = (tag, attributes) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
};
// `code` in a description becomes an element.
const described = (text) => text.split("`").map((part, i) => (i % 2 ? element("code", {}, part) : part));
const percent = (logprob) => {
  const share = 100 * Math.exp(logprob);
  return `${share >= 99.95 || share === 0 ? share.toFixed(0) : share >= 0.1 ? share.toFixed(1) : share.toPrecision(1)} %`;
};
const visible = (text) => text.replaceAll("\n", "↵").replaceAll("\t", "⇥") || "(part of a character)";
const nats = (value) => (value >= 10 ? value.toFixed(1) : value.toFixed(2));

async function asked(path, body) {
  let response;
  try {
    response = await fetch(path, body === undefined ? {} : {
      method: "POST", headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    });
  } catch {
    throw new Error("The playground itself does not answer any more.");
  }
  if (!response.ok) throw new Error((await response.json().catch(() => ({}))).error || `HTTP ${response.status}`);
  return response;
}

class Column {
  constructor(name, title, into) {
    this.name = name;
    this.facts = element("dl", { className: "facts" });
    this.chart = shape("svg", { class: "chart", preserveAspectRatio: "none", role: "img" });
    this.caption = element("p", { className: "caption" });
    this.output = element("div", { className: "output", tabIndex: 0 });
    this.output.setAttribute("role", "group");
    this.output.setAttribute("aria-label", `Output: ${title}. Arrow keys go from token to token.`);
    this.problem = element("p", { className: "problem", hidden: true });
    this.problem.setAttribute("role", "alert");
    this.heading = element("h2", {}, title);
    this.card = element("section", { className: "column", id: `column-${name}` },
      this.heading, this.facts, this.chart, this.caption, this.problem, this.output);
    into.append(this.card);
    this.output.addEventListener("pointerover", (event) => this.choose(this.spans.indexOf(event.target)));
    this.output.addEventListener("click", (event) => this.choose(this.spans.indexOf(event.target)));
    this.output.addEventListener("focus", () => this.chosen < 0 && this.choose(0));
    this.output.addEventListener("keydown", (event) => this.key(event));
    this.clear();
  }

  clear() {
    clearTimeout(this.timer);
    Object.assign(this, { tokens: [], spans: [], before: [], loops: [], marked: [], chosen: -1, timer: 0, stale: 0 });
    this.output.replaceChildren();
    this.facts.replaceChildren();
    this.chart.replaceChildren();
    this.caption.textContent = "";
    this.problem.hidden = true;
  }

  take(event) {
    if (event.tokens) this.add(event.tokens);
    if (event.before) this.before = event.before;
    const changed = event.loops && JSON.stringify(event.loops) !== JSON.stringify(this.loops);
    if (changed) this.loops = event.loops;
    if (event.before || changed) this.stale = 0;
    if (event.end !== undefined || event.model !== undefined) this.update(); else this.soon();
    if (event.loops) this.count();
    if (event.error) this.fail(event.error);
  }

  fail(sentence) {
    this.problem.textContent = sentence;
    this.problem.hidden = false;
  }

  add(tokens) { for (const token of tokens) this.tokens.push(token); }

  soon() {
    const wait = this.tokens.length > LONG && this.tokens.length > this.spans.length ? PAUSE : 0;
    this.timer ||= setTimeout(() => requestAnimationFrame(() => this.update()), wait);
  }

  // Show what has come since the last time. Colours follow in slices, so that the page stays quick.
  update() {
    clearTimeout(this.timer);
    this.timer = 0;
    const shown = this.spans.length;
    if (this.tokens.length > shown) {
      const atEnd = this.output.scrollTop + this.output.clientHeight > this.output.scrollHeight - 40;
      for (const token of this.tokens.slice(shown)) this.spans.push(element("span", {}, token[TEXT]));
      for (let i = shown; i < this.spans.length; i++) this.heat(i);
      this.output.append(...this.spans.slice(shown));
      if (atEnd) this.output.scrollTop = this.output.scrollHeight;
      this.draw();
    }
    const end = Math.min(this.spans.length, this.stale + SLICE);
    for (; this.stale < end; this.stale++) this.heat(this.stale);
    if (this.stale < this.spans.length) this.soon();
  }

  // What is taken from a known penalty's token is only known as a fall of its log probability.
  lost(i) {
    if (this.name !== "known") return this.tokens[i][NATS];
    return this.before[i] ? Math.max(0, this.before[i][0] - this.tokens[i][LOGPROB]) : 0;
  }

  heat(i) {
    const lost = this.lost(i);
    const level = this.isLowered(i) ? HEAT.filter((bound) => lost >= bound).length : 0;
    const name = (level ? `h${level}` : "") + (this.isLooped(i) ? " loop" : "") + (this.isTurn(i) ? " turn" : "");
    if (this.spans[i].heat !== name) this.spans[i].className = this.spans[i].heat = name;
  }

  // Tokens in loops, without those of the first copies.
  repeated() { return this.loops.reduce((sum, [begin, end, size]) => sum + end - begin - size, 0); }

  isLowered(i) { return this.lost(i) > (this.name === "known" ? FALL : 0); }

  // Another token would have come first, and the penalty lowered it.
  isTurn(i) {
    const before = this.before[i];
    return before !== undefined && before[0] < before[1] - 1e-6 && before[NATS] > 0;
  }

  isLooped(i) { return this.loops.some(([begin, end]) => begin <= i && i < end); }

  count() {
    const first = columns.none;
    const lowered = this.tokens.filter((_, i) => this.isLowered(i)).length;
    const facts = [["tokens", this.tokens.length], ["loops", this.loops.length], ["tokens in loops", this.repeated()]];
    if (this.name !== "none") facts.push(["tokens lowered", lowered]);
    if (this.name === "own") {
      const most = Math.max(1, this.tokens.length), all = this.tokens.reduce((sum, token) => sum + Math.min(MOST_NATS, token[NATS]), 0);
      facts.push(["lowered in 1,000", ((1000 * lowered) / most).toFixed(1)], ["nats a token", (all / most).toFixed(4)]);
    } else if (this.name !== "none" && first.tokens.length) facts.push(["loop tokens saved", first.repeated() - this.repeated()]);
    this.facts.replaceChildren(...facts.map(([name, value]) =>
      element("div", {}, element("dt", {}, name), element("dd", {}, String(value)))));
  }

  draw() {
    const n = this.tokens.length;
    if (!n) return;
    this.chart.setAttribute("viewBox", `0 0 ${n} 72`);
    let line = "M0 72";
    const on = [];
    let most = 0;
    this.tokens.forEach((token, i) => {
      line += `L${i} ${72 - token[COVER]}H${i + 1}`;
      most = Math.max(most, token[COVER]);
      if (!token[MEMORY]) return;
      if (on.length && on.at(-1)[1] === i) on.at(-1)[1] = i + 1; else on.push([i, i + 1]);
    });
    this.chart.replaceChildren(shape("path", { class: "cover", d: `${line}V72Z` }),
      ...on.map(([begin, end]) => shape("rect", { class: "memory", x: begin, y: 0, width: end - begin, height: 5 })));
    const steps = on.reduce((sum, [begin, end]) => sum + end - begin, 0);
    const first = on.length ? ` from token ${on[0][0] + 1} on` : "";
    this.caption.textContent = `Cover (area): at most ${most} of ${COVERED} tokens. Memory (bar): ${steps ? `on at ${steps} steps${first}` : "off"}.`;
    this.chart.setAttribute("aria-label", this.caption.textContent);
  }

  key(event) {
    const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -1e9, End: 1e9 }[event.key];
    if (!move || !this.spans.length) return;
    event.preventDefault();
    this.choose(Math.min(this.spans.length - 1, Math.max(0, this.chosen + move)));
    this.spans[this.chosen].scrollIntoView({ block: "nearest" });
  }

  mark(i, name) {
    const span = this.spans[i];
    if (span) { span.classList.add(name); this.marked.push([span, name]); }
  }

  choose(i) {
    if (i < 0 || i >= this.spans.length) return;
    for (const column of Object.values(columns)) {
      for (const [span, name] of column.marked) span.classList.remove(name);
      column.marked = [];
    }
    this.chosen = i;
    const token = this.subject(i), copy = i - token[DISTANCE];
    this.mark(i, "chosen");
    if (token[DISTANCE]) {
      this.mark(copy, "copy");
      for (let k = 1; k <= token[MATCH]; k++) { this.mark(copy - k, "context"); this.mark(i - k, "context"); }
    }
    $("detail").replaceChildren(element("p", {}, ...this.told(i)), element("p", {}, ...this.reason(i)));
  }

  // Whose copy is shown: where the penalty made the difference, that of the token that it lowered.
  subject(i) { return this.isTurn(i) ? this.before[i] : this.tokens[i]; }

  told(i) {
    const token = this.tokens[i], before = this.before[i], lost = this.lost(i);
    const said = [`Token ${i + 1}, `, element("b", {}, visible(token[TEXT]))];
    if (this.name === "known") said.push(this.isLowered(i) ? `: its log probability fell by ${nats(lost)} nats. ` : ": it lost nothing. ");
    else said.push(this.isLowered(i) ? `, lost ${nats(lost)} nats. ` : ", lost nothing. ");
    if (before) {
      said.push(`Probability ${percent(before[0])}`);
      said.push(this.name === "none" ? ". " : ` before, ${percent(token[LOGPROB])} with the penalty. `);
      if (before[0] < before[1] - 1e-6) said.push("Without a penalty ", element("b", {}, visible(before[2])), ` would have come first (${percent(before[1])})${this.isTurn(i) ? `, which lost ${nats(before[NATS])} nats` : ""}.`);
      else if (this.name !== "none") said.push("It would have come first without a penalty, too.");
      if (![0, 1].includes(this.temperature ?? 0)) said.push(" The first is at temperature 1, the second at the request's.");
    }
    return said;
  }

  reason(i) {
    const token = this.subject(i);
    const whose = this.isTurn(i) ? ["Of ", element("b", {}, visible(this.before[i][2])), ", a copy"] : ["Its copy"];
    if (!token[DISTANCE]) return [`No copy of it stands in the window. ${this.kept(token)}`];
    const where = i - token[DISTANCE] < 0 ? "in the prompt" : `at token ${i - token[DISTANCE] + 1}`;
    const match = token[MATCH] ? `, after a match of ${token[MATCH]} token${token[MATCH] > 1 ? "s" : ""}` : ", with no match before it";
    const copies = token[COPIES] ? ` It goes on with a loop that already has ${token[COPIES]} further ${token[COPIES] > 1 ? "copies" : "copy"}.` : "";
    return [...whose, ` stands ${where}, ${token[DISTANCE]} back${match}.${copies} ${this.kept(token)}`];
  }

  kept(token) { return `Cover ${token[COVER]} of ${COVERED}; memory ${token[MEMORY] ? `on for ${token[MEMORY]} steps` : "off"}.`; }
}

const columns = {};
let running = null, server = { answers: false }, fields;

const numeric = (field) => ["integer", "number"].includes(field.schema.type);

function control(field) {
  const label = element("label", {}, element("code", {}, field.name));
  label.htmlFor = `field-${field.name}`;
  const row = element("div", { className: "row" });
  const box = element("div", { className: "field" }, label, row, element("small", {}, ...described(field.description)));
  let input;
  if (numeric(field)) {
    input = element("input", { type: "number", step: field.schema.type === "integer" ? 1 : "any", min: field.schema.minimum, required: true });
    const slider = element("input", { type: "range", min: field.schema.minimum, step: field.schema.type === "integer" ? 1 : 0.05 });
    slider.setAttribute("aria-label", `${field.name}, slider`);
    slider.addEventListener("input", () => { input.value = slider.value; input.dispatchEvent(new Event("input", { bubbles: true })); });
    input.addEventListener("input", () => { slider.value = input.value; });
    field.limit = (most) => { for (const one of [input, slider]) one.max = most; slider.value = input.value; };
    row.append(slider, input);
  } else if (field.schema.type === "boolean") {
    input = element("input", { type: "checkbox", checked: field.value });
    row.append(input);
  } else {
    input = element("select", {}, ...field.schema.enum.map((name) => element("option", {}, name)));
    row.append(input);
  }
  Object.assign(input, { id: `field-${field.name}`, name: field.name });
  if (field.schema.type !== "boolean") input.value = field.value;
  field.input = input;
  return box;
}

function limit() {
  const ends = { "--lz-max-window-size": server.max_window_size || fields.max_window_size };
  for (const field of fields.lz.filter(numeric)) {
    const most = field.schema.maximum ?? ends[field.bound];
    ends[field.name] = field.input.value;
    field.limit(most);
  }
  const values = penalty();
  $("summary").textContent = fields.lz.filter((f) => values[f.name] !== f.value || ["lz_penalty", "lz_onset"].includes(f.name))
    .map((f) => `${f.name} ${values[f.name]}`).join(", ");
}

const read = (field) => field.schema.type === "boolean" ? field.input.checked : numeric(field) ? (field.input.value === "" ? null : Number(field.input.value)) : field.input.value;
const penalty = () => Object.fromEntries(fields.lz.map((field) => [field.name, read(field)]));

function settings() {
  const form = $("settings").elements;
  return { prompt: form.prompt.value, chat: form.chat.checked, known: form.known.value, known_value: Number(form.known_value.value),
    ...Object.fromEntries(fields.sampling.map((field) => [field.name, Number(form[field.name].value)])), fields: penalty() };
}

function restore(values) {
  const form = $("settings").elements;
  for (const [name, value] of Object.entries(values)) {
    const input = form.namedItem(name);
    if (!input || input instanceof RadioNodeList) continue;
    if (input.type === "checkbox") input.checked = value === true || value === "true";
    else input.value = value;
  }
  limit();
}

function title() {
  const form = $("settings").elements;
  columns.known.heading.textContent = `${form.known.value} ${form.known_value.value}`;
  columns.lz.heading.textContent = `LZ penalty ${penalty().lz_penalty}, onset ${penalty().lz_onset}`;
}

async function run() {
  stop();
  const own = running = new AbortController(), wanted = settings();
  $("stop").disabled = false;
  $("done").textContent = "Running.";
  title();
  await Promise.all(NAMES.map(async (name) => {
    const column = columns[name];
    column.clear();
    column.temperature = wanted.temperature;
    try {
      const response = await fetch("api/generate", { method: "POST", signal: own.signal,
        headers: { "Content-Type": "application/json" }, body: JSON.stringify({ ...wanted, column: name }) });
      if (!response.ok) throw new Error((await response.json()).error);
      await stream(response.body, (event) => column.take(event));
    } catch (error) {
      if (own.signal.aborted) column.fail("Stopped.");
      else column.fail(error instanceof TypeError ? "The playground itself does not answer any more." : error.message);
    }
  }));
  if (running !== own) return;
  running = null;
  $("stop").disabled = true;
  $("done").textContent = own.signal.aborted ? "Stopped." : "Done.";
  for (const name of NAMES) if (columns[name].tokens.length) columns[name].count();
}

async function stream(body, take) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", ended = false;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const event = JSON.parse(part.slice("data: ".length));
      ended ||= event.end !== undefined || event.error !== undefined;
      take(event);
    }
  }
  if (!ended) throw new Error("The stream broke off before its end.");
}

function stop() { if (running) running.abort(); }

async function explain() {
  const column = columns.own;
  $("explained").textContent = "Computing.";
  column.clear();
  try {
    const found = await (await asked("api/explain", { text: $("own").value, fields: penalty() })).json();
    column.take(found);
    $("explained").textContent = `Tokens of the model “${found.model}”.`;
  } catch (error) { column.fail(error.message); $("explained").textContent = ""; }
}

async function look() {
  const state = $("state");
  try { server = await (await asked("api/server")).json(); }
  catch (error) { server = { answers: false, sentence: error.message }; }
  state.className = server.answers && server.sentence ? "warn" : "";
  $("run").disabled = !server.answers;
  for (const button of $("examples").children) button.disabled = !server.answers;
  if (server.answers) {
    const seed = server.heeds_seed ? "" : " Its seed counts only with --enable-deterministic-inference.";
    state.textContent = server.sentence || `Connected to the model “${server.model}” at ${server.url}.${seed}`;
    limit();
    return;
  }
  state.textContent = server.sentence;
  state.textContent += " This is a recorded session of SmolLM2-135M-Instruct; scripts/serve starts a server, and this page then finds it.";
  setTimeout(look, 3000);
}

async function replay() {
  const session = await (await asked("session.json")).json();
  restore({ ...session.settings, ...session.settings.fields });
  title();
  for (const name of NAMES) for (const event of session.columns[name]) columns[name].take(event);
  for (const name of NAMES) columns[name].count();
}

function show(name) {
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const chosen = tab.getAttribute("aria-controls") === name;
    tab.setAttribute("aria-selected", chosen);
    tab.tabIndex = chosen ? 0 : -1;
    $(tab.getAttribute("aria-controls")).hidden = !chosen;
  }
  for (const one of document.querySelectorAll(".compare-only")) one.hidden = name !== "compare";
  $("detail").replaceChildren(element("p", {}, HINT));
}

function listen() {
  $("settings").addEventListener("submit", (event) => { event.preventDefault(); run(); });
  $("settings").addEventListener("input", limit);
  $("known").addEventListener("change", () => {
    const known = fields.known.find((one) => one.name === $("known").value);
    Object.assign($("known_value"), { min: known.schema.minimum, max: known.schema.maximum, value: known.value });
  });
  $("stop").addEventListener("click", stop);
  $("new-seed").addEventListener("click", () => {
    const form = $("settings").elements;
    form.seed.value = Math.floor(Math.random() * 2 ** 31);
    if (!Number(form.temperature.value)) form.temperature.value = 1;
    $("settings").requestSubmit($("run"));
  });
  $("share").addEventListener("click", async () => {
    const { fields: own, ...rest } = settings();
    history.replaceState(null, "", `#${new URLSearchParams({ ...rest, ...own })}`);
    try { await navigator.clipboard.writeText(location.href); $("done").textContent = "The link is copied."; }
    catch { $("done").textContent = "The browser did not let the page copy."; }
  });
  $("explain").addEventListener("click", explain);
  for (const example of $("examples").children) example.addEventListener("click", () => { restore({ prompt: example.value }); run(); });
  const tabs = [...document.querySelectorAll("[role=tab]")];
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => show(tab.getAttribute("aria-controls")));
    tab.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowLeft: tabs.length - 1 }[event.key];
      if (move) { const next = tabs[(i + move) % tabs.length]; next.focus(); next.click(); }
    });
  });
}

async function start() {
  fields = await (await asked("api/fields")).json();
  $("fields").append(...fields.lz.map(control));
  $("known").append(...fields.known.map((one) => element("option", {}, one.name)));
  $("sampling").append(...fields.sampling.map((field) => element("label", {}, `${field.name.replaceAll("_", " ")} `,
    element("input", { type: "number", name: field.name, value: field.value, min: field.schema.minimum, max: field.schema.maximum,
      step: field.schema.type === "integer" ? 1 : "any", required: true }))));
  const views = document.querySelectorAll(".columns");
  for (const name of NAMES) columns[name] = new Column(name, TITLES[name], views[0]);
  columns.own = new Column("own", "Your text", views[1]);
  listen();
  show("compare");
  $("known").dispatchEvent(new Event("change"));
  $("prompt").value = $("examples").firstElementChild.value;
  limit();
  await look();
  if (!server.answers) await replay();
  if (location.hash) restore(Object.fromEntries(new URLSearchParams(location.hash.slice(1))));
  document.documentElement.dataset.ready = "";
}

start().catch((error) => { $("state").textContent = error.message; $("state").className = "warn"; });
