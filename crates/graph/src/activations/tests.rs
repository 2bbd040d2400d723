use super::*;
use crate::circuit::{DeclaredTensors, TensorNaming};
use crate::ir::AttentionPath;
use crate::passes::snapshots::{config, folded_plan};
use crate::passes::{BatchBucket, MlaChoice};
use latent_types::TensorType;

fn activations() -> Activations {
    let config = config();
    let tensors = DeclaredTensors::new(&config, TensorNaming::Gguf, TensorType::BF16).unwrap();
    Activations::of(Circuit::named("deepseek2").unwrap(), &config, &tensors).unwrap()
}

fn line(activations: &Activations, activation: &Activation) -> String {
    let inputs: Vec<&str> = activation.inputs.iter().map(|i| activations.list()[*i].name.as_str()).collect();
    let term = activation.term.map_or_else(String::new, |term| {
        format!("  = {} - {}", activations.list()[term.sum].name, activations.list()[term.base].name)
    });
    let heads = if activation.heads > 1 { format!("{}x", activation.heads) } else { String::new() };
    format!(
        "{} [{heads}{}] {} of {}{term}",
        activation.name,
        activation.width,
        activation.op,
        inputs.join(" ")
    )
}

#[test]
fn every_value_of_the_circuit_has_a_name_and_what_it_is_made_of() {
    let activations = activations();
    let lines: Vec<String> =
        activations.list().iter().map(|activation| line(&activations, activation)).collect();
    insta::assert_snapshot!(lines.join("\n"));
    for (index, activation) in activations.list().iter().enumerate() {
        assert_eq!(
            activations.find(&activation.name),
            Some(index),
            "two activations are called {}",
            activation.name
        );
        assert!(
            activation.inputs.iter().all(|input| *input < index),
            "{} comes before its inputs",
            activation.name
        );
    }
    let sum = activations.find("layers.1.residual").map(|i| &activations.list()[i]);
    assert_eq!(sum.map(|activation| activation.mixes_rows), Some(false));
    let latent = &activations.list()[activations.find("layers.1.latent").unwrap()];
    assert_eq!(latent.tensors, ["blk.1.attn_kv_a_norm.weight"]);
}

#[test]
fn plans_store_activations_that_are_not_folded() {
    let activations = activations();
    let kept = |bucket, mla| -> Vec<String> {
        let probes = activations.probes(&folded_plan(bucket, mla));
        probes.iter().map(|probe| activations.list()[probe.activation].name.clone()).collect()
    };
    let has = |kept: &[String], name: &str| kept.iter().any(|other| other == name);
    for (bucket, mla) in [
        (BatchBucket::Decode, MlaChoice::Auto),
        (BatchBucket::SmallBatch, MlaChoice::Naive),
        (BatchBucket::Prefill, MlaChoice::SeparateScores),
    ] {
        let kept = kept(bucket, mla);
        for name in [
            "embed",
            "layers.0.q",
            "layers.0.kv_a",
            "layers.0.latent",
            "layers.0.k_rope",
            "layers.0.q_rope",
            "layers.0.attn",
            "layers.0.attn_residual",
            "layers.1.router_logits",
            "layers.1.routing",
            "layers.1.ffn_act",
            "layers.1.residual",
        ] {
            assert!(has(&kept, name), "{bucket:?} {mla:?} lacks {name}");
        }
        assert_eq!(has(&kept, "layers.0.attn_norm"), bucket == BatchBucket::Prefill);
        assert_eq!(has(&kept, "layers.0.q_latent"), mla != MlaChoice::Naive);
        // Their last product adds into the residual rows, so that no buffer holds these values
        // alone.
        assert!(!has(&kept, "layers.1.ffn_out") && !has(&kept, "layers.1.experts_out"));
    }
    // Both attention paths write the result, each for its own rows.
    let plan = folded_plan(BatchBucket::Decode, MlaChoice::Auto);
    let attn = activations.find("layers.0.attn").unwrap();
    let paths: Vec<AttentionPath> = activations
        .probes(&plan)
        .iter()
        .filter(|probe| probe.activation == attn)
        .map(|probe| probe.path)
        .collect();
    assert_eq!(paths, [AttentionPath::Absorbed, AttentionPath::Naive]);
}

#[test]
fn unknown_names_are_errors_with_the_known_names() {
    let activations = activations();
    assert!(activations.unknown("layers.1.latnet").contains("q_rope"));
    assert!(activations.unknown("layers.2.latent").contains("layers 0 to 1"));
    assert!(activations.unknown("layers.x.latent").contains("layer x"));
    assert!(activations.unknown("final").contains("final_norm"));
}
