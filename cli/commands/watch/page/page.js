// The page of `eps dashboard`: asks for the state once a second and draws it. Texts of servers are
// set as text, never as HTML.
"use strict";

const INTERVAL_MS = 1000;
const PATIENCE_MS = 5000;  // of a request
const STALE_MS = 4000;     // without an answer, the page says so
const $ = (id) => document.getElementById(id);

let steps = {job: "", last: 0, points: []};  // of the curve
let cursor = null;      // the point whose figures are shown; null: the last one
let answered = 0;       // when the last answer came
let asked = Date.now();

// ---------------------------------------------------------------- text

const count = (n) => n.toLocaleString("en-US");
const ms = (seconds) => (1000 * seconds).toFixed(Math.abs(seconds) < 0.01 ? 2 : 1);

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; n >= 1024 && unit + 1 < units.length; ++unit) n /= 1024;
  return `${n.toFixed(unit ? 1 : 0)} ${units[unit]}`;
}

function duration(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m${String(s % 60).padStart(2, "0")}s`;
  if (s < 86400) return `${Math.floor(s / 3600)}h${String(Math.floor(s / 60) % 60).padStart(2, "0")}m`;
  return `${Math.floor(s / 86400)}d${String(Math.floor(s / 3600) % 24).padStart(2, "0")}h`;
}

// ---------------------------------------------------------------- elements

// Returns an element with attributes, and with texts or elements in it.
function make(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "style") element.style.setProperty(...value);
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

function draw(name, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

// Fills a table. A heading that begins with ">" is of a column of numbers, one with "~" of a column
// of long texts. A cell is a text, or an element <td>.
function fill(table, headings, rows, empty) {
  const kinds = headings.map((text) => text.startsWith(">") ? {class: "number"} :
    text.startsWith("~") ? {class: "text"} : {});
  if (rows.length === 0) {
    table.replaceChildren(make("tbody", {}, make("tr", {}, make("td", {class: "empty"}, empty))));
    return;
  }
  const head = make("tr", {}, ...headings.map((text, i) =>
    make("th", {...kinds[i], scope: "col"}, text.replace(/^[>~]/, ""))));
  const body = rows.map((row) => make("tr", {}, ...row.map((cell, i) =>
    cell instanceof Node ? cell : make("td", kinds[i], cell))));
  table.replaceChildren(make("thead", {}, head), make("tbody", {}, ...body));
}

// ---------------------------------------------------------------- the loss

function lossRange(points) {
  let low = Infinity, high = -Infinity;
  for (const p of points) {
    if (!Number.isFinite(p.loss)) continue;
    low = Math.min(low, p.loss);
    high = Math.max(high, p.loss);
  }
  if (low > high) return [0, 1];
  const room = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
  return [low - room, high + room];
}

// Returns about `wanted` round numbers from `low` to `high`.
function ticks(low, high, wanted) {
  const rough = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= rough);
  const result = [];
  for (let t = Math.ceil(low / step) * step; t <= high; t += step) result.push(t);
  return result;
}

function describe(point) {
  if (!point) return "no step is complete yet";
  if (point.evaluation) return `evaluation after step ${count(point.step)}: loss ${point.loss.toFixed(4)}`;
  return `step ${count(point.step)}: loss ${point.loss.toFixed(4)}, gradient norm ` +
    `${point.grad_norm.toPrecision(3)}, rate ${point.lr.toPrecision(3)}, ` +
    `${point.seconds.toFixed(2)} s, ${count(point.tokens)} tokens` + (point.skipped ? ", skipped" : "");
}

function drawLoss() {
  const svg = $("loss");
  const width = svg.clientWidth, height = svg.clientHeight;
  const left = 48, right = 10, top = 8, bottom = 22;
  const train = steps.points.filter((p) => !p.evaluation);
  const shown = cursor ?? train[train.length - 1] ?? steps.points[steps.points.length - 1];
  $("loss-text").textContent = describe(shown);
  if (steps.points.length === 0 || width === 0) return svg.replaceChildren();
  const first = steps.points[0].step, last = steps.points[steps.points.length - 1].step;
  const [low, high] = lossRange(steps.points);
  const x = (step) => left + (width - left - right) * (last > first ? (step - first) / (last - first) : 0.5);
  const y = (loss) => top + (height - top - bottom) * (high - loss) / (high - low);
  const parts = [];
  for (const t of ticks(low, high, 5)) {
    parts.push(draw("line", {class: "grid", x1: left, x2: width - right, y1: y(t), y2: y(t)}));
    parts.push(draw("text", {x: left - 6, y: y(t) + 4, "text-anchor": "end"}, Number(t.toPrecision(6))));
  }
  for (const t of last > first ? ticks(first, last, Math.max(2, width / 130)) : [first]) {
    if (!Number.isInteger(t)) continue;
    parts.push(draw("text", {x: x(t), y: height - 6, "text-anchor": "middle"}, count(t)));
  }
  // Losses that are not finite break the line.
  let path = "", joined = false;
  for (const p of train) {
    if (Number.isFinite(p.loss)) path += `${joined ? "L" : "M"}${x(p.step).toFixed(1)},${y(p.loss).toFixed(1)}`;
    joined = Number.isFinite(p.loss);
  }
  parts.push(draw("path", {class: "train", d: path}));
  for (const p of steps.points) {
    if (p.evaluation) parts.push(draw("circle", {class: "evaluation", cx: x(p.step), cy: y(p.loss), r: 3.5}));
  }
  if (cursor) parts.push(draw("line", {class: "cursor", x1: x(cursor.step), x2: x(cursor.step), y1: top, y2: height - bottom}));
  svg.replaceChildren(...parts);
  svg.stepAt = (pixel) => first + (pixel - left) / (width - left - right) * (last - first);
}

// Shows the figures of the point nearest to a step.
function pointAt(step) {
  let best = null;
  for (const p of steps.points) {
    if (best === null || Math.abs(p.step - step) < Math.abs(best.step - step)) best = p;
  }
  cursor = best;
  drawLoss();
}

$("loss").addEventListener("pointermove", (e) => {
  const svg = $("loss");
  if (svg.stepAt) pointAt(svg.stepAt(e.clientX - svg.getBoundingClientRect().left));
});
const leave = () => { cursor = null; drawLoss(); };
$("loss").addEventListener("pointerleave", leave);
$("loss").addEventListener("blur", leave);
$("loss").addEventListener("keydown", (e) => {
  const moves = {ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity};
  if (e.key === "Escape") return leave();
  if (!(e.key in moves) || steps.points.length === 0) return;
  e.preventDefault();
  const end = steps.points.length - 1;
  const at = cursor ? steps.points.indexOf(cursor) : end;
  cursor = steps.points[Math.min(end, Math.max(0, at + moves[e.key]))];
  drawLoss();
});
window.addEventListener("resize", drawLoss);

// ---------------------------------------------------------------- the state

function showSummary(state) {
  const lead = state.servers[0];
  const items = [];
  const add = (term, value, small) => items.push(make("div", {}, make("dt", {}, term),
    make("dd", {}, value, ...(small ? [make("small", {}, ` ${small}`)] : []))));
  const last = state.last_step;
  if (lead.seen && lead.steps > 0) {
    // `step` is the open one; after the last step none is open.
    const done = Math.min(lead.steps, last ? last.step : Math.max(0, lead.step - 1));
    add("Step", count(done), `of ${count(lead.steps)}`);
    add("State", lead.state);
  }
  if (last) {
    add("Loss", last.loss.toFixed(4));
    add("Step time", last.seconds.toFixed(2), "s");
    if (last.seconds > 0) add("Tokens / s", count(Math.round(last.tokens / last.seconds)));
    if (lead.seen && lead.state === "running" && lead.steps > last.step) {
      add("Time left", duration((lead.steps - last.step) * last.seconds));
    }
  }
  if (lead.seen && lead.steps > 0) {
    add("Workers", count(lead.joined_workers));
    add("Parameters", count(state.servers.reduce((sum, s) => sum + (s.seen ? s.parameters : 0), 0)));
  }
  const away = state.servers.filter((s) => s.error).length;
  add("Servers", `${state.servers.length - away}`, `of ${state.servers.length} answer`);
  $("summary").replaceChildren(...items);
  $("job").textContent = !lead.seen ? `${lead.address} does not answer` :
    lead.steps > 0 ? `${state.job_name} on ${lead.address}` : `${lead.address} has no job`;
}

function showHeat(state) {
  const columns = state.servers.filter((s) => s.seen && s.stage_progress);
  const rows = new Map();  // stage: {name, cells, slack}
  const row = (stage, name) => {
    if (!rows.has(stage)) rows.set(stage, {name, cells: columns.map(() => null), slack: null});
    return rows.get(stage);
  };
  columns.forEach((server, column) => {
    for (const p of server.stage_progress) row(p.stage, p.name).cells[column] = {...p, version: server.version};
    for (const t of server.stage_times) {
      const r = row(t.stage, t.name);
      if (t.visits > 0 && (r.slack === null || t.slack_seconds < r.slack)) r.slack = t.slack_seconds;
    }
  });
  const ordered = [...rows.entries()].sort((a, b) => a[0] - b[0]).map((entry) => entry[1]);
  fill($("heat"), ["layer", ...columns.map((s) => s.address), ">slack, ms"], ordered.map((r) => [
    r.name,
    ...r.cells.map((cell) => {
      if (cell === null) return make("td", {class: "cell empty"}, "–");
      const version = cell.version + (cell.updated === cell.chunks ? 1 : 0);
      return make("td", {
        class: "cell",
        style: ["--part", `${100 * cell.updated / cell.chunks}%`],
        title: `${cell.updated} of ${cell.chunks} chunks are updated`,
      }, count(version));
    }),
    r.slack === null ? "" : make("td", {class: r.slack < 0 ? "number bad" : "number"}, ms(r.slack)),
  ]), "no server holds a layer");
}

function showServers(state) {
  fill($("servers"), ["server", "state", ">step", ">memory", ">of", ">up"], state.servers.map((s) => {
    if (s.error) return [s.address, make("td", {class: "text bad", colspan: 5}, s.error)];
    const used = Object.values(s.memory).reduce((sum, m) => sum + m.live_bytes, 0);
    const failed = s.state === "failed";
    return [s.address, make("td", failed ? {class: "text bad"} : {}, failed ? `${s.state}: ${s.failure}` : s.state),
      s.steps > 0 ? count(s.step) : "", bytes(used), bytes(s.memory_limit_bytes), duration(s.uptime_seconds)];
  }), "no servers");
}

function showWaits(state) {
  const rows = [];
  for (const s of state.servers) {
    if (s.error || !s.seen) continue;
    for (const w of s.waits) rows.push({...w, address: s.address});
  }
  rows.sort((a, b) => b.seconds - a.seconds);
  fill($("waits"), ["server", "~what", "~waits for", ">for"], rows.slice(0, 50).map((w) => [
    w.address, w.what, w.waits_for, duration(w.seconds),
  ]), "nothing waits");
}

function showJobs(state) {
  fill($("jobs"), ["job", "phase", ">step", "", ">loss", "driver", "~remark"], state.jobs.map((j) => {
    const bar = make("td", {});
    if (j.steps > 0) bar.append(make("progress", {max: j.steps, value: j.step, "aria-label": `steps of ${j.name}`}));
    return [j.name, make("td", {class: j.phase === "FAILED" ? "bad" : j.phase === "SUCCEEDED" ? "good" : ""}, j.phase),
      j.steps > 0 ? `${count(j.step)} / ${count(j.steps)}` : "", bar, j.step > 0 ? j.loss.toFixed(4) : "",
      j.driver, j.error || j.reason];
  }), "no jobs: eps submit adds one");
}

function showEvents(state) {
  const list = $("events");
  if (state.events.length === 0) {
    return list.replaceChildren(make("li", {class: "empty"}, "nothing has changed since this program was started"));
  }
  list.replaceChildren(...state.events.slice().reverse().map((e) => {
    const time = new Date(e.time_ms);
    return make("li", e.bad ? {class: "bad"} : {},
      make("time", {datetime: time.toISOString()}, time.toLocaleTimeString("en-GB")), e.text);
  }));
}

// ---------------------------------------------------------------- the loop

async function ask(path) {
  const answer = await fetch(path, {signal: AbortSignal.timeout(PATIENCE_MS)});
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

async function look() {
  const [state, more] = await Promise.all([ask("api/state"), ask(`api/steps?job=${steps.job}&after=${steps.last}`)]);
  if (more.job !== steps.job) {
    steps = {job: more.job, last: 0, points: []};
    cursor = null;
  }
  // JSON has no NaN.
  for (const p of [...more.points, state.last_step ?? {}]) {
    for (const key of ["loss", "grad_norm"]) p[key] ??= NaN;
  }
  for (const p of more.points) {
    steps.points.push(p);
    steps.last = p.serial;
  }
  answered = Date.now();
  for (const show of [showSummary, showHeat, showServers, showWaits, showJobs, showEvents]) show(state);
  drawLoss();
  showLink();
}

function showLink() {
  const silent = Date.now() - (answered || asked);
  const stale = silent > STALE_MS;
  $("link").textContent = stale ? `no answer for ${duration(silent / 1000)}` : answered ? "live" : "connecting …";
  $("link").classList.toggle("bad", stale);
  document.body.classList.toggle("stale", stale);
}

async function run() {
  for (;;) {
    try {
      await look();
    } catch (error) {
      console.warn(String(error));
    }
    await new Promise((done) => setTimeout(done, INTERVAL_MS));
  }
}

setInterval(showLink, INTERVAL_MS / 2);
run();
