//! The layout graph: vertices and edges without coordinates.

/// The layout graph of one block.
#[derive(Default)]
pub(crate) struct LayoutGraph {
    pub(crate) vertices: Vec<Vertex>,
    pub(crate) edges: Vec<LayoutEdge>,
    /// Whether the residual stream is drawn at its left.
    pub(crate) has_residual: bool,
    /// The number of phases, drawn as bands.
    pub(crate) phases: usize,
}

/// The shape of a vertex.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum VertexKind {
    /// A card with a title and lines.
    Card,
    /// A pill: an input or an output of the model.
    Pill,
    /// A value split into views, one segment each.
    Split,
    /// An addition to the residual stream.
    Sum,
    /// A KV layer, to the right of the ranks.
    Cylinder,
}

pub(crate) struct Vertex {
    pub(crate) kind: VertexKind,
    /// Index into the block's operations; none for inputs, outputs and KV layers.
    pub(crate) operation: Option<usize>,
    pub(crate) family: &'static str,
    pub(crate) title: String,
    pub(crate) lines: Vec<String>,
    /// Names of kernels, which the SVG of a document omits.
    pub(crate) kernels: Vec<String>,
    /// Fused operations, as strips at the top and at the bottom.
    pub(crate) prologue: Vec<String>,
    pub(crate) epilogue: Vec<String>,
    /// `absorbed` or `naive` if only rows of that attention path use it.
    pub(crate) path: Option<&'static str>,
    /// Drawn pale: this model, or this step, does not run it.
    pub(crate) pale: bool,
    pub(crate) phase: usize,
    /// The accessible name.
    pub(crate) label: String,
    /// The segments of a split, named by the labels of its edges.
    pub(crate) parts: Vec<String>,
}

impl Vertex {
    pub(crate) fn new(kind: VertexKind, family: &'static str, title: impl Into<String>) -> Vertex {
        Vertex {
            kind,
            operation: None,
            family,
            title: title.into(),
            lines: Vec::new(),
            kernels: Vec::new(),
            prologue: Vec::new(),
            epilogue: Vec::new(),
            path: None,
            pale: false,
            phase: 0,
            label: String::new(),
            parts: Vec::new(),
        }
    }

    /// Left and right end of each segment of a split, relative to its left end.
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

    /// Whether it takes a slot in its rank.
    pub(crate) fn takes_slot(&self) -> bool {
        matches!(self.kind, VertexKind::Card | VertexKind::Pill | VertexKind::Split)
    }

    /// Width and height.
    pub(crate) fn size(&self) -> (f64, f64) {
        // Characters and not bytes, because lines contain `→` and `×`.
        let text = |line: &String, letter: f64| line.chars().count() as f64 * letter;
        let widest = |lines: &[String], letter| lines.iter().map(|l| text(l, letter)).fold(0.0, f64::max);
        match self.kind {
            VertexKind::Sum => (2.0 * SUM_RADIUS, 2.0 * SUM_RADIUS),
            VertexKind::Pill => (text(&self.title, SMALL) + 26.0, 24.0),
            VertexKind::Split => (self.part_ends().last().map_or(40.0, |last| last.1), 24.0),
            // Fixed: a cylinder's text is short and known.
            VertexKind::Cylinder => (142.0, 88.0),
            VertexKind::Card => {
                let path = self.path.map_or(0.0, |path| path.len() as f64 * SMALL + 18.0);
                let strips = widest(&self.prologue, SMALL).max(widest(&self.epilogue, SMALL)) + 34.0;
                let lines = widest(&self.lines, SMALL).max(widest(&self.kernels, SMALL)) + 30.0;
                let title = text(&self.title, TITLE) + 30.0 + path;
                let height = 34.0
                    + LINE * (self.lines.len() + self.kernels.len()) as f64
                    + STRIP * (self.prologue.len() + self.epilogue.len()) as f64;
                // Long tensor names are cut off by the maximum rather than widening the whole rank.
                (title.max(strips).max(lines).clamp(128.0, 380.0), height + 2.0)
            }
        }
    }
}

/// The x coordinate of the residual stream.
pub(crate) const RESIDUAL_X: f64 = 44.0;
/// Height of a block's header.
pub(crate) const HEADER: f64 = 58.0;
/// From a rank down to the channel of the edges that write the residual stream.
pub(crate) const WRITE_CHANNEL: f64 = 20.0;
/// From the channel of the edges that read the KV cache down to their rank.
pub(crate) const CACHE_CHANNEL: f64 = 15.0;
/// Radius of an addition to the residual stream.
pub(crate) const SUM_RADIUS: f64 = 12.0;
/// Height of a text line in a card.
pub(crate) const LINE: f64 = 15.0;
/// Height of a strip for a fused operation.
pub(crate) const STRIP: f64 = 18.0;
/// Average character width of titles and of the small monospace text.
// Text is measured without a font, so that the layout is the same on every machine.
const TITLE: f64 = 8.7;
const SMALL: f64 = 6.7;

/// One end of an edge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Endpoint {
    Vertex(usize),
    /// The residual stream.
    Residual,
}

/// What an edge carries.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum EdgeKind {
    Value,
    Cache,
}

/// An edge from the producer of a value to a consumer.
pub(crate) struct LayoutEdge {
    pub(crate) from: Endpoint,
    pub(crate) to: Endpoint,
    pub(crate) label: String,
    pub(crate) kind: EdgeKind,
    pub(crate) pale: bool,
}

impl LayoutEdge {
    /// An edge without a label: an input, an output, or the residual stream.
    pub(crate) fn plain(from: Endpoint, to: Endpoint, pale: bool) -> LayoutEdge {
        LayoutEdge { from, to, label: String::new(), kind: EdgeKind::Value, pale }
    }
}

impl LayoutGraph {
    /// Whether an edge reads or writes the residual stream.
    pub(crate) fn touches_residual(&self) -> bool {
        self.edges.iter().any(|edge| edge.from == Endpoint::Residual || edge.to == Endpoint::Residual)
    }
}
