//! The scene: a few kinds of primitives with CSS classes, rendered as SVG here and by the page's
//! script.

use serde::Serialize;
use std::fmt::Write;

/// One primitive. `scene.css` styles the classes. Text is never markup.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "type")]
pub enum Primitive {
    /// A rectangle.
    Rect {
        /// Left.
        x: f64,
        /// Top.
        y: f64,
        /// Width.
        w: f64,
        /// Height.
        h: f64,
        /// Radius of the corners.
        // Most rectangles have sharp corners; omitting 0 shortens the JSON.
        #[serde(skip_serializing_if = "is_zero")]
        r: f64,
        /// CSS classes.
        class: String,
    },
    /// A line of text.
    Text {
        /// Anchor.
        x: f64,
        /// Baseline.
        y: f64,
        text: String,
        /// CSS classes; `middle` and `end` set the alignment.
        class: String,
    },
    Path {
        /// SVG path commands.
        d: String,
        /// CSS classes.
        class: String,
    },
    /// The group of one operation, which can be selected.
    Operation {
        /// Index into the block's operations.
        operation: usize,
        /// CSS classes.
        class: String,
        /// The accessible name.
        label: String,
        /// The primitives of the group.
        children: Vec<Primitive>,
    },
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(number: &f64) -> bool {
    *number == 0.0
}

/// Rounds to a tenth, finer than a screen shows. It shortens the JSON, and equal blocks compare
/// equal.
pub(crate) fn round(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

impl Primitive {
    pub(crate) fn rect((x, y, w, h): (f64, f64, f64, f64), r: f64, class: &str) -> Primitive {
        Primitive::Rect { x: round(x), y: round(y), w: round(w), h: round(h), r, class: class.to_owned() }
    }

    pub(crate) fn text(x: f64, y: f64, text: impl Into<String>, class: &str) -> Primitive {
        Primitive::Text { x: round(x), y: round(y), text: text.into(), class: class.to_owned() }
    }

    pub(crate) fn path(d: String, class: &str) -> Primitive {
        Primitive::Path { d, class: class.to_owned() }
    }

    /// Appends it as SVG.
    pub(crate) fn write(&self, out: &mut String) {
        // Writing to a `String` cannot fail.
        let _ = match self {
            Primitive::Rect { x, y, w, h, r, class } => writeln!(
                out,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" rx=\"{r}\" class=\"{}\"/>",
                escape(class)
            ),
            Primitive::Text { x, y, text, class } => {
                writeln!(out, "<text x=\"{x}\" y=\"{y}\" class=\"{}\">{}</text>", escape(class), escape(text))
            }
            Primitive::Path { d, class } => {
                writeln!(out, "<path d=\"{}\" class=\"{}\"/>", escape(d), escape(class))
            }
            Primitive::Operation { class, label, children, .. } => {
                // The title is the accessible name, and a tooltip in browsers.
                let _ = writeln!(out, "<g class=\"{}\"><title>{}</title>", escape(class), escape(label));
                children.iter().for_each(|child| child.write(out));
                writeln!(out, "</g>")
            }
        };
    }
}

/// Escapes text for XML and HTML, in elements and quoted attributes. Control characters, which XML
/// forbids, become question marks. Names come from untrusted files.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c if c.is_control() => safe.push('?'),
            c => safe.push(c),
        }
    }
    safe
}
