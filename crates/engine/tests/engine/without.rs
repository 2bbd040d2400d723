//! Optional passes: plans without one of them give the same logits.

use crate::support::{all_logits, checkpoint, engine, error, side_by_side};
use latent_engine::EngineOptions;
use latent_graph::passes::{self, Precision};
use latent_testing::{ModelRecipe, RandomWeightTypes};

const TOKENS: [u32; 9] = [256, 5, 99, 300, 7, 7, 42, 511, 0];

#[test]
fn plans_without_a_pass_give_the_same_logits() {
    let folder = tempfile::tempdir().unwrap();
    let shapes: Vec<_> = latent_testing::shapes().filter(|name| name.starts_with("tiny")).collect();
    side_by_side(&shapes, |shape| {
        let path = folder.path().join(shape);
        let kind: RandomWeightTypes = "Q4_K_M".parse().unwrap();
        // Legacy files have a joined kv_b, which one of the passes splits.
        let recipe = ModelRecipe { layers: Some(2), legacy: true, ..ModelRecipe::new(shape, kind) };
        recipe.write_gguf(&path).unwrap();
        let model = checkpoint(&path);
        for (precision, most) in [(Precision::Exact, 1e-10), (Precision::Default, 1e-3)] {
            let options = |without: Vec<&'static str>| EngineOptions {
                precision,
                threads: Some(2),
                context: Some(128),
                without,
                ..EngineOptions::default()
            };
            for chunk in [1, 3, 9] {
                let expected = all_logits(&mut engine(&model, &options(Vec::new())), &TOKENS, chunk);
                let all = [passes::OPTIONAL.to_vec()];
                for without in passes::OPTIONAL.into_iter().map(|pass| vec![pass]).chain(all) {
                    let found = all_logits(&mut engine(&model, &options(without.clone())), &TOKENS, chunk);
                    // A choice of experts near a tie may differ.
                    let mut errors: Vec<f64> =
                        found.iter().zip(&expected).map(|(a, b)| error(a, b)).collect();
                    errors.sort_by(f64::total_cmp);
                    let median = errors[errors.len() / 2];
                    assert!(
                        median < most,
                        "{shape} {precision:?} chunk {chunk} without {without:?}: {median:e}"
                    );
                }
            }
        }
    });
}

#[test]
fn plans_name_the_passes_that_were_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.gguf");
    ModelRecipe::new("tiny-v3", "Q4_K_M".parse().unwrap()).write_gguf(&path).unwrap();
    let plan = |without: Vec<&'static str>| {
        let options = EngineOptions { context: Some(128), without, ..EngineOptions::default() };
        engine(&checkpoint(&path), &options).stages()[0].plans[0].to_text()
    };
    let (own, without) = (plan(Vec::new()), plan(vec!["fold_norms", "fold_epilogues"]));
    let head = |text: &str| text.lines().next().unwrap().to_owned();
    assert!(
        head(&without).ends_with("without fold_norms, fold_epilogues") && !head(&own).contains("without")
    );
    let count = |text: &str, op: &str| text.lines().filter(|line| line.contains(op)).count();
    assert!(count(&without, "rms_norm") > count(&own, "rms_norm"));
    for name in passes::OPTIONAL {
        assert_ne!(plan(vec![name]).lines().skip(1).collect::<Vec<_>>().join("\n"), "");
        assert_eq!(passes::optional(name), Ok(name));
    }
    let unknown = passes::optional("fold_norm").unwrap_err();
    assert!(unknown.contains("unknown pass") && unknown.contains("fold_norms"), "{unknown}");
    assert!(passes::optional("select_kernels").unwrap_err().contains("is required for every plan"));
}
