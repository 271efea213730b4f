// The interactive pages: curves over committed rows (results/explore.md), and Theorem 1 (understand/theorem1.md).
// No library; the data are in explore-data.js, which scripts/build_site.py makes from results/.
"use strict";

const BLUE = "#0072B2";
const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = Math.floor(sorted.length / 2);
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

// The largest tested length at which a run holds, there and at every shorter unseen length; 0 if it did not learn the seen ones.
function reach(task, run, threshold) {
  const seen = run.filter((value, i) => value !== null && task.lengths[i] <= task.trained);
  if (seen.length && seen.reduce((a, b) => a + b, 0) / seen.length < 0.95) return 0;
  let found = task.trained;
  for (let i = 0; i < task.lengths.length; i++) {
    if (task.lengths[i] <= task.trained) continue;
    if (run[i] === null || run[i] < threshold) break;
    found = task.lengths[i];
  }
  return found;
}

// A frame with axes; returns the functions that place values.
function frame(svg, xRange, yRange, xLabel, yLabel, xTicks, yTicks) {
  const width = Math.min(720, Math.max(340, svg.clientWidth || 720)); // text keeps its size on a phone
  const [height, left, right, top, bottom] = [Math.max(260, width / 2), 52, 16, 16, 42];
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const x = (v) => left + ((v - xRange[0]) / (xRange[1] - xRange[0])) * (width - left - right);
  const y = (v) => height - bottom - ((v - yRange[0]) / (yRange[1] - yRange[0])) * (height - top - bottom);
  for (const tick of yTicks) {
    svg.append(element("line", { x1: left, x2: width - right, y1: y(tick), y2: y(tick), class: "grid" }));
    svg.append(element("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, tick));
  }
  for (const tick of xTicks) {
    svg.append(element("text", { x: x(tick), y: height - bottom + 17, "text-anchor": "middle" }, tick));
  }
  svg.append(element("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, xLabel));
  svg.append(element("text", { x: left, y: 10 }, yLabel));
  return { x, y, top, bottom: height - bottom };
}

function path(points) {
  return points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");
}

// Multiples of 1, 2 or 5 times a power of ten, about so many.
function ticksBetween(low, high, count) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, (high - low) / count)));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => (high - low) / one <= count);
  const found = [];
  for (let v = Math.ceil(low / step) * step; v <= high; v += step) found.push(v);
  return found;
}

function explore(root, data) {
  const study = root.querySelector("[name=study]"), task = root.querySelector("[name=task]");
  const threshold = root.querySelector("[name=threshold]"), boxes = root.querySelector(".encodings");
  const chosen = () => data[study.value].tasks[task.value];
  const fill = (select, names) => select.replaceChildren(...names.map((name) => new Option(name, name)));

  function listTasks() {
    fill(task, Object.keys(data[study.value].tasks));
    listEncodings();
  }

  function listEncodings() {
    boxes.replaceChildren(
      ...Object.keys(chosen().encodings).map((name) => {
        const label = document.createElement("label"), box = document.createElement("input");
        box.type = "checkbox";
        box.value = name;
        box.checked = chosen().shown.includes(name);
        box.addEventListener("change", draw);
        const mark = document.createElement("span");
        mark.className = "mark";
        mark.style.background = chosen().colours[name];
        label.append(box, mark, ` ${chosen().names[name] || name}`);
        return label;
      }),
    );
    draw();
  }

  function draw() {
    const own = chosen(), level = Number(threshold.value);
    root.querySelector(".level").textContent = level.toFixed(2);
    root.querySelector(".question").textContent = data[study.value].question;
    const last = own.lengths[own.lengths.length - 1], ticks = ticksBetween(own.lengths[0], last, 10);
    const place = frame(root.querySelector("svg"), [own.lengths[0], last], [0, 1], "length", "exact match", ticks, [0, 0.25, 0.5, 0.75, 1]);
    const svg = root.querySelector("svg"), at = place.x(own.trained);
    svg.append(element("line", { x1: at, x2: at, y1: place.top, y2: place.bottom, class: "trained" }));
    svg.append(element("text", { x: at - 4, y: place.bottom - 6, "text-anchor": "end" }, `trained to ${own.trained}`));
    const names = [...boxes.querySelectorAll("input")].map((box) => [box.value, box.checked]);
    const lines = [];
    names.forEach(([name, on]) => {
      if (!on) return;
      const runs = own.encodings[name], colour = own.colours[name];
      const known = own.lengths.map((length, k) => [length, runs.map((run) => run[k]).filter((v) => v !== null)]).filter(([, v]) => v.length);
      const high = known.map(([length, v]) => [place.x(length), place.y(Math.max(...v))]);
      const low = known.map(([length, v]) => [place.x(length), place.y(Math.min(...v))]).reverse();
      svg.append(element("path", { d: `${path([...high, ...low])}Z`, fill: colour, opacity: 0.15, stroke: "none" }));
      const middle = known.map(([length, v]) => [place.x(length), place.y(median(v))]);
      svg.append(element("path", { d: path(middle), fill: "none", stroke: colour, "stroke-width": 2 }));
      const reaches = runs.map((run) => reach(own, run, level));
      lines.push([own.names[name] || name, median(reaches), Math.min(...reaches), Math.max(...reaches), runs.length]);
    });
    lines.sort((a, b) => b[1] - a[1]);
    root.querySelector("tbody").replaceChildren(
      ...lines.map((line) => {
        const row = document.createElement("tr");
        const [name, middle, worst, best, seeds] = line;
        const range = seeds === 1 ? ["one seed", "one seed"] : [worst || "not learned", best || "not learned"];
        const words = [name, middle || "not learned", ...range, seeds];
        row.append(...words.map((textContent) => Object.assign(document.createElement("td"), { textContent })));
        return row;
      }),
    );
  }

  fill(study, Object.keys(data));
  study.addEventListener("change", listTasks);
  task.addEventListener("change", listEncodings);
  threshold.addEventListener("input", draw);
  listTasks();
}

// --- Theorem 1 ------------------------------------------------------------------------------------------------------

// Round to a binary float with this many explicit bits of mantissa and this smallest normal exponent.
function rounded(value, bits, smallest) {
  if (value === 0) return 0;
  const exponent = Math.max(Math.floor(Math.log2(Math.abs(value))), smallest);
  const unit = 2 ** (exponent - bits), scaled = value / unit, floor = Math.floor(scaled);
  const half = scaled - floor;
  const up = half > 0.5 || (half === 0.5 && floor % 2 === 1); // to even
  return (floor + (up ? 1 : 0)) * unit;
}

const FORMATS = { bf16: [7, -126], fp16: [10, -14], fp32: [23, -126] };

// The mean over t tokens of "am I the start token?" is 1/t. The last position that is told from the next one:
function horizon(format, most) {
  const [bits, smallest] = FORMATS[format];
  for (let t = 1; t < most; t++) if (rounded(1 / t, bits, smallest) === rounded(1 / (t + 1), bits, smallest)) return t - 1;
  return most;
}

function theorem1(root) {
  const tokens = root.querySelector("[name=tokens]"), format = root.querySelector("[name=format]");
  function draw() {
    const T = 2 ** Number(tokens.value), [bits, smallest] = FORMATS[format.value];
    root.querySelector(".tokens").textContent = T.toLocaleString("en");
    const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => Math.round(T * share));
    const errors = [];
    let right = 0, worst = 0;
    for (let t = 1; t <= T; t++) {
      const read = 1 / rounded(1 / t, bits, smallest);
      if (Math.round(read) === t) right += 1;
      worst = Math.max(worst, Math.abs(read - t));
      errors.push(read - t);
    }
    const svg = root.querySelector("svg"), most = Math.max(1, Math.ceil(worst));
    const place = frame(svg, [0, T], [-most, most], "true position t", "position that is read, minus t", ticks, [-most, -most / 2, 0, most / 2, most]);
    for (const half of [-0.5, 0.5]) {
      svg.append(element("line", { x1: place.x(0), x2: place.x(T), y1: place.y(half), y2: place.y(half), class: "trained" }));
    }
    const points = errors.map((error, i) => [place.x(i + 1), place.y(error)]);
    svg.append(element("path", { d: path(points), fill: "none", stroke: BLUE, "stroke-width": 1 }));
    const last = horizon(format.value, 2 ** 14);
    root.querySelector(".told").textContent =
      `${right.toLocaleString("en")} of ${T.toLocaleString("en")} positions are read exactly; the largest error is ${worst.toFixed(2)}. ` +
      (last < 2 ** 14 ? `In ${format.value} position ${last + 1} is the first that has the same 1/t as the next one.` : `In ${format.value} all positions up to ${2 ** 14} differ from the next one.`);
  }
  tokens.addEventListener("input", draw);
  format.addEventListener("change", draw);
  draw();
}

for (const root of document.querySelectorAll(".explore")) explore(root, window.LENGTHWISE_ROWS);
for (const root of document.querySelectorAll(".theorem1")) theorem1(root);
