// Merges two copies of a conversation that two tabs have changed. Messages, deletions, title, draft
// and settings have stamps; the newer version of each is kept.

import { ROOT } from "./tree.js";

// The stamp of each group of fields of a conversation, set at the last change.
const STAMPED = { titled: ["title", "named"], drafted: ["draft", "draftFiles"], settingsAt: ["settings"], trimmed: ["sentFrom"] };
// Links of the tree are merged by `relink`.
const LINKS = ["children", "choice", "picked"];

// Merges `theirs` into `mine` in place. Message objects of `mine` keep their identity, since views
// refer to them. changed: `mine` was changed; behind: `theirs` lacks something of `mine`.
export function mergeConversation(mine, theirs) {
  const fields = mergeFields(mine, theirs);
  const gone = mergeRemoved(mine, theirs);
  const nodes = mergeNodes(mine, theirs);
  const links = relink(mine, theirs);
  mine.created = Math.min(mine.created, theirs.created);
  mine.updated = Math.max(mine.updated, theirs.updated);
  return { changed: fields.changed || gone.changed || nodes.changed || links, behind: fields.behind || gone.behind || nodes.behind };
}

function mergeFields(mine, theirs) {
  const result = { changed: false, behind: false };
  for (const [stamp, names] of Object.entries(STAMPED)) {
    const [own, other] = [mine[stamp] ?? 0, theirs[stamp] ?? 0];
    if (other > own) {
      for (const name of [...names, stamp]) mine[name] = structuredClone(theirs[name]);
      // A draft is shown only in the tab in which it is typed, so it is not a visible change.
      if (stamp !== "drafted") result.changed = true;
    } else if (own > other && stamp !== "drafted") result.behind = true;
  }
  return result;
}

function mergeRemoved(mine, theirs) {
  const result = { changed: false, behind: false };
  for (const [id, at] of Object.entries(theirs.removed ?? {})) {
    if ((mine.removed?.[id] ?? 0) >= at) continue;
    mine.removed = { ...mine.removed, [id]: at };
    result.changed = true;
  }
  for (const [id, at] of Object.entries(mine.removed ?? {})) if ((theirs.removed?.[id] ?? 0) < at) result.behind = true;
  return result;
}

function mergeNodes(mine, theirs) {
  const result = { changed: false, behind: false };
  for (const [id, node] of Object.entries(theirs.nodes)) {
    const own = Object.hasOwn(mine.nodes, id) ? mine.nodes[id] : null;
    if (own && (own.rev ?? 0) >= (node.rev ?? 0)) continue;
    result.changed = true;
    if (own) replace(own, node);
    else mine.nodes[id] = { ...structuredClone(node), children: [] };
  }
  for (const [id, node] of Object.entries(mine.nodes)) {
    if (id !== ROOT && (mine.removed?.[id] ?? 0) >= (node.rev ?? 0) && mine.removed?.[id] !== undefined) delete mine.nodes[id];
    else if (!Object.hasOwn(theirs.nodes, id) || (theirs.nodes[id].rev ?? 0) < (node.rev ?? 0)) result.behind = true;
  }
  dropOrphans(mine);
  return result;
}

function replace(own, node) {
  for (const key of Object.keys(own)) if (!LINKS.includes(key)) delete own[key];
  for (const [key, value] of Object.entries(node)) if (!LINKS.includes(key)) own[key] = structuredClone(value);
}

// Deletes messages below a message that another tab has deleted.
function dropOrphans({ nodes }) {
  const linked = new Set([ROOT]);
  const below = new Map();
  for (const { id, parent } of Object.values(nodes)) {
    if (id === ROOT) continue;
    if (!below.has(parent)) below.set(parent, []);
    below.get(parent).push(id);
  }
  const todo = [ROOT];
  while (todo.length > 0) {
    for (const id of below.get(todo.pop()) ?? []) {
      if (linked.has(id)) continue;
      linked.add(id);
      todo.push(id);
    }
  }
  for (const id of Object.keys(nodes)) if (!linked.has(id)) delete nodes[id];
}

// Merges the children of both copies in the order of creation, and keeps the newer choice.
function relink(mine, theirs) {
  const { nodes } = mine;
  let changed = false;
  for (const node of Object.values(nodes)) {
    const other = Object.hasOwn(theirs.nodes, node.id) ? theirs.nodes[node.id] : null;
    const chosen = node.children[node.choice];
    const newer = other && (other.picked ?? 0) > (node.picked ?? 0);
    const children = [...new Set([...node.children, ...(other?.children ?? [])])].filter((id) => nodes[id]?.parent === node.id);
    if (children.length > node.children.length) children.sort((a, b) => nodes[a].created - nodes[b].created || (a < b ? -1 : 1));
    const at = children.indexOf(newer ? other.children[other.choice] : chosen);
    const choice = at >= 0 ? at : Math.max(0, children.length - 1);
    if (newer) node.picked = other.picked;
    if (children[choice] !== chosen || children.length !== node.children.length) changed = true;
    Object.assign(node, { children, choice });
  }
  return changed;
}
