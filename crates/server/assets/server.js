// What is known of the server: whether it is ready, its models, its context.

import { ApiError, getJson } from "./api.js";
import { askKey, hideNotice, showLoading, showUnreachable } from "./notices.js";

export class Server {
  name = "";
  model = "";
  models = [];
  contextSize = 0;
  defaults = {};
  contexts = new Map(); // a model's name → its context, which is told only while it is loaded

  // `wanted` gives the name of the model that was chosen, if one was.
  constructor(changed, wanted) {
    this.changed = changed;
    this.wanted = wanted;
  }

  // Of several models the one that answers; "" where there is one alone.
  get chosen() {
    if (this.models.length < 2) return "";
    return this.models.includes(this.wanted()) ? this.wanted() : this.model;
  }

  // Waits until the server is ready, showing why it is not; then reads what it offers.
  async start() {
    clearTimeout(this.timer);
    try {
      await getJson("health");
      hideNotice("loading");
      hideNotice("unreachable");
      await this.read();
      this.timer = setTimeout(() => this.start(), 60_000);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.kind === "key") askKey(() => this.start());
      else if (error.kind === "loading") showLoading(error.message, error.progress);
      else if (error.kind === "network") showUnreachable();
      this.timer = setTimeout(() => this.start(), error.kind === "loading" ? 700 : 4000);
      if (error.kind === "key") clearTimeout(this.timer);
    }
  }

  // An answer comes, so that its model is loaded: what only a loaded model tells is known now.
  answers() {
    // what fails is tried again by the next reading
    if (this.contextSize === 0) this.read().catch(() => {});
  }

  async read() {
    const models = await getJson("v1/models").catch(orNothing);
    this.models = (models?.data ?? []).map(({ id }) => id).filter((id) => typeof id === "string");
    this.model = this.models[0] ?? "";
    const { chosen } = this;
    const props = await getJson(`props${chosen && `?model=${encodeURIComponent(chosen)}`}`).catch(orNothing);
    const settings = props?.default_generation_settings ?? {};
    const size = settings.n_ctx ?? props?.n_ctx ?? 0;
    if (size > 0) this.contexts.set(chosen, size);
    this.contextSize = this.contexts.get(this.chosen) ?? 0;
    this.defaults = settings.params ?? settings;
    const path = String(props?.model_alias || this.model || props?.model_path || "");
    this.name = path.split(/[\\/]/).at(-1).replace(/\.(gguf|safetensors)$/, "");
    this.changed();
  }
}

// A part that a server lacks is no failure; a key that it wants is.
function orNothing(error) {
  if (error instanceof ApiError && error.kind === "key") throw error;
  return null;
}
