// Text files of a message: reading them, and their form in the prompt.

export const MAX_BYTES = 2_000_000; // per file
export const MAX_FILES = 20; // per message
export const MAX_TOTAL = 4_000_000; // characters of all files of a message

// "3.1 KB"
export function bytes(count) {
  if (count < 1000) return `${count} B`;
  return count < 999_500 ? `${(count / 1000).toFixed(count < 99_950 ? 1 : 0)} KB` : `${(count / 1e6).toFixed(1)} MB`;
}

// A code block whose fence is longer than any run of backticks in the text.
export function fenced(text, language) {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
  const mark = "`".repeat(longest + 1);
  return `${mark}${language}\n${text}\n${mark}`;
}

export const extensionOf = (name) => /\.([a-z\d+#_-]{1,12})$/i.exec(name)?.[1].toLowerCase() ?? "";

// The prompt text of a message: each file's name and its text in a fence, then the message's text.
export function promptText({ content, files }) {
  if (!files?.length) return content;
  const blocks = files.map(({ name, text }) => `File: ${name}\n\n${fenced(text.replace(/\n$/, ""), extensionOf(name))}`);
  return [...blocks, content].filter(Boolean).join("\n\n");
}

// Makes a name one line without bidirectional overrides.
const cleanName = (name) => name.replace(/[\p{Cc}\u2028\u2029\u202a-\u202e\u2066-\u2069]/gu, " ").trim().slice(0, 200) || "file";

// Validates files from storage or an import. Keeps only names and texts; undefined if none is
// valid.
export function cleanFiles(list) {
  if (!Array.isArray(list)) return undefined;
  const files = list.filter((file) => typeof file?.name === "string" && typeof file.text === "string").slice(0, MAX_FILES);
  return files.length > 0 ? files.map(({ name, text }) => ({ name: cleanName(name), text })) : undefined;
}

// Decodes UTF-8, UTF-16 with a byte order mark, or Windows-1252. Returns null for binary data.
export function decodeText(data) {
  const [first, second] = data;
  const wide = first === 0xff && second === 0xfe ? "utf-16le" : first === 0xfe && second === 0xff ? "utf-16be" : null;
  if (wide) return textOrNull(new TextDecoder(wide).decode(data));
  try {
    return textOrNull(new TextDecoder("utf-8", { fatal: true }).decode(data));
  } catch {
    const text = textOrNull(new TextDecoder("windows-1252").decode(data));
    // Control characters are in compressed data, but not in text.
    return text === null || /[\u0001-\u0008\u000e-\u001a\u001c-\u001f\u007f]/.test(text) ? null : text;
  }
}

const textOrNull = (text) => (text.includes("\0") || text.startsWith("%PDF-") ? null : text.replace(/\r\n?/g, "\n"));

// Reads a File of the browser. Returns { name, text }, or throws an error for the user.
export async function readFile(file) {
  const name = cleanName(file.name);
  if (file.size > MAX_BYTES) throw new Error(`${name} has ${bytes(file.size)}. An attached file can have up to ${bytes(MAX_BYTES)}.`);
  let data;
  try {
    data = new Uint8Array(await file.arrayBuffer());
  } catch {
    throw new Error(`${name} cannot be read. If it is a folder, attach the files in it.`);
  }
  if (data.length === 0) throw new Error(`${name} is empty.`);
  const text = decodeText(data);
  if (text === null) throw new Error(`${name} is not a text file. Copy its text and paste it here.`);
  return { name, text };
}
