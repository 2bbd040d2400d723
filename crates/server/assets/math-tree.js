// The MathML tree that the TeX parser creates.

export class MathError extends Error {}

export const node = (tag, children, attributes = {}) => ({ tag, attributes, children });
export const leaf = (tag, text, attributes = {}) => ({ tag, attributes, text });
export const row = (children) => (children.length === 1 ? children[0] : node("mrow", children));
export const fence = (text) => leaf("mo", text, { fence: "true", stretchy: "true" });
