//! Types of the KV cache over several blocks, and kinds of routers.

use super::{MlaVariant, StagedModel, errors, load, random_model, run};
use crate::GpuBackend;
use latent_backend::Backend;
use latent_backend_reference::ReferenceBackend;
use latent_graph::ModelConfig;
use latent_graph::config::Gating;
use latent_graph::passes::{CacheForm, MlaChoice, Precision};
use latent_types::{CacheType, TensorType};

/// The cache has three blocks, so that attention of the later steps reads it in three splits. The
/// model has no experts: otherwise rounding could change which ones a row gets, and rows could not
/// be compared.
#[test]
fn caches_of_several_blocks_are_read_as_they_were_written() {
    let Some(device) = crate::testing::device() else { return };
    let gpu = GpuBackend::on(device);
    let (_folder, path) = random_model("tiny-dense", TensorType::F32);
    let types =
        [(CacheType::F32, 1e-9), (CacheType::F16, 1e-5), (CacheType::Bf16, 1e-3), (CacheType::Int8, 1e-3)];
    for (mla, form) in [
        (MlaChoice::Absorbed, CacheForm::Latent),
        (MlaChoice::Naive, CacheForm::Latent),
        (MlaChoice::Naive, CacheForm::Expanded),
    ] {
        let steps = [70, 64, 1, 6];
        let way = |cache| MlaVariant { mla, form, cache };
        let mut reference = load(&ReferenceBackend::default(), &path, way(CacheType::F32)).unwrap();
        let expected = run(&mut *reference, way(CacheType::F32), &steps);
        // Only latents can be cached in int8.
        for (cache, bound) in &types[..if form == CacheForm::Latent { 4 } else { 3 }] {
            let mut model = load(&gpu, &path, way(*cache)).unwrap();
            let found = run(&mut *model, way(*cache), &steps);
            let errors = errors(&found, &expected);
            let worst = errors[errors.len() - 1];
            assert!(worst <= *bound, "{mla} {form:?} {cache}: {worst:e}");
            let repeated = *cache == CacheType::F32 && mla == MlaChoice::Absorbed;
            assert!(
                !repeated || found == run(&mut *model, way(*cache), &steps),
                "{mla} {form:?} {cache}: other bits"
            );
        }
    }
}

#[test]
fn every_kind_of_router_chooses_as_the_reference_does() {
    let Some(device) = crate::testing::device() else { return };
    let gpu = GpuBackend::on(device);
    let (_folder, path) = random_model("tiny-v3", TensorType::F32);
    let way = MlaVariant { mla: MlaChoice::Absorbed, form: CacheForm::Latent, cache: CacheType::F32 };
    let steps = [18, 1];
    let mut all = Vec::new();
    for gating in [Gating::Softmax, Gating::Sigmoid, Gating::SoftmaxOfSelected, Gating::SqrtSoftplus] {
        for normalise in [false, true] {
            let change = |config: &mut ModelConfig| {
                let router = &mut config.moe.as_mut().unwrap().router;
                (router.gating, router.normalise) = (gating, normalise);
            };
            let logits = |backend: &dyn Backend| {
                let planned = StagedModel::new(backend, &path, (way, Precision::Exact), &change).unwrap();
                run(&mut *planned.load(backend).unwrap(), way, &steps)
            };
            let (found, expected) = (logits(&gpu), logits(&ReferenceBackend::default()));
            let errors = errors(&found, &expected);
            assert!(errors[errors.len() - 1] <= 1e-9, "{gating:?} {normalise}: {errors:?}");
            all.push(expected);
        }
    }
    // The weights of a softmax over the selected experts add up to 1 already, so normalising
    // changes nothing. Every other setting changes the logits.
    let same = all.iter().enumerate().flat_map(|(i, a)| all[..i].iter().filter(move |b| a == *b)).count();
    assert_eq!(same, 1);
}
