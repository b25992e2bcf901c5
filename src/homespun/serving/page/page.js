// The page of `homespun serve`. Whatever the server sends is put in as text, never as HTML.

const $ = (id) => document.getElementById(id);
const percent = (p) => `${(100 * p).toFixed(1)} %`;
const signed = (x, digits = 2) => `${x < 0 ? "−" : "+"}${Math.abs(x).toFixed(digits)}`;
const count = (n) => n.toLocaleString("en");
const STORED_KEY = "homespun-key";

let key = sessionStorage.getItem(STORED_KEY);
let models = [];
let model = null;
let given = null; // the text, or [text, text], of the prediction that is shown

/** Element with properties, data-free attributes and children; strings become text. */
function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** Table of rows of a name and cells; the last column has numbers. */
function table(caption, titles, rows) {
  const head = titles.map((title, i) => element("th", { scope: "col", className: i && i === titles.length - 1 ? "n" : "" }, title));
  const cells = (row) => row.map((cell, i) => (i ? cell : element("th", { scope: "row" }, cell)));
  const body = rows.map((row) => element("tr", {}, ...cells(row)));
  const name = caption ? [element("caption", {}, caption)] : [];
  return element("table", {}, ...name, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body));
}

/* ---- requests ---- */

async function request(path, { json, form, signal } = {}) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  if (json) headers["Content-Type"] = "application/json";
  const body = json ? JSON.stringify({ model: model?.name, ...json }) : form;
  let response;
  try {
    response = await fetch(path, { method: body ? "POST" : "GET", headers, body, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer.");
  }
  if (response.status === 401) askForKey();
  if (!response.ok) throw Object.assign(new Error(await messageOf(response)), { status: response.status });
  return response;
}

const post = async (path, json, signal) => (await request(path, { json, signal })).json();

async function messageOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answers ${response.status} ${response.statusText}.`;
  }
}

/** Save what needs the key of the server, which a link cannot send. */
async function save(path, name) {
  const url = URL.createObjectURL(await (await request(path)).blob());
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

function link(anchor, path, name) {
  anchor.href = path;
  anchor.onclick = (event) => {
    if (!key) return;
    event.preventDefault();
    save(path, name).catch((error) => show($("problem"), error.message));
  };
}

function askForKey() {
  key = null;
  sessionStorage.removeItem(STORED_KEY);
  if (!$("key").hidden) return;
  $("key").hidden = false;
  $("key-value").focus();
}

function show(place, text) {
  if (place.textContent !== text) place.textContent = text;
}

const running = new Set(); // controllers of the forms that work

/** Run the work of a form when it is sent, after the end of the one before. Errors go to the line of the form. */
function onSubmit(form, work) {
  const problem = form.querySelector(".problem");
  const result = form.parentElement.querySelector(".result");
  let controller = new AbortController();
  let last = Promise.resolve();
  const run = async (signal) => {
    show(problem, "");
    result.setAttribute("aria-busy", "true");
    try {
      await work(signal);
    } catch (error) {
      if (error.name !== "AbortError") show(problem, error.message);
    }
    result.setAttribute("aria-busy", "false");
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    controller.abort();
    running.delete(controller);
    controller = new AbortController();
    running.add(controller);
    const { signal } = controller;
    last = last.then(() => signal.aborted || run(signal));
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  return () => controller.abort();
}

/* ---- models ---- */

const ABOUT = {
  classification: "Classifies a text",
  pairs: "Reads a pair of texts",
  regression: "Predicts a number for a text",
  "ordinal-regression": "Rates a text",
  "token-classification": "Tags the words of a text",
  "sentence-classification": "Classifies the sentences of a text",
  "question-answering": "Answers a question from a text",
  seq2seq: "Writes a text from a text",
  "text-to-text": "Writes a text from a text",
};

function about({ task, labels, parameters, max_length: length }) {
  const does = task ? (ABOUT[task] ?? `Task: ${task}`) : "A language model";
  const names = labels?.length ? `, with ${labels.length} labels` : "";
  const reads = length ? ` It reads up to ${count(length)} tokens.` : "";
  return `${does}${names}.${reads} ${count(parameters)} parameters.`;
}

async function loadModels() {
  show($("problem"), "");
  try {
    models = (await (await request("models")).json()).models;
  } catch (error) {
    if (error.status === 503) {
      setTimeout(loadModels, 1000); // the models are being opened
      return;
    }
    if ($("key").hidden) show($("name"), "The model cannot be shown");
    else show($("name"), "This server needs an API key");
    show($("problem"), error.message);
    return;
  }
  $("key").hidden = true;
  $("model").replaceChildren(...models.map(({ name }) => element("option", { value: name }, name)));
  $("models").hidden = models.length < 2;
  choose(models[0]);
}

function choose(chosen) {
  for (const controller of running) controller.abort();
  model = chosen;
  given = null;
  const can = (what) => model.capabilities.includes(what);
  const path = encodeURIComponent(model.name);
  document.title = `${model.name} – homespun`;
  show($("name"), model.name);
  show($("about"), about(model));
  $("report").hidden = !model.report;
  link($("report"), `report/${path}/`, `${model.name}-report.html`);
  $("card").hidden = !model.card;
  link($("card"), `card/${path}`, `${model.name}-card.md`);
  $("file").hidden = !can("predict");
  $("generate").hidden = !can("generate");
  $("predict").hidden = !(can("predict") || (can("attention") && !can("generate")));
  show(document.querySelector("#predict button"), can("predict") ? "Predict" : "Show attention");
  show($("predict-title"), can("predict") ? "Predict" : "Attention");
  if ($("predict").hidden) document.querySelector("#generate .result").append($("attention"));
  else $("neighbours").before($("attention"));
  const second = twoTexts();
  const [one, other] = FIELDS[model.inputs] ?? FIELDS.text;
  show(document.querySelector("label[for=text]"), one);
  show(document.querySelector("label[for=second]"), other);
  $("second-row").hidden = !second;
  $("second").required = second;
  $("column-row").hidden = second;
  for (const id of Object.keys(PANELS)) {
    $(id).hidden = true;
    $(id).querySelector(".content").replaceChildren();
  }
  for (const place of document.querySelectorAll(".headline, section .problem")) show(place, "");
  const bars = can("predict") && model.labels && model.task !== "token-classification";
  $("prediction").replaceChildren(bars ? classes(model.labels.map((name) => [name, null])) : "");
  $("attention").open ||= !can("predict") && !can("generate");
  $("written").replaceChildren();
}

const twoTexts = () => ["pair", "question"].includes(model.inputs);

const FIELDS = {
  text: ["Text", ""],
  pair: ["First text", "Second text"],
  question: ["Question", "Text"],
  sentences: ["Sentences, one a line", ""],
};

function input() {
  if (twoTexts()) return [$("text").value, $("second").value];
  return model.inputs === "sentences" ? $("text").value.split("\n").filter((line) => line.trim()) : $("text").value;
}

/* ---- prediction ---- */

function classes(rows, predicted = []) {
  const shown = 8;
  const list = element("ol", { className: "classes" });
  const items = rows.map(([name, p]) => {
    const bar = element("i");
    bar.style.width = `${100 * (p ?? 0)}%`;
    const track = element("span", { className: "track", ariaHidden: "true" }, bar);
    const number = element("span", {}, p === null ? "" : percent(p));
    return element("li", { className: predicted.includes(name) ? "marked" : "" }, element("span", {}, name), track, number);
  });
  list.append(...items.slice(0, shown));
  if (items.length <= shown) return list;
  const more = element("button", { type: "button", className: "link" }, `Show all ${items.length} labels`);
  more.onclick = () => {
    list.append(...items.slice(shown));
    more.remove();
  };
  return element("div", {}, list, more);
}

function entities(text, found) {
  const passage = element("p", { className: "passage" });
  let end = 0;
  for (const one of found) {
    const marked = element("mark", { className: "entity" }, text.slice(one.start, one.end), element("small", {}, one.label));
    passage.append(text.slice(end, one.start), marked);
    end = one.end;
  }
  passage.append(text.slice(end));
  return passage;
}

/** Headline and content of a prediction of any task. */
function render(prediction, text) {
  const { label, probability, probabilities, number } = prediction;
  if (number !== undefined) return [String(Number(number.toPrecision(4))), []];
  if (prediction.entities) {
    const n = prediction.entities.length;
    return [`${n} ${n === 1 ? "entity" : "entities"}`, [entities(text, prediction.entities)]];
  }
  if (probabilities) {
    const labels = Array.isArray(label) ? label : [label];
    const rows = Object.entries(probabilities).sort((a, b) => b[1] - a[1]);
    const name = labels.join(", ") || "No label";
    return [typeof probability === "number" ? `${name}, ${percent(probability)}` : name, [classes(rows, labels)]];
  }
  if (Array.isArray(label)) {
    const cells = label.map((name, i) => [text[i], element("td", {}, name), element("td", { className: "n" }, percent(probability[i]))]);
    return ["", [table("", ["sentence", "label", "probability"], cells)]];
  }
  if (prediction.answer !== undefined) {
    const name = prediction.answer || "No answer";
    return [typeof probability === "number" ? `${name}, ${percent(probability)}` : name, []];
  }
  if (prediction.text !== undefined) return [prediction.text, []];
  const rows = Object.entries(prediction).filter(([name]) => name !== "truncated");
  return ["", [table("", ["field", "value"], rows.map(([name, value]) => [name, element("td", {}, JSON.stringify(value))]))]];
}

onSubmit(document.querySelector("#predict form"), async (signal) => {
  const text = input();
  if (!model.capabilities.includes("predict")) return openPanels({}, text, signal);
  const [prediction] = (await post("predict", { texts: [text] }, signal)).predictions;
  const [headline, content] = render(prediction, text);
  const title = document.querySelector("#predict .headline");
  title.classList.toggle("long", headline.length > 80);
  show(title, headline);
  const notes = prediction.truncated ? [`The text is longer than the model reads: ${count(model.max_length)} of its tokens count.`] : [];
  $("prediction").replaceChildren(...content, ...notes.map((note) => element("p", { className: "note" }, note)));
  return openPanels(prediction, text, signal);
});

/* ---- panels below a prediction: loaded when they are open ---- */

const PANELS = { words: explain, attention: attend, neighbours: findNeighbours };
let panelsOf = null; // signal of the prediction that the panels belong to

function openPanels(prediction, text, signal) {
  given = text;
  panelsOf = signal;
  const texts = prediction.probabilities !== undefined || prediction.number !== undefined;
  $("words").hidden = $("neighbours").hidden = !texts;
  $("attention").hidden = !model.capabilities.includes("attention") || Boolean(prediction.answer ?? prediction.entities);
  for (const id of Object.keys(PANELS)) {
    $(id).loaded = false;
    load(id);
  }
}

async function load(id) {
  const panel = $(id);
  if (panel.hidden || !panel.open || panel.loaded || given === null) return;
  panel.loaded = true;
  const content = panel.querySelector(".content");
  if (!content.hasChildNodes()) content.append(element("p", { className: "note" }, "Computing …"));
  content.classList.add("busy");
  try {
    await PANELS[id](content, panelsOf);
  } catch (error) {
    if (error.name === "AbortError") return;
    content.replaceChildren(element("p", { className: "problem", role: "alert" }, error.message));
  }
  content.classList.remove("busy");
}

for (const id of Object.keys(PANELS)) $(id).addEventListener("toggle", () => load(id));

async function explain(content, signal) {
  const found = await post("explain", { text: given }, signal);
  const numeric = found.label === undefined || found.label === null;
  const [pro, contra] = numeric ? ["raises the number", "lowers it"] : [`for ${found.label}`, `against ${found.label}`];
  const top = Math.max(...found.words.map(({ score }) => Math.abs(score)), 1e-9);
  const mark = (text, score) => {
    const share = Math.abs(score) / top;
    const node = element("mark", { className: `${score < 0 ? "against" : "for"}${share < 0.1 ? " weak" : ""}` }, text);
    node.style.setProperty("--share", share < 0.04 ? 0 : share);
    return node;
  };
  const passages = [given].flat().map((text, side) => {
    const passage = element("p", { className: "passage", ariaHidden: "true" });
    const characters = Array.from(text); // offsets count characters, not UTF-16 units
    let end = 0;
    for (const word of found.words.filter((word) => word.side === side)) {
      passage.append(characters.slice(end, word.start).join(""), mark(word.text, word.score));
      end = word.end;
    }
    passage.append(characters.slice(end).join(""));
    return passage;
  });
  const strongest = found.words.filter(({ score }) => Math.abs(score) >= 0.04 * top);
  strongest.sort((a, b) => Math.abs(b.score) - Math.abs(a.score));
  const rows = strongest.slice(0, 10).map(({ text, score }) => {
    const bar = element("i", { className: score < 0 ? "against" : "for" });
    const width = (50 * Math.abs(score)) / top;
    bar.style.width = `${width}%`;
    bar.style.left = `${score < 0 ? 50 - width : 50}%`;
    return [text, element("td", { className: "diverging", ariaHidden: "true" }, bar), element("td", { className: "n" }, signed(score))];
  });
  const unit = numeric ? "the number changes" : `the log-odds of ${found.label} change`;
  const parts = found.words_a_part > 1 ? ` The text is long: ${found.words_a_part} words are left out together.` : "";
  const legend = element("p", { className: "note legend", ariaHidden: "true" },
    element("mark", { className: "for" }, pro), element("mark", { className: "against" }, contra));
  const list = table("Strongest effects", ["word", "", "effect"], rows);
  const note = element("p", { className: "note" }, `Effect: by how much ${unit} because the word is there, measured by leaving it out.${parts}`);
  content.replaceChildren(legend, ...passages, rows.length ? list : "", note);
}

async function findNeighbours(content, signal) {
  const found = await post("neighbours", { text: given, count: 5 }, signal);
  const items = found.neighbours.map(({ text, label, similarity }) =>
    element("li", {}, element("p", {}, text),
      element("p", { className: "note" }, element("span", {}, "Label ", element("b", {}, [label].flat().join(", ") || "none")),
        element("span", {}, `similarity ${similarity.toFixed(2)}`))));
  const all = found.indexed === found.examples;
  const among = all ? `all ${count(found.examples)}` : `${count(found.indexed)} of ${count(found.examples)}`;
  const note = `Among ${among} training examples${all ? "" : "; the others are being read"}. Similarity: cosine of the vectors of the model.`;
  content.replaceChildren(element("ol", { className: "near" }, ...items), element("p", { className: "note" }, note));
  if (all) return;
  setTimeout(() => {
    if (signal.aborted || signal !== panelsOf || !$("neighbours").open) return;
    findNeighbours(content, signal).catch(() => {});
  }, 3000);
}

/* ---- attention ---- */

let layer = 0;
let head = -1; // the mean of all heads

async function attend(content, signal) {
  const ask = (layer) => post("attention", { text: given, layer }, signal);
  let found = await ask(layer).catch((error) => {
    if (!layer || error.name === "AbortError") throw error;
    return ask((layer = 0));
  });
  const options = (names, chosen) => names.map((name, i) => element("option", { value: i, selected: i === chosen }, name));
  const numbers = (n) => Array.from({ length: n }, (_, i) => String(i + 1));
  const layers = element("select", { id: "layer" }, ...options(numbers(found.layers), layer));
  const heads = element("select", { id: "head" });
  const queries = element("select", { id: "query" });
  const map = element("div");
  const labelled = (name, select) => element("span", {}, element("label", { htmlFor: select.id }, name), select);
  const choices = element("div", { className: "choices" }, labelled("Layer", layers), labelled("Head", heads), labelled("From", queries));
  const draw = () => map.replaceChildren(...attentionMap(found, head, Number(queries.value) - 1, content.clientWidth));
  const fill = () => {
    if (head >= found.heads) head = -1;
    heads.replaceChildren(...options(["mean of all", ...numbers(found.heads)], head + 1));
    draw();
  };
  queries.append(...options(["all tokens", ...found.tokens], 0));
  layers.onchange = async () => {
    layer = Number(layers.value);
    try {
      found = await ask(layer);
      fill();
    } catch (error) {
      if (error.name !== "AbortError") map.replaceChildren(element("p", { className: "problem", role: "alert" }, error.message));
    }
  };
  heads.onchange = () => {
    head = Number(heads.value) - 1;
    draw();
  };
  queries.onchange = draw;
  const cut = found.truncated ? [element("p", { className: "note" }, `The first ${count(found.tokens.length)} tokens of the text.`)] : [];
  content.replaceChildren(choices, map, ...cut);
  fill();
  matchMedia("(prefers-color-scheme: dark)").onchange = draw;
}

function meanOf(heads) {
  return heads[0].map((row, q) => row.map((_, k) => heads.reduce((sum, weights) => sum + weights[q][k], 0) / heads.length));
}

/** Heat map of queries (rows) by keys (columns), and the strongest weights as a table. */
function attentionMap({ tokens, weights }, chosen, query, width) {
  const table_ = chosen < 0 ? meanOf(weights) : weights[chosen];
  const n = tokens.length;
  const top = Math.max(...table_.map((row) => Math.max(...row)), 1e-9);
  const short = (token) => (token.length > 12 ? `${token.slice(0, 11)}…` : token);
  const side = 14 + 6.6 * Math.max(...tokens.map((token) => short(token).length));
  const cell = Math.max(6, Math.min(26, Math.floor((width - side - 4) / n)));
  const step = Math.ceil(11 / cell); // every how many tokens a name has room
  const picture = svg("svg", { width: side + n * cell + 2, height: side + n * cell + 2, role: "img", "aria-label": "Attention weights of queries (rows) to keys (columns)" });
  picture.append(svg("image", { href: pixels(table_, top), x: side, y: side, width: n * cell, height: n * cell, preserveAspectRatio: "none" }));
  tokens.forEach((token, i) => {
    if (i % step) return;
    const middle = side + (i + 0.5) * cell;
    picture.append(svg("text", { x: side - 6, y: middle + 4, "text-anchor": "end" }, short(token)));
    picture.append(svg("text", { transform: `translate(${middle + 4} ${side - 6}) rotate(-90)` }, short(token)));
  });
  const row = svg("rect", { class: "cross", x: side, width: n * cell, height: cell, visibility: "hidden" });
  const column = svg("rect", { class: "cross", y: side, width: cell, height: n * cell, visibility: "hidden" });
  picture.append(row, column);
  const hint = `Largest weight: ${top.toFixed(2)}. Point at the map for single weights.`;
  const readout = element("p", { className: "note readout" }, hint);
  const point = (q, k) => {
    row.setAttribute("y", side + q * cell);
    column.setAttribute("x", side + k * cell);
    row.setAttribute("visibility", q < 0 ? "hidden" : "visible");
    column.setAttribute("visibility", k < 0 ? "hidden" : "visible");
    readout.textContent = q < 0 || k < 0 ? hint : `from ${tokens[q]} to ${tokens[k]}: ${table_[q][k].toFixed(3)}`;
  };
  const rest = () => point(query, -1);
  picture.onpointermove = (event) => {
    const box = picture.getBoundingClientRect();
    const [k, q] = [event.clientX - box.left, event.clientY - box.top].map((at) => Math.floor((at - side) / cell));
    if (q >= 0 && k >= 0 && q < n && k < n) point(q, k);
    else rest();
  };
  picture.onpointerleave = rest;
  rest();
  const pairs = [];
  table_.forEach((keys, q) => keys.forEach((weight, k) => (query < 0 || q === query) && pairs.push([q, k, weight])));
  pairs.sort((a, b) => b[2] - a[2]);
  const rows = pairs.slice(0, 5).map(([q, k, weight]) => [tokens[q], element("td", {}, tokens[k]), element("td", { className: "n" }, weight.toFixed(3))]);
  const scroll = element("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: "Attention map" }, picture);
  const list = table(query < 0 ? "Strongest weights" : `Strongest weights from ${tokens[query]}`, ["from", "to", "weight"], rows);
  return [scroll, readout, list];
}

/** Data URL of an image of one pixel a weight, from the colour of the surface to the accent. */
function pixels(rows, top) {
  const style = getComputedStyle(document.documentElement);
  const [from, to] = ["--surface", "--accent"].map((name) => {
    const value = style.getPropertyValue(name).trim();
    return [1, 3, 5].map((at) => parseInt(value.slice(at, at + 2), 16));
  });
  const canvas = element("canvas", { width: rows[0].length, height: rows.length });
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  rows.flat().forEach((weight, i) => {
    const share = weight / top;
    image.data.set([0, 1, 2].map((c) => from[c] + share * (to[c] - from[c])).concat(255), 4 * i);
  });
  context.putImageData(image, 0, 0);
  return canvas.toDataURL();
}

/* ---- generation ---- */

const stopGeneration = onSubmit(document.querySelector("#generate form"), async (signal) => {
  const number = (id) => ($(id).value === "" ? {} : { [id]: Number($(id).value) });
  const stop = $("stop").value.split("\n").filter(Boolean);
  const json = { prompt: $("prompt").value, stream: true, ...(stop.length ? { stop } : {}) };
  for (const id of ["max_new_tokens", "temperature", "top_p", "seed"]) Object.assign(json, number(id));
  const [written, status] = [$("written"), document.querySelector("#generate [role=status]")];
  written.replaceChildren(element("span", {}, json.prompt));
  written.setAttribute("aria-busy", "true"); // read out when it is complete
  show(status, "Writing …");
  $("halt").disabled = false;
  let last = {};
  try {
    for await (const event of events(await request("generate", { json, signal }))) {
      if (event.error) throw new Error(event.error.message);
      written.append(event.text);
      written.scrollTop = written.scrollHeight;
      last = event;
    }
    const why = last.finish_reason === "length" ? "the maximum was reached" : "the text ended";
    show(status, `${count(last.tokens)} tokens; ${why}.`);
    if ($("predict").hidden) openPanels({}, written.textContent, signal);
  } catch (error) {
    show(status, error.name === "AbortError" ? "Stopped." : "");
    throw error;
  } finally {
    written.setAttribute("aria-busy", "false");
    $("halt").disabled = true;
  }
});
$("halt").onclick = stopGeneration;

/** Objects of server-sent events. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: {")) yield JSON.parse(line.slice(6));
    }
  }
}

/* ---- files ---- */

onSubmit(document.querySelector("#file form"), async (signal) => {
  const section = $("file");
  const [status, bar] = [section.querySelector("[role=status]"), section.querySelector("progress")];
  const form = new FormData();
  form.append("file", $("csv").files[0]);
  form.append("model", model.name);
  if ($("column").value && !twoTexts()) form.append("column", $("column").value);
  $("download").hidden = true;
  bar.hidden = false;
  bar.removeAttribute("value");
  show(status, "Sending the file …");
  try {
    const { id, rows } = await (await request("files", { form, signal })).json();
    bar.max = rows;
    for (;;) {
      const job = await (await request(`files/${id}`, { signal })).json();
      if (job.error) throw new Error(job.error);
      bar.value = job.done;
      if (job.state === "done") break;
      show(status, job.state === "waiting" ? "Waiting for another file …" : `${count(job.done)} of ${count(rows)} rows`);
      await new Promise((resolve) => setTimeout(resolve, 500));
      signal.throwIfAborted();
    }
    show(status, `${count(rows)} rows labelled.`);
    link($("download").firstElementChild, `files/${id}/predictions.csv`, "predictions.csv");
    $("download").hidden = false;
  } catch (error) {
    show(status, "");
    throw error;
  } finally {
    bar.hidden = true;
  }
});

/* ---- start ---- */

$("model").addEventListener("change", () => choose(models[$("model").selectedIndex]));
$("key").addEventListener("submit", (event) => {
  event.preventDefault();
  key = $("key-value").value;
  sessionStorage.setItem(STORED_KEY, key);
  $("key-value").value = "";
  $("key").hidden = true;
  loadModels();
});
loadModels();
