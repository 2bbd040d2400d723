// The state of the server: readiness, models, context length.

import { ApiError, getJson } from "./api.js";
import { askKey, hideNotice, showLoading, showUnreachable } from "./notices.js";

export class Server {
  name = "";
  model = "";
  models = [];
  contextSize = 0;
  defaults = {};
  contexts = new Map(); // model name → context length, known only for loaded models

  // `wanted` returns the name of the model that the user has chosen, if any.
  constructor(changed, wanted) {
    this.changed = changed;
    this.wanted = wanted;
  }

  // The model that answers, or "" if the server has only one.
  get chosen() {
    if (this.models.length < 2) return "";
    return this.models.includes(this.wanted()) ? this.wanted() : this.model;
  }

  // Waits until the server is ready, and shows the reason if it is not. Then reads models and
  // context.
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

  // Called when an answer arrives: its model is loaded now, so its context length can be read.
  answers() {
    // A failed request is repeated by the next `read`.
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

// Ignores errors, since a server may lack this address, except for a missing key.
function orNothing(error) {
  if (error instanceof ApiError && error.kind === "key") throw error;
  return null;
}
