//! Reports: one HTML file of charts without scripts, in the style of the model drawings.

mod chart;
mod section;

use crate::evaluation::Evaluation;
use latent_viz::{escape, static_page};

const STYLE: &str = include_str!("report.css");

/// The page of these results, in order.
pub fn report(evaluations: &[Evaluation]) -> String {
    let mut files: Vec<&str> = evaluations.iter().map(|evaluation| evaluation.model.file.as_str()).collect();
    files.dedup();
    let title = format!("Evaluation of {}", files.join(", "));
    let sections: String = evaluations.iter().map(section::section).collect();
    let body = format!("<main>\n<h1>{}</h1>\n{sections}</main>", escape(&title));
    static_page(&title, STYLE, &body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluation::{EvaluatedModel, EvaluationResult};
    use crate::routing::{LayerLoad, RoutingStatistics, StepExperts};

    #[test]
    fn pages_are_self_contained_and_escape_names() {
        let load = LayerLoad { layer: 1, load: vec![0.7, 0.3], imbalance: 1.4, ..LayerLoad::default() };
        let step =
            |rows: usize, neighbours| StepExperts { rows, neighbours, apart: 1.6, ..StepExperts::default() };
        let steps = vec![step(1, 1.0), step(2, 1.2)];
        let evaluation = Evaluation {
            model: EvaluatedModel {
                file: "<script>alert(1)</script>.gguf".into(),
                ..EvaluatedModel::default()
            },
            input: "a&b".into(),
            found: EvaluationResult::Routing(RoutingStatistics { tokens: 9, layers: vec![load], steps }),
        };
        let page = report(&[evaluation]);
        assert!(!page.contains("<script") && page.contains("&lt;script&gt;") && page.contains("a&amp;b"));
        assert!(page.matches("<svg").count() == 2 && page.contains("default-src 'none'"));
        assert!(!page.contains("http://") && !page.contains("https://"), "nothing is fetched");
    }
}
