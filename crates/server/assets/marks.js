// Marks the words of a search in a message, without changing its elements.

const NAME = "found";

export function markWords(element, words) {
  const { highlights } = CSS;
  if (!highlights) return;
  const ranges = [];
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const text = node.data.toLowerCase();
    for (const word of words) {
      for (let at = text.indexOf(word); at >= 0 && ranges.length < 1000; at = text.indexOf(word, at + word.length)) {
        // If the lower-case text has another length, offsets would differ.
        if (text.length !== node.data.length) break;
        const range = document.createRange();
        range.setStart(node, at);
        range.setEnd(node, at + word.length);
        ranges.push(range);
      }
    }
  }
  highlights.set(NAME, new Highlight(...ranges));
}

export const clearMarks = () => CSS.highlights?.delete(NAME);
