// The tab "Model": activity of the server, time of each phase of a step, and the model's drawing.

import { ApiError, allowDrawing, address, getJson, hasKey } from "./api.js";
import { shareBar, sparkline } from "./charts.js";
import { $, finite, h, rate, whole } from "./dom.js";
import { askKey } from "./notices.js";

const EVERY = 1000; // ms between polls
const HISTORY = 90; // values per chart
const RESORT = 12; // polls between two sorts of the phases
const SHOWN = 14; // phases shown before "all" is chosen

export class ModelTab {
  // server: the models, and the chosen one.
  constructor(server) {
    this.server = server;
    this.forget();
    this.all = false;
    document.addEventListener("visibilitychange", () => this.poll());
  }

  forget() {
    this.history = { tokens: [], prompt: [], running: [], used: [] };
  }

  // The address of data about the chosen model.
  of(path) {
    return this.model ? `${path}?model=${encodeURIComponent(this.model)}` : path;
  }

  // Switches to the chosen model.
  follow() {
    const { chosen } = this.server;
    if (chosen === this.model) return;
    this.model = chosen;
    this.forget();
    this.link.href = address(this.of("latent/graph")).href;
    this.showDrawing();
  }

  show(visible) {
    this.visible = visible;
    if (!visible) return clearTimeout(this.timer);
    if (!this.built) this.build();
    return this.poll();
  }

  build() {
    this.built = true;
    this.tiles = h("dl", { class: "tiles", "aria-label": "Now" });
    this.blocks = h("section", { class: "card", "aria-label": "KV cache", hidden: true });
    this.profile = h("section", { class: "card", "aria-label": "Profile" });
    this.quiet = h("p", { class: "quiet", role: "status" }, "Asking the server…");
    this.link = h("a", { target: "_blank", rel: "noopener" }, "Open in a new tab");
    this.drawing = h("section", { class: "card", "aria-label": "Drawing" }, h("header", {}, h("h2", {}, "Drawing"), h("p", {}, this.link)));
    $("model").append(h("div", { class: "model-page" }, this.quiet, this.tiles, this.blocks, this.profile, this.drawing));
    this.follow();
  }

  // A frame does not report why it failed, so the page sends a request first.
  async showDrawing() {
    if (hasKey()) allowDrawing();
    const [place, path] = [this.drawing, this.of("latent/graph")];
    place.querySelectorAll(".drawing, .quiet").forEach((element) => element.remove());
    try {
      const response = await fetch(address(path), { cache: "no-store", headers: { Accept: "text/html" } });
      response.body?.cancel().catch(() => {});
      if (path !== this.of("latent/graph")) return; // another model was chosen meanwhile
      if (!response.ok) throw new ApiError(response.status === 401 ? "key" : "server", "");
      // Without allow-same-origin the frame cannot access the conversations or the key.
      place.append(h("iframe", { sandbox: "allow-scripts allow-downloads", allow: "fullscreen", class: "drawing", src: address(path).href, title: "Drawing of the model", loading: "lazy" }));
    } catch (error) {
      if (path !== this.of("latent/graph")) return;
      if (error.kind === "key" && !hasKey()) askKey(() => this.showDrawing());
      place.append(h("p", { class: "quiet" }, error.kind === "key" ? "The drawing needs the API key." : "The server has no drawing of this model."));
    }
  }

  async poll() {
    clearTimeout(this.timer);
    if (!this.visible || document.hidden || this.polling) return;
    this.polling = true;
    this.follow();
    try {
      const [stats, profile] = await Promise.all([getJson(this.of("latent/stats")), getJson(this.of("latent/profile")).catch(() => null)]);
      this.quiet.hidden = true;
      this.showStats(stats);
      this.showProfile(profile);
    } catch (error) {
      this.quiet.hidden = false;
      this.quiet.textContent = error.kind === "network" ? "Server unreachable. Showing the last known figures." : error.kind === "key" ? "The figures need the API key." : `No live figures: ${error.message}`;
      if (error.kind === "key") askKey(() => this.poll());
    }
    this.polling = false;
    this.timer = setTimeout(() => this.poll(), EVERY);
  }

  showStats(stats) {
    const { history } = this;
    const note = (key, value) => {
      history[key].push(finite(value) ? value : 0);
      if (history[key].length > HISTORY) history[key].shift();
      return history[key];
    };
    const kv = stats.kv_blocks ?? {};
    const number = (value, show = whole) => (finite(value) ? show(value) : "–");
    const tile = (name, value, unit, values, most) => h("div", { class: "tile" }, h("dt", {}, name), h("dd", {}, value, unit ? h("small", {}, unit) : null), values ? h("dd", { "aria-hidden": "true" }, sparkline(values, most)) : null);
    this.tiles.replaceChildren(
      tile("Generation", number(stats.tokens_per_second, rate), "tokens/s", note("tokens", stats.tokens_per_second)),
      tile("Prompt processing", number(stats.prompt_tokens_per_second, rate), "tokens/s", note("prompt", stats.prompt_tokens_per_second)),
      tile("Running", number(stats.running), finite(stats.slots) ? `of ${whole(stats.slots)}, ${number(stats.waiting)} waiting` : `${number(stats.waiting)} waiting`, note("running", stats.running), Math.max(1, stats.slots ?? 1)),
      tile("KV blocks", number(kv.used), finite(kv.total) ? `of ${whole(kv.total)}` : "", note("used", kv.used), Math.max(1, kv.total ?? 1)),
      tile("Steps", number(stats.steps), finite(stats.batch) ? `last step: batch of ${whole(stats.batch)}` : ""),
    );
    this.showBlocks(kv);
  }

  showBlocks({ total, used, cached, tokens }) {
    this.blocks.hidden = !(total > 0);
    if (!(total > 0)) return;
    const free = Math.max(0, total - used - cached);
    const part = (kind, value) => {
      const bar = h("div", { class: kind });
      bar.style.width = `${(100 * value) / total}%`;
      return bar;
    };
    const entry = (kind, name, value) => h("span", {}, h("i", { class: kind }), `${name} ${whole(value)}`);
    this.blocks.replaceChildren(
      h("header", {}, h("h2", {}, "KV cache"), h("p", {}, finite(tokens) ? `${whole(total)} blocks of ${whole(tokens)} tokens` : `${whole(total)} blocks`)),
      h("div", { class: "blocks-bar", role: "img", "aria-label": `${whole(used)} blocks used, ${whole(cached)} cached, ${whole(free)} free` }, part("used", used), part("cached", cached)),
      h("div", { class: "legend" }, entry("used", "Used", used), entry("cached", "Cached prefixes", cached), entry("", "Free", free)),
    );
  }

  // Slowest phases first. Sorted only every RESORT polls, so that rows stay readable.
  inOrder(phases) {
    const places = new Map(this.order?.names.map((name, i) => [name, i]));
    const known = this.order?.left > 0 && phases.length === places.size && phases.every(({ name }) => places.has(name));
    if (known) {
      this.order.left -= 1;
      return [...phases].sort((a, b) => places.get(a.name) - places.get(b.name));
    }
    const sorted = [...phases].sort((a, b) => b.share - a.share);
    this.order = { names: sorted.map(({ name }) => name), left: RESORT };
    return sorted;
  }

  showProfile(profile) {
    const phases = (profile?.phases ?? []).filter((phase) => typeof phase?.name === "string" && finite(phase.share) && finite(phase.microseconds));
    const head = h("header", {}, h("h2", {}, "Profile"));
    if (phases.length === 0) {
      this.profile.replaceChildren(head, h("p", { class: "quiet" }, profile ? "No step has run yet. Send a message and look again." : "This server has no live profile."));
      return;
    }
    head.append(h("p", {}, `${duration(profile.step_microseconds)} per step${finite(profile.rows) ? `, batch of ${figure(profile.rows)}` : ""}`));
    const order = this.inOrder(phases);
    const most = Math.max(...order.map((phase) => phase.share), 1e-9);
    const rows = (this.all ? order : order.slice(0, SHOWN)).map(({ name, share, microseconds }) => h("tr", {}, h("td", { class: "name" }, name), h("td", { class: "track" }, shareBar(share, most, name)), h("td", { class: "n" }, `${(100 * share).toFixed(1)} %`), h("td", { class: "n" }, duration(microseconds))));
    const focused = document.activeElement?.id === "all-phases";
    const more = order.length > SHOWN ? h("button", { type: "button", id: "all-phases", class: "text-button", "aria-expanded": String(this.all), onclick: () => {
      this.all = !this.all;
      this.showProfile(profile);
      $("all-phases").focus();
    } }, this.all ? "Fewer" : `All ${order.length} phases`) : "";
    this.profile.replaceChildren(head, h("table", { class: "phases" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Phase"), h("td"), h("th", { scope: "col", class: "n" }, "Share"), h("th", { scope: "col", class: "n" }, "Time"))), h("tbody", {}, rows)), more);
    if (focused) $("all-phases")?.focus();
  }
}

const figure = (value) => (Number.isInteger(value) ? whole(value) : value.toFixed(1));

function duration(microseconds) {
  if (!finite(microseconds)) return "–";
  if (microseconds >= 1e6) return `${(microseconds / 1e6).toFixed(2)} s`;
  if (microseconds >= 1000) return `${(microseconds / 1000).toFixed(2)} ms`;
  return `${microseconds >= 10 ? whole(microseconds) : microseconds.toFixed(1)} µs`;
}
