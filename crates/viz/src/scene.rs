//! What is drawn: a few kinds of marks with classes, written as SVG here and by the page's script.

use serde::Serialize;
use std::fmt::Write;

/// One mark. Classes are styled by `scene.css`; all text is text, never markup.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "mark")]
pub enum Mark {
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
        #[serde(skip_serializing_if = "is_zero")]
        r: f64,
        /// Classes.
        class: String,
    },
    /// A line of text.
    Text {
        /// Where it is anchored.
        x: f64,
        /// Baseline.
        y: f64,
        /// The text.
        text: String,
        /// Classes; `middle` and `end` set the anchor.
        class: String,
    },
    /// A path.
    Path {
        /// Its commands.
        d: String,
        /// Classes.
        class: String,
    },
    /// The marks of one operation, which can be pointed at.
    Operation {
        /// Index in the block's operations.
        operation: usize,
        /// Classes.
        class: String,
        /// What is read aloud.
        label: String,
        /// Its marks.
        marks: Vec<Mark>,
    },
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(number: &f64) -> bool {
    *number == 0.0
}

/// To a tenth: finer than a screen shows.
pub(crate) fn round(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

impl Mark {
    pub(crate) fn rect((x, y, w, h): (f64, f64, f64, f64), r: f64, class: &str) -> Mark {
        Mark::Rect { x: round(x), y: round(y), w: round(w), h: round(h), r, class: class.to_owned() }
    }

    pub(crate) fn text(x: f64, y: f64, text: impl Into<String>, class: &str) -> Mark {
        Mark::Text { x: round(x), y: round(y), text: text.into(), class: class.to_owned() }
    }

    pub(crate) fn path(d: String, class: &str) -> Mark {
        Mark::Path { d, class: class.to_owned() }
    }

    /// Appends it as SVG.
    pub(crate) fn write(&self, out: &mut String) {
        // writing to a String cannot fail
        let _ = match self {
            Mark::Rect { x, y, w, h, r, class } => writeln!(
                out,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" rx=\"{r}\" class=\"{}\"/>",
                escape(class)
            ),
            Mark::Text { x, y, text, class } => {
                writeln!(out, "<text x=\"{x}\" y=\"{y}\" class=\"{}\">{}</text>", escape(class), escape(text))
            }
            Mark::Path { d, class } => {
                writeln!(out, "<path d=\"{}\" class=\"{}\"/>", escape(d), escape(class))
            }
            Mark::Operation { class, label, marks, .. } => {
                let _ = writeln!(out, "<g class=\"{}\"><title>{}</title>", escape(class), escape(label));
                marks.iter().for_each(|mark| mark.write(out));
                writeln!(out, "</g>")
            }
        };
    }
}

/// Text as it may stand in XML and HTML, inside of elements and of quoted attributes; control characters, which XML forbids,
/// become question marks.
pub(crate) fn escape(text: &str) -> String {
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
