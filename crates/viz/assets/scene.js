// From marks to SVG elements.
function paintMark(mark, enter) {
  switch (mark.mark) {
    case "rect":
      return svg("rect", { x: mark.x, y: mark.y, width: mark.w, height: mark.h, rx: mark.r ?? 0, class: mark.class });
    case "text":
      return svg("text", { x: mark.x, y: mark.y, class: mark.class }, mark.text);
    case "path":
      return svg("path", { d: mark.d, class: mark.class });
    default: {
      const group = svg(
        "g",
        { class: mark.class, role: "button", tabindex: -1, "aria-label": mark.label },
        ...mark.marks.map((inner) => paintMark(inner, enter)),
      );
      enter(group, mark.operation);
      return group;
    }
  }
}
