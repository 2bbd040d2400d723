use super::*;
use crate::circuit::{DeclaredTensors, Naming};
use crate::ir::Lane;
use crate::passes::snapshots::{contract, folded_plan};
use crate::passes::{MlaChoice, RowClass};
use base::TensorType;

fn points() -> Points {
    let contract = contract();
    let tensors = DeclaredTensors::new(&contract, Naming::Gguf, TensorType::BF16).unwrap();
    Points::of(Circuit::named("deepseek2").unwrap(), &contract, &tensors).unwrap()
}

fn line(points: &Points, point: &Point) -> String {
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
    let kept = |class, mla| -> Vec<String> {
        let taps = points.taps(&folded_plan(class, mla));
        taps.iter().map(|tap| points.list()[tap.point].name.clone()).collect()
    };
    let has = |kept: &[String], name: &str| kept.iter().any(|other| other == name);
    for (class, mla) in [
        (RowClass::One, MlaChoice::Auto),
        (RowClass::Few, MlaChoice::Naive),
        (RowClass::Many, MlaChoice::Split),
    ] {
        let kept = kept(class, mla);
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
            assert!(has(&kept, name), "{class:?} {mla:?} lacks {name}");
        }
        assert_eq!(has(&kept, "layers.0.attn_norm"), class == RowClass::Many);
        assert_eq!(has(&kept, "layers.0.q_latent"), mla != MlaChoice::Naive);
        // these have left their name, but not their meaning, to the rows that they are added to
        assert!(!has(&kept, "layers.1.ffn_out") && !has(&kept, "layers.1.experts_out"));
    }
    // both formulations make the result, each for its own rows
    let plan = folded_plan(RowClass::One, MlaChoice::Auto);
    let attn = points.find("layers.0.attn").unwrap();
    let lanes: Vec<Lane> =
        points.taps(&plan).iter().filter(|tap| tap.point == attn).map(|tap| tap.lane).collect();
    assert_eq!(lanes, [Lane::Absorbed, Lane::Naive]);
}

#[test]
fn unknown_names_are_answered_with_those_that_exist() {
    let points = points();
    assert!(points.unknown("layers.1.latnet").contains("q_rope"));
    assert!(points.unknown("layers.2.latent").contains("layers 0 to 1"));
    assert!(points.unknown("layers.x.latent").contains("no layer x"));
    assert!(points.unknown("final").contains("final_norm"));
}
