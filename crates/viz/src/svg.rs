//! A view as a standalone SVG file for documents, light or dark by the reader's preference.

use crate::data::{Drawing, DrawingView};
use crate::scene::escape;
use crate::style;
use std::fmt::Write;

impl Drawing {
    /// `view` as SVG.
    pub fn svg(&self, view: &DrawingView) -> String {
        let (width, height) = (view.width, view.height);
        let name = self.model.name.as_deref().unwrap_or(&self.model.config.architecture);
        let title = format!(
            "{} of {name}{}",
            view.stage,
            view.formulation.map_or(String::new(), |form| format!(", {form} formulation"))
        );
        let mut out = String::new();
        // Writing to a `String` cannot fail.
        let _ = write!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" role=\"img\" class=\"latent\">\n<title>{}</title>\n<style>\n{}</style>\n\
             <rect width=\"{width}\" height=\"{height}\" class=\"paper\"/>\n",
            escape(&title),
            style::of_svg()
        );
        // The residual stream between blocks first, so that blocks are drawn over it.
        view.scene.iter().for_each(|primitive| primitive.write(&mut out));
        for placed in &view.blocks {
            let _ = writeln!(out, "<g transform=\"translate({} {})\">", placed.x, placed.y);
            self.blocks[placed.block].scene.iter().for_each(|primitive| primitive.write(&mut out));
            out.push_str("</g>\n");
        }
        out.push_str("</svg>\n");
        out
    }
}
