//! On every tier, results depend neither on the number of threads nor on the rest of the batch.

use crate::support::{
    CASES, all_logits, bits, checkpoint, engine, exhaustive, fixture, folder, sample_of, tiers,
};
use latent_engine::cache::Sequence;
use latent_engine::{Engine, EngineOptions, LogitsRequest, SeqInput};
use latent_graph::passes::{MlaChoice, Precision};
use latent_threads::Placement;
use latent_types::Tier;

fn options(tier: Tier, precision: Precision, mla: MlaChoice, threads: usize) -> EngineOptions {
    EngineOptions {
        precision,
        mla,
        tier: Some(tier),
        threads: Some(threads),
        context: Some(1024),
        ..EngineOptions::default()
    }
}

#[test]
fn logits_are_bit_equal_for_any_number_of_threads() {
    for (i, tier) in tiers().into_iter().enumerate() {
        // The best tier runs with every number of threads, the others with a number that divides
        // the work unevenly.
        let threads: &[usize] = match i {
            0 if exhaustive() => &[2, 3, 7],
            0 => &[2, 7],
            _ => &[3],
        };
        bit_equal_for(tier, threads);
    }
}

/// Every model on the best tier, every fourth one on the slower ones.
fn cases(tier: Tier) -> impl Iterator<Item = &'static str> {
    let every = if tier == tiers()[0] || exhaustive() { 1 } else { 4 };
    CASES.into_iter().step_by(every)
}

fn bit_equal_for(tier: Tier, threads: &[usize]) {
    for (number, case) in cases(tier).enumerate() {
        let checkpoint = checkpoint(&folder(case));
        // One prompt is long enough that the cached rows of a row are divided into several splits.
        let (length, single) = if case == "v3" { (300, 150) } else { (70, 20) };
        let tokens: Vec<u32> = fixture(case).tokens.iter().cycle().take(length).copied().collect();
        for (i, precision) in [Precision::Exact, Precision::Default].into_iter().enumerate() {
            let turn = number + i;
            for mla in sample_of([MlaChoice::Auto, MlaChoice::Naive, MlaChoice::SeparateScores], turn, 3) {
                let mut one = engine(&checkpoint, &options(tier, precision, mla, 1));
                let truth = [
                    bits(&all_logits(&mut one, &tokens, 60)),
                    bits(&all_logits(&mut one, &tokens[..single], 1)),
                ];
                for &threads in sample_of(threads, turn, threads.len().min(2)) {
                    let mut many = engine(&checkpoint, &options(tier, precision, mla, threads));
                    assert!(
                        bits(&all_logits(&mut many, &tokens, 60)) == truth[0],
                        "{case} {tier} {precision} {mla} {threads}"
                    );
                    assert!(
                        bits(&all_logits(&mut many, &tokens[..single], 1)) == truth[1],
                        "{case} {tier} {precision} {mla} {threads}"
                    );
                }
            }
        }
    }
}

#[test]
fn logits_are_bit_equal_on_any_number_of_nodes() {
    let tier = tiers()[0];
    // A mixture of experts with shared experts, in steps of one, few and many rows.
    for case in ["v3", "v2-lite"] {
        let checkpoint = checkpoint(&folder(case));
        let tokens: Vec<u32> = fixture(case).tokens.iter().cycle().take(200).copied().collect();
        let all = |engine: &mut Engine| {
            [(200, 130), (40, 7), (20, 1)].map(|(n, chunk)| bits(&all_logits(engine, &tokens[..n], chunk)))
        };
        for mla in [MlaChoice::Absorbed, MlaChoice::Naive] {
            let truth = all(&mut engine(&checkpoint, &options(tier, Precision::Default, mla, 1)));
            for nodes in [&[2][..], &[3], &[8], &[1, 1], &[4, 4], &[2, 1, 3, 2], &[2, 2, 2, 2]] {
                let placement = Some(Placement::simulated(nodes));
                let options = EngineOptions { placement, ..options(tier, Precision::Default, mla, 1) };
                assert!(all(&mut engine(&checkpoint, &options)) == truth, "{case} {mla} {nodes:?}");
            }
        }
    }
}

/// Logits of three sequences that run together, with `chunk` rows of each per step.
fn together(engine: &mut Engine, prompts: &[Vec<u32>; 3], chunk: usize) -> Vec<Vec<Vec<f32>>> {
    let mut sequences: [Sequence; 3] = Default::default();
    let mut logits = vec![Vec::new(); 3];
    for start in (0..prompts[0].len()).step_by(chunk) {
        let [a, b, c] = &mut sequences;
        let part = |i: usize| &prompts[i][start..(start + chunk).min(prompts[i].len())];
        let mut items = [
            SeqInput::tokens(a, part(0), LogitsRequest::All),
            SeqInput::tokens(b, part(1), LogitsRequest::All),
            SeqInput::tokens(c, part(2), LogitsRequest::All),
        ];
        engine.step(&mut items, &mut |item, _, l| logits[item].push(l.to_vec())).unwrap();
    }
    sequences.into_iter().for_each(|sequence| engine.release(sequence));
    logits
}

#[test]
fn exact_logits_are_bit_equal_alone_and_in_a_batch() {
    let tiers = tiers();
    for (i, (tier, case)) in tiers.iter().flat_map(|tier| cases(*tier).map(|case| (*tier, case))).enumerate()
    {
        let checkpoint = checkpoint(&folder(case));
        let tokens = fixture(case).tokens;
        let chunks: &[usize] = match i % 4 {
            _ if exhaustive() => &[1, 7, 16],
            _ if tier != tiers[0] => &[7],
            0 => &[1],
            1 => &[16],
            _ => &[7],
        };
        let turned =
            |by: usize| tokens.iter().cycle().skip(by).take(tokens.len()).copied().collect::<Vec<u32>>();
        let prompts = [turned(0), turned(5), turned(11)];
        for mla in [MlaChoice::Absorbed, MlaChoice::Naive, MlaChoice::SeparateScores] {
            let mut engine = engine(&checkpoint, &options(tier, Precision::Exact, mla, 1));
            for &chunk in chunks {
                let batch = together(&mut engine, &prompts, chunk);
                for (prompt, logits) in prompts.iter().zip(&batch) {
                    assert!(
                        bits(&all_logits(&mut engine, prompt, chunk)) == bits(logits),
                        "{case} {tier} {mla} {chunk}"
                    );
                }
            }
        }
    }
}
