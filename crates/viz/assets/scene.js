// Converts primitives to SVG elements.
function renderPrimitive(primitive, enter) {
  switch (primitive.type) {
    case "rect":
      return svg("rect", { x: primitive.x, y: primitive.y, width: primitive.w, height: primitive.h, rx: primitive.r ?? 0, class: primitive.class });
    case "text":
      return svg("text", { x: primitive.x, y: primitive.y, class: primitive.class }, primitive.text);
    case "path":
      return svg("path", { d: primitive.d, class: primitive.class });
    default: {
      const group = svg(
        "g",
        { class: primitive.class, role: "button", tabindex: -1, "aria-label": primitive.label },
        ...primitive.children.map((inner) => renderPrimitive(inner, enter)),
      );
      enter(group, primitive.operation);
      return group;
    }
  }
}
