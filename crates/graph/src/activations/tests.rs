use super::*;
use crate::circuit::{DeclaredTensors, Naming};
use crate::ir::AttentionPath;
use crate::passes::snapshots::{config, folded_plan};
use crate::passes::{BatchBucket, MlaChoice};
use latent_types::TensorType;

fn points() -> Activations {
    let config = config();
    let tensors = DeclaredTensors::new(&config, Naming::Gguf, TensorType::BF16).unwrap();
    Activations::of(Circuit::named("deepseek2").unwrap(), &config, &tensors).unwrap()
}

fn line(points: &Activations, point: &Activation) -> String {
    let inputs: Vec<&str> = point.inputs.iter().map(|i| points.list()[*i].name.as_str()).collect();
    let term = point.term.map_or_else(String::new, |term| {
        format!("  = {} - {}", points.list()[term.sum].name, points.list()[term.base].name)
    });
    let heads = if point.heads > 1 { format!("{}x", point.heads) } else { String::new() };
    format!("{} [{heads}{}] {} of {}{term}", point.name, point.width, point.op, inputs.join(" "))
}

#[test]
fn every_value_of_the_circuit_has_a_name_and_what_it_is_made_of() {
    let points = points();
    let lines: Vec<String> = points.list().iter().map(|point| line(&points, point)).collect();
    insta::assert_snapshot!(lines.join("\n"));
    for (index, point) in points.list().iter().enumerate() {
        assert_eq!(points.find(&point.name), Some(index), "two points are called {}", point.name);
        assert!(point.inputs.iter().all(|input| *input < index), "{} comes before its inputs", point.name);
    }
    let sum = points.find("layers.1.residual").map(|i| &points.list()[i]);
    assert_eq!(sum.map(|point| point.mixes_rows), Some(false));
    let latent = &points.list()[points.find("layers.1.latent").unwrap()];
    assert_eq!(latent.tensors, ["blk.1.attn_kv_a_norm.weight"]);
}

#[test]
fn plans_keep_what_they_do_not_fold() {
    let points = points();
    let kept = |bucket, mla| -> Vec<String> {
        let probes = points.probes(&folded_plan(bucket, mla));
        probes.iter().map(|probe| points.list()[probe.point].name.clone()).collect()
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
        // these have left their name, but not their meaning, to the rows that they are added to
        assert!(!has(&kept, "layers.1.ffn_out") && !has(&kept, "layers.1.experts_out"));
    }
    // both formulations make the result, each for its own rows
    let plan = folded_plan(BatchBucket::Decode, MlaChoice::Auto);
    let attn = points.find("layers.0.attn").unwrap();
    let lanes: Vec<AttentionPath> =
        points.probes(&plan).iter().filter(|probe| probe.point == attn).map(|probe| probe.path).collect();
    assert_eq!(lanes, [AttentionPath::Absorbed, AttentionPath::Naive]);
}

#[test]
fn unknown_names_are_answered_with_those_that_exist() {
    let points = points();
    assert!(points.unknown("layers.1.latnet").contains("q_rope"));
    assert!(points.unknown("layers.2.latent").contains("layers 0 to 1"));
    assert!(points.unknown("layers.x.latent").contains("no layer x"));
    assert!(points.unknown("final").contains("final_norm"));
}
