// Timelines of profiled steps in the Trace Event Format, which Perfetto opens.
// `latent profile --trace FILE` writes the same. Slices of a profile are
// [thread, phase, layer, begin, work, wait, operations], with times in microseconds.
const hasTimeline = (step) => isObject(step.timeline) && listOf(step.timeline.slices).length > 0;

function timelineOf(steps) {
  const traceEvents = [];
  for (const [pid, step] of steps.entries()) {
    if (!hasTimeline(step)) continue;
    const { title, measured, slices } = step.timeline;
    const named = (name, tid, value) => traceEvents.push({ ph: "M", name, pid, tid, args: { name: value } });
    named("process_name", 0, textOf(title));
    const threads = new Set(slices.map((slice) => numberOf(slice?.[0]) ?? 0));
    for (const thread of [...threads].sort((a, b) => a - b)) named("thread_name", thread, measured ? `thread ${thread}` : "averages");
    for (const slice of slices) traceEvents.push(...sliceEvents(pid, step, listOf(slice)));
  }
  return { displayTimeUnit: "ns", traceEvents };
}

function sliceEvents(pid, step, [thread, at, layer, begin, work, wait, operations]) {
  const phase = step.phases[at];
  if (!isObject(phase) || [thread, begin, work, wait].some((value) => numberOf(value) === null)) return [];
  const words = listOf(phase.operations).map(textOf);
  const event = (name, cat, ts, dur, args = {}) => ({ ph: "X", name, cat, pid, tid: thread, ts, dur, args });
  const events = [event(words.join(", "), "phase", begin, work + wait, { layer, rows: phase.rows, kernels: phase.kernels, bound: phase.bound, of_limit: phase.of_limit, gb_per_s: phase.gb_per_s, gflop_per_s: phase.gflop_per_s })];
  let start = begin;
  for (const [i, micros] of listOf(operations).entries()) {
    events.push(event(words[i] ?? "", "operation", start, numberOf(micros) ?? 0));
    start += numberOf(micros) ?? 0;
  }
  if (wait > 0) events.push(event("wait at the barrier", "wait", begin + work, wait));
  return events;
}

const THREADS = 16; // rows of the chart; the saved timeline has all threads

// One row per thread: work in the colours of the operations, and waits at barriers.
function timelineChart(step, title) {
  const slices = step.timeline.slices.filter((slice) => [0, 1, 3, 4, 5].every((at) => numberOf(slice?.[at]) !== null) && isObject(step.phases[slice[1]]));
  const threads = [...new Set(slices.map(([thread]) => thread))].sort((a, b) => a - b);
  const length = slices.reduce((most, [, , , begin, work, wait]) => Math.max(most, begin + work + wait), 1e-9);
  const box = { left: 70, top: 8, row: 22, width: 900 };
  const rows = threads.slice(0, THREADS);
  const height = box.top + rows.length * box.row + 30;
  const x = (micros) => box.left + (box.width * micros) / length;
  const families = step.phases.map((phase) => (isObject(phase) ? familyOfWords(listOf(phase.operations).map(textOf)) : "sum"));
  const paths = new Map();
  const busy = new Map(threads.map((thread) => [thread, 0]));
  for (const [thread, phase, , begin, work, wait] of slices) {
    busy.set(thread, busy.get(thread) + work);
    const row = rows.indexOf(thread);
    if (row < 0) continue;
    const y = box.top + row * box.row;
    const bar = (family, from, to) => paths.set(family, `${paths.get(family) ?? ""}M${x(from).toFixed(2)} ${y}H${x(to).toFixed(2)}v${box.row - 5}H${x(from).toFixed(2)}z`);
    bar(families[phase], begin, begin + work);
    if (wait > 0) bar("wait", begin + work, begin + work + wait);
  }
  const share = (thread) => `${((100 * busy.get(thread)) / length).toFixed(0)} % working`;
  const named = step.timeline.measured ? (thread) => `thread ${thread}` : () => "averages";
  return svg(
    "svg",
    { width: 1080, height, viewBox: `0 0 1080 ${height}`, role: "img", "aria-label": `Timeline of ${title}: ${threads.map((thread) => `${named(thread)} ${share(thread)}`).join(", ")}`, class: "timeline" },
    ...[...paths].map(([family, d]) => svg("g", { class: family }, svg("path", { d, class: family === "wait" ? "waiting" : "working" }))),
    ...rows.flatMap((thread, i) => [svg("text", { x: box.left - 8, y: box.top + i * box.row + 13, class: "tick end" }, named(thread)), svg("text", { x: box.left + box.width + 8, y: box.top + i * box.row + 13, class: "tick" }, share(thread))]),
    svg("text", { x: box.left, y: height - 8, class: "tick" }, `One step of ${figures(length / 1000)} ms: coloured where a thread works, grey where it waits at a barrier${threads.length > rows.length ? `; the first ${rows.length} of ${threads.length} threads` : ""}`),
  );
}
