// The line below the field: used context, cached part of the prompt, tokens per second.

import { rateOf, tokensSoFar } from "./answer.js";
import { $, h, rate, whole } from "./dom.js";
import { pathOf } from "./tree.js";

export function showMeter(chat) {
  const line = $("meter");
  const { contextSize } = chat.server;
  const messages = pathOf(chat.conversation).filter((message) => message.role === "assistant");
  const liveOf = (message) => chat.answerIn(message)?.live ?? null;
  const message = messages.findLast((entry) => tokensSoFar(entry, liveOf(entry)));
  const live = message ? liveOf(message) : null;
  const tokens = message ? tokensSoFar(message, live) : null;
  // Includes the draft once the server has counted its tokens.
  const typed = chat.length?.count ?? null;
  const used = typed ?? (tokens ? tokens.prompt + tokens.completion : 0);
  const speed = message && rateOf(message, live);
  const key = [contextSize, used, typed, tokens?.cached, speed?.toFixed(1)].join();
  if (line.dataset.key === key) return;
  line.dataset.key = key;
  const parts = [];
  if (contextSize > 0) parts.push(context(used, tokens?.cached ?? 0, contextSize, typed !== null));
  if (speed) parts.push(h("span", {}, `${rate(speed)} tokens/s`));
  if (tokens?.cached) parts.push(h("span", { title: "Part of the last prompt that was in the prefix cache" }, `cache ${Math.round((100 * tokens.cached) / Math.max(1, tokens.prompt))} %`));
  line.replaceChildren(...parts);
}

function context(used, cached, size, typed) {
  const share = Math.min(1, used / size);
  const fill = (kind, value) => {
    const part = h("span", { class: `bar-fill ${kind}` });
    part.style.width = `${100 * Math.max(0, Math.min(1, value))}%`;
    return part;
  };
  const bar = h("span", { class: `context-bar${share > 0.9 ? " full" : ""}`, role: "meter", "aria-label": "Context in use", "aria-valuemin": 0, "aria-valuemax": size, "aria-valuenow": used, "aria-valuetext": `${whole(used)} of ${whole(size)} tokens, ${whole(cached)} of them from the cache` },
    fill("cached", Math.min(cached, used) / size), fill("", (used - Math.min(cached, used)) / size));
  return h("span", { class: "context", title: `${whole(used)} of ${whole(size)} tokens of context; green: from the cache` }, bar, `${whole(used)} / ${whole(size)}`, typed ? h("span", {}, "with this message") : null);
}
