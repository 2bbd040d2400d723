//! What is to be laid out: boxes and wires, before they have places.

/// A drawing without coordinates.
#[derive(Default)]
pub(crate) struct Sketch {
    pub(crate) items: Vec<Item>,
    pub(crate) wires: Vec<Wire>,
    /// Whether the residual stream runs through it.
    pub(crate) spine: bool,
    /// Phases: bands behind the items.
    pub(crate) phases: usize,
}

/// How an item looks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// A card with a title and lines.
    Card,
    /// A small pill: inputs and outputs.
    Pill,
    /// A value cut into views: a part for each.
    Split,
    /// A sum on the residual stream.
    Sum,
    /// A cache stream, beside the ranks.
    Cylinder,
}

/// A box.
pub(crate) struct Item {
    pub(crate) form: Form,
    /// Index in the block's operations; none for what only explains.
    pub(crate) operation: Option<usize>,
    pub(crate) family: &'static str,
    pub(crate) title: String,
    pub(crate) lines: Vec<String>,
    /// Lines that an exact drawing has and a document leaves out: names of kernels.
    pub(crate) fine: Vec<String>,
    /// What happens before and after, as strips at the top and at the bottom.
    pub(crate) before: Vec<String>,
    pub(crate) after: Vec<String>,
    /// `absorbed` or `naive` where it works on those rows only.
    pub(crate) lane: Option<&'static str>,
    /// Whether it is drawn pale: the model, or the step, does not take it.
    pub(crate) pale: bool,
    pub(crate) phase: usize,
    /// What is read aloud.
    pub(crate) label: String,
    /// The parts of a split, as the labels of its wires name them.
    pub(crate) parts: Vec<String>,
}

impl Item {
    pub(crate) fn new(form: Form, family: &'static str, title: impl Into<String>) -> Item {
        Item {
            form,
            operation: None,
            family,
            title: title.into(),
            lines: Vec::new(),
            fine: Vec::new(),
            before: Vec::new(),
            after: Vec::new(),
            lane: None,
            pale: false,
            phase: 0,
            label: String::new(),
            parts: Vec::new(),
        }
    }

    /// Left and right end of each part of a split, from its left end.
    pub(crate) fn part_ends(&self) -> Vec<(f64, f64)> {
        let mut at = 0.0;
        self.parts
            .iter()
            .map(|part| {
                let left = at;
                at += part.chars().count() as f64 * SMALL + 20.0;
                (left, at)
            })
            .collect()
    }

    /// Whether it stands among the others of its rank.
    pub(crate) fn stands(&self) -> bool {
        matches!(self.form, Form::Card | Form::Pill | Form::Split)
    }

    /// Width and height.
    pub(crate) fn size(&self) -> (f64, f64) {
        let text = |line: &String, letter: f64| line.chars().count() as f64 * letter;
        let widest = |lines: &[String], letter| lines.iter().map(|l| text(l, letter)).fold(0.0, f64::max);
        match self.form {
            Form::Sum => (2.0 * SUM_RADIUS, 2.0 * SUM_RADIUS),
            Form::Pill => (text(&self.title, SMALL) + 26.0, 24.0),
            Form::Split => (self.part_ends().last().map_or(40.0, |last| last.1), 24.0),
            Form::Cylinder => (142.0, 88.0),
            Form::Card => {
                let lane = self.lane.map_or(0.0, |lane| lane.len() as f64 * SMALL + 18.0);
                let strips = widest(&self.before, SMALL).max(widest(&self.after, SMALL)) + 34.0;
                let lines = widest(&self.lines, SMALL).max(widest(&self.fine, SMALL)) + 30.0;
                let title = text(&self.title, TITLE) + 30.0 + lane;
                let height = 34.0
                    + LINE * (self.lines.len() + self.fine.len()) as f64
                    + STRIP * (self.before.len() + self.after.len()) as f64;
                (title.max(strips).max(lines).clamp(128.0, 380.0), height + 2.0)
            }
        }
    }
}

/// Radius of a sum on the residual stream.
pub(crate) const SUM_RADIUS: f64 = 12.0;
/// Height of a line of a card.
pub(crate) const LINE: f64 = 15.0;
/// Height of a strip at a card's top or bottom.
pub(crate) const STRIP: f64 = 18.0;
/// Width of a letter of a title, and of the fixed-width small text.
const TITLE: f64 = 8.7;
const SMALL: f64 = 6.7;

/// An end of a wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Item(usize),
    /// The residual stream.
    Spine,
}

/// What a wire carries.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Value,
    Cache,
}

/// A wire from where a value is made to where it is read.
pub(crate) struct Wire {
    pub(crate) from: End,
    pub(crate) to: End,
    pub(crate) label: String,
    pub(crate) kind: Kind,
    pub(crate) pale: bool,
}
