//! Compares samplers with their definitions, computed in f64.

use super::candidate::TokenCandidate;
use super::*;
use latent_backend::Logits;

fn neutral() -> SamplingParams {
    SamplingParams { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..SamplingParams::default() }
}

fn logs(p: &[f64]) -> Vec<f32> {
    p.iter().map(|p| p.ln() as f32).collect()
}

/// Logits of a vocabulary in which the token of rank r has a probability of about 1/r.
fn zipf(vocab: usize) -> Vec<f32> {
    (0..vocab).map(|rank| -((rank + 1) as f32).ln()).collect()
}

fn softmax(logits: &[f64]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits.iter().map(|l| (l - max).exp()).sum();
    logits.iter().map(|l| (l - max).exp() / sum).collect()
}

/// The probability of each token after the chain, and the token that was sampled.
fn step(sampler: &mut Sampler, logits: &[f32]) -> (Vec<f64>, u32) {
    let token = sampler.sample(logits).unwrap();
    let mut all = vec![0.0; logits.len()];
    for LogProbability { id, logprob } in sampler.sampled_probabilities(token, logits.len()).1 {
        all[id as usize] = f64::from(logprob).exp();
    }
    (all, token)
}

fn distribution(params: SamplingParams, logits: &[f32]) -> Vec<f64> {
    step(&mut Sampler::new(params, logits.len(), vec![]).unwrap(), logits).0
}

#[track_caller]
fn assert_close(found: &[f64], expected: &[f64]) {
    for (token, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() < 1e-5, "token {token}: {found}, expected {expected}");
    }
}

/// Probabilities of some tokens, normalized over them.
fn renormalised(p: &[f64], kept: impl Fn(usize) -> bool) -> Vec<f64> {
    let left: Vec<f64> = p.iter().enumerate().map(|(i, p)| if kept(i) { *p } else { 0.0 }).collect();
    let sum: f64 = left.iter().sum();
    left.iter().map(|p| p / sum).collect()
}

#[test]
fn top_n_sigma_keeps_what_is_within_standard_deviations_of_the_largest() {
    let mut random = random::Random::new(3);
    let logits: Vec<f32> = (0..300).map(|_| (random.unit() * 8.0 - 4.0) as f32).collect();
    let mean = logits.iter().map(|l| f64::from(*l)).sum::<f64>() / 300.0;
    let sigma = (logits.iter().map(|l| (f64::from(*l) - mean).powi(2)).sum::<f64>() / 300.0).sqrt();
    let max = f64::from(logits.iter().copied().fold(f32::MIN, f32::max));
    let p = softmax(&logits.iter().map(|l| f64::from(*l)).collect::<Vec<_>>());
    for top_n_sigma in [0.1, 0.5, 1.0, 2.5] {
        let least = max - f64::from(top_n_sigma) * sigma;
        let expected = renormalised(&p, |i| f64::from(logits[i]) >= least);
        assert_close(&distribution(SamplingParams { top_n_sigma, ..neutral() }, &logits), &expected);
    }
    // The numbers of llama.cpp's tests.
    let logits = logs(&[0.1, 0.2, 0.3, 0.4]);
    let of = |top_n_sigma| distribution(SamplingParams { top_n_sigma, ..neutral() }, &logits);
    assert_close(&of(1.0), &[0.0, 0.0, 0.428571, 0.571429]);
    assert_close(&of(0.0), &[0.1, 0.2, 0.3, 0.4]);
    assert_close(&of(-1.0), &[0.1, 0.2, 0.3, 0.4]);
    assert_close(&of(3.0), &[0.1, 0.2, 0.3, 0.4]);
}

#[test]
fn the_dynamic_temperature_follows_the_entropy() {
    let cases = [[0.7, 0.2, 0.05, 0.05], [0.25, 0.25, 0.25, 0.25], [0.4, 0.3, 0.2, 0.1]];
    for p in cases {
        for (temperature, dynatemp_range, dynatemp_exponent) in
            [(1.0, 0.5, 1.0), (0.8, 0.8, 2.0), (0.6, 0.9, 0.5)]
        {
            let (t, range) = (f64::from(temperature), f64::from(dynatemp_range));
            let entropy: f64 = p.iter().map(|p: &f64| -p * p.ln()).sum();
            let low = (t - range).max(0.0);
            let exponent = f64::from(dynatemp_exponent);
            let dynamic = low + (t + range - low) * (entropy / 4f64.ln()).powf(exponent);
            let expected = softmax(&p.map(|p| p.ln() / dynamic));
            let params = SamplingParams { temperature, dynatemp_range, dynatemp_exponent, ..neutral() };
            assert_close(&distribution(params, &logs(&p)), &expected);
        }
    }
    // The dynamic range applies to a temperature of 0 too.
    let params = SamplingParams { temperature: 0.0, dynatemp_range: 1.0, ..neutral() };
    assert_close(&distribution(params, &logs(&[0.5, 0.5])), &[0.5, 0.5]);
    let params = SamplingParams { temperature: 0.0, dynatemp_range: 0.0, ..neutral() };
    assert_close(&distribution(params, &logs(&[0.4, 0.6])), &[0.0, 1.0]);
}

/// Runs Mirostat and compares it with its definition, which returns the number of kept tokens.
fn follow_mirostat(mirostat: usize, kept: impl Fn(&[f64], f64) -> usize) {
    let (tau, eta, steps) = (4.0, 0.1, 3000);
    let logits = zipf(2000);
    let p = softmax(&logits.iter().map(|l| f64::from(*l)).collect::<Vec<_>>());
    let params = SamplingParams {
        mirostat,
        mirostat_tau: tau as f32,
        mirostat_eta: eta as f32,
        seed: 5,
        // Mirostat replaces these samplers.
        top_k: 1,
        top_p: 0.1,
        ..neutral()
    };
    let mut sampler = Sampler::new(params, logits.len(), vec![]).unwrap();
    let (mut most, mut sum, mut counts) = (2.0 * tau, 0.0, std::collections::HashSet::new());
    for _ in 0..steps {
        let count = kept(&p, most);
        let (found, token) = step(&mut sampler, &logits);
        let left = found.iter().filter(|p| **p > 0.0).count();
        // At a bound, rounding may decide.
        assert!(left.abs_diff(count) <= 1, "{left} tokens, expected {count}");
        counts.insert(left);
        assert_close(&found, &renormalised(&p, |i| i < left));
        let surprise = -found[token as usize].log2();
        sum += surprise;
        most -= eta * (surprise - tau);
        assert!((f64::from(sampler.max_surprise()) - most).abs() < 1e-2);
        most = f64::from(sampler.max_surprise());
    }
    assert!(counts.len() > 20, "{counts:?}");
    let mean = sum / f64::from(steps);
    assert!((mean - tau).abs() < 0.05, "{mean} bits per token, the target is {tau}");
}

#[test]
fn mirostat_2_drops_what_surprises_more_than_its_maximum() {
    follow_mirostat(2, |p, most| p.iter().take_while(|p| -p.log2() <= most).count().max(1));
}

#[test]
fn mirostat_1_keeps_as_many_as_its_estimate_of_zipfs_law_says() {
    follow_mirostat(1, |p, most| {
        let (mut products, mut squares) = (0.0, 0.0);
        for i in 0..99 {
            let t = ((i + 2) as f64 / (i + 1) as f64).ln();
            products += t * (p[i] / p[i + 1]).ln();
            squares += t * t;
        }
        let s = products / squares;
        let k = ((s - 1.0) * most.exp2() / (1.0 - 2000f64.powf(1.0 - s))).powf(1.0 / s);
        (k as usize).clamp(1, p.len())
    });
}

#[test]
fn mirostat_copes_with_any_candidates() {
    for mirostat in [1, 2] {
        let params = SamplingParams { mirostat, ..neutral() };
        let choose = |logits: &[f32]| {
            Sampler::new(params.clone(), logits.len(), vec![]).unwrap().sample(logits).unwrap()
        };
        assert_eq!(choose(&[1.0]), 0);
        assert_eq!(choose(&[f32::NEG_INFINITY, 1.0]), 1);
        assert!(choose(&[1.0; 5]) < 5);
        assert_eq!(choose(&[f32::INFINITY, 1.0]), 0);
        assert_eq!(choose(&[0.0, 300.0, -300.0]), 1);
        let greedy = SamplingParams { temperature: 0.0, ..params.clone() };
        assert_eq!(Sampler::new(greedy, 3, vec![]).unwrap().sample(&[0.0, 2.0, 1.0]).unwrap(), 1);
    }
}

#[test]
fn adaptive_p_prefers_tokens_near_its_moving_target() {
    let (target, decay) = (0.3, 0.9);
    let p = [0.5, 0.3, 0.15, 0.04, 0.01];
    let params = SamplingParams { adaptive_target: target, adaptive_decay: decay, seed: 9, ..neutral() };
    let mut sampler = Sampler::new(params, 5, vec![]).unwrap();
    let (target, decay) = (f64::from(target), f64::from(decay));
    let (mut sum, mut weight) = (target / (1.0 - decay), 1.0 / (1.0 - decay));
    let (mut chosen, steps) = (0.0, 4000);
    for _ in 0..steps {
        let wanted = (2.0 * target - sum / weight).clamp(0.0, 1.0);
        let transformed = p.map(|p: f64| {
            let distance = (p - wanted).abs() / 0.3;
            5.0 - 10.0 * distance * distance / (1.0 + distance)
        });
        let (found, token) = step(&mut sampler, &logs(&p));
        assert_close(&found, &softmax(&transformed));
        sampler.accept(token);
        sum = p[token as usize] + decay * sum;
        weight = 1.0 + decay * weight;
        chosen += p[token as usize];
    }
    let mean = chosen / f64::from(steps);
    assert!((mean - target).abs() < 0.03, "{mean}, the target is {target}");
}

#[test]
fn adaptive_p_is_off_without_a_target_or_a_place_in_the_order() {
    let logits = logs(&[0.6, 0.3, 0.1]);
    let on = SamplingParams { adaptive_target: 0.1, ..neutral() };
    assert!(distribution(on.clone(), &logits)[0] < 0.5);
    let elsewhere = SamplingParams { samplers: Some(vec![SamplerKind::Temperature]), ..on.clone() };
    assert_close(&distribution(elsewhere, &logits), &[0.6, 0.3, 0.1]);
    let order = vec![SamplerKind::AdaptiveP, SamplerKind::Temperature];
    assert!(distribution(SamplingParams { samplers: Some(order), ..on }, &logits)[0] < 0.5);
    assert_close(&distribution(neutral(), &logits), &[0.6, 0.3, 0.1]);
}

#[test]
fn samplers_run_in_the_requested_order() {
    use SamplerKind::{Dry, MinP, Penalties, Temperature, TopK, TopP};
    let logits = logs(&[0.4, 0.3, 0.2, 0.1]);
    let base = SamplingParams { temperature: 0.5, top_p: 0.5, top_k: 3, min_p: 0.9, ..neutral() };
    let of = |order: &[SamplerKind]| {
        distribution(SamplingParams { samplers: Some(order.to_vec()), ..base.clone() }, &logits)
    };
    let squares = renormalised(&[0.16, 0.09, 0.04, 0.01], |_| true);
    assert_close(&of(&[Temperature]), &squares);
    assert_close(&of(&[Temperature, TopP]), &[1.0, 0.0, 0.0, 0.0]);
    assert_close(&of(&[TopP, Temperature]), &renormalised(&squares, |i| i < 2));
    assert_close(&of(&[TopK]), &renormalised(&[0.4, 0.3, 0.2, 0.1], |i| i < 3));
    assert_close(&of(&[MinP]), &[1.0, 0.0, 0.0, 0.0]);
    // A sampler outside of the order has no effect.
    assert_close(&of(&[]), &[0.4, 0.3, 0.2, 0.1]);
    let cold = SamplingParams { temperature: 0.0, samplers: Some(vec![TopK]), top_k: 2, ..neutral() };
    assert_close(&distribution(cold, &logits), &renormalised(&[0.4, 0.3, 0.2, 0.1], |i| i < 2));
    // Penalties find their tokens after other samplers have sorted the candidates.
    let order = Some(vec![Temperature, TopK, Penalties, Dry]);
    let late = SamplingParams { presence_penalty: 1.0, samplers: order, temperature: 1.0, ..base };
    let mut sampler = Sampler::new(late, 4, vec![]).unwrap();
    [1, 3].into_iter().for_each(|token| sampler.accept(token));
    let expected = renormalised(&[0.4, 0.3 / 1f64.exp(), 0.2, 0.0], |_| true);
    assert_close(&step(&mut sampler, &logits).0, &expected);
}

#[test]
fn orders_are_read_by_names_and_by_letters() {
    let names = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature";
    let order = SamplerKind::order_of_names(names.split(';')).unwrap();
    assert_eq!(order, SamplerKind::order_of_letters("edskypmxt").unwrap());
    assert_eq!(order, SamplingParams::default().order());
    let others = "penalties;dry;top-n-sigma;topk;typical_p;nucleus;MIN-P;xtc;temp";
    assert_eq!(order, SamplerKind::order_of_names(others.split(';')).unwrap());
    assert_eq!(SamplerKind::order_of_letters("ai").unwrap(), [SamplerKind::AdaptiveP, SamplerKind::Infill]);
    for problem in [
        SamplerKind::of_name("top_q").unwrap_err().to_string(),
        SamplerKind::order_of_letters("kq").unwrap_err().to_string(),
        SamplerKind::order_of_letters(&"k".repeat(40)).unwrap_err().to_string(),
    ] {
        assert!(problem.contains("sampler"), "{problem}");
    }
}

#[test]
fn truncating_samplers_keep_min_keep_candidates() {
    let p = [0.4, 0.3, 0.2, 0.1];
    let of = |params: SamplingParams| distribution(params, &logs(&p)).iter().filter(|p| **p > 0.0).count();
    for (min_keep, least) in [(0, 1), (1, 1), (3, 3), (4, 4), (9, 4)] {
        let base = SamplingParams { min_keep, ..neutral() };
        assert_eq!(of(SamplingParams { top_p: 0.1, ..base.clone() }), least);
        assert_eq!(of(SamplingParams { min_p: 0.99, ..base.clone() }), least);
        assert_eq!(of(SamplingParams { typical_p: 0.1, ..base.clone() }), least);
        // XTC removes all of these tokens or none.
        let xtc = SamplingParams { xtc_probability: 1.0, xtc_threshold: 0.15, ..base };
        assert_eq!(of(xtc), if min_keep <= 2 { 2 } else { 4 });
    }
}

#[test]
fn breakers_of_several_tokens_bound_repetitions_of_dry() {
    // 7 8 is a breaker, 7 alone is not.
    let breakers = || breakers::Breakers::sorted(vec![(7, vec![8]), (9, vec![])]);
    assert_eq!(breakers().tokens_after_last(&[1, 7, 8, 2, 3]), 2);
    assert_eq!(breakers().tokens_after_last(&[1, 7, 1, 2, 3]), 5);
    assert_eq!(breakers().tokens_after_last(&[7, 8, 1, 9]), 0);
    assert_eq!(breakers().tokens_after_last(&[1, 7]), 2);
    let penalised = |seen: &[u32]| {
        let params = SamplingParams { dry_multiplier: 1.0, ..SamplingParams::greedy() };
        let mut candidates: Vec<TokenCandidate> =
            (0..10).map(|id| TokenCandidate { id, logit: 0.0, probability: 0.0 }).collect();
        dry::DrySampler::new(breakers()).apply(&params, seen, &mut candidates);
        candidates.iter().filter(|c| c.logit < 0.0).map(|c| c.id).collect::<Vec<u32>>()
    };
    assert_eq!(penalised(&[1, 2, 3, 5, 1, 2, 3]), [5]);
    assert_eq!(penalised(&[1, 7, 8, 5, 1, 7, 8]), [0u32; 0]);
    // The first token of a longer breaker is penalized like any other.
    assert_eq!(penalised(&[1, 2, 3, 7, 1, 2, 3]), [7]);
    assert_eq!(penalised(&[1, 2, 3, 9, 1, 2, 3]), [0u32; 0]);
    let off = SamplingParams { dry_multiplier: 9.0, dry_last: 0, ..SamplingParams::greedy() };
    let mut sampler = Sampler::new(off, 3, vec![]).unwrap();
    [1, 2, 0, 1, 2].into_iter().for_each(|token| sampler.accept(token));
    assert_eq!(sampler.sample(&[1.0, 0.0, 0.0]).unwrap(), 0);
}

#[test]
fn tokens_can_be_allowed_and_banned() {
    let logits = logs(&[0.4, 0.3, 0.2, 0.1]);
    let allowed = |tokens: &[u32]| SamplingParams { allowed_tokens: Some(tokens.to_vec()), ..neutral() };
    assert_close(&distribution(allowed(&[3, 1, 3]), &logits), &[0.0, 0.75, 0.0, 0.25]);
    assert!(allowed(&[]).validate(4).is_err() && allowed(&[4]).validate(4).is_err());
    let mut sampler = Sampler::new(SamplingParams::greedy(), 4, vec![]).unwrap();
    let mut choose =
        |logits: &[f32], banned: &[u32]| sampler.sample_of(Logits::Whole(logits), banned).unwrap();
    assert_eq!(choose(&logits, &[0, 1]), 2);
    // A banned token is chosen if no other can be.
    let only = [f32::NEG_INFINITY, 1.0, f32::NAN, f32::NEG_INFINITY];
    assert_eq!(choose(&only, &[1]), 1);
}

#[test]
fn probabilities_after_the_chain_are_those_of_the_draw() {
    let params = SamplingParams { top_k: 2, temperature: 0.5, ..neutral() };
    let mut sampler = Sampler::new(params, 4, vec![]).unwrap();
    let token = sampler.sample(&logs(&[0.4, 0.1, 0.3, 0.2])).unwrap();
    let (own, top) = sampler.sampled_probabilities(token, 10);
    let expected = [(0u32, 0.16 / 0.25), (2, 0.09 / 0.25)];
    assert_eq!(top.len(), 2);
    for (found, (id, p)) in top.iter().zip(expected) {
        assert_eq!(found.id, id);
        assert!((f64::from(found.logprob).exp() - p).abs() < 1e-5);
    }
    assert_eq!(own, top.iter().find(|top| top.id == token).unwrap().logprob);
    let mut greedy = Sampler::new(SamplingParams::greedy(), 4, vec![]).unwrap();
    let token = greedy.sample(&logs(&[0.4, 0.1, 0.3, 0.2])).unwrap();
    assert_eq!(greedy.sampled_probabilities(token, 3), (0.0, vec![LogProbability { id: 0, logprob: 0.0 }]));
}

#[test]
fn parameters_out_of_range_are_named() {
    type Set = fn(&mut SamplingParams);
    let cases: [(&str, Set); 8] = [
        ("top_n_sigma", |p| p.top_n_sigma = f32::NAN),
        ("dynatemp_range", |p| p.dynatemp_range = -0.5),
        ("dynatemp_exponent", |p| p.dynatemp_exponent = f32::INFINITY),
        ("mirostat", |p| p.mirostat = 3),
        ("mirostat_tau", |p| p.mirostat_tau = -1.0),
        ("mirostat_eta", |p| p.mirostat_eta = f32::NAN),
        ("adaptive_target", |p| p.adaptive_target = 1.5),
        ("adaptive_decay", |p| p.adaptive_decay = 1.0),
    ];
    for (name, set) in cases {
        let mut params = neutral();
        set(&mut params);
        let error = params.check(4).unwrap_err();
        assert_eq!(error.name, name);
        assert!(error.to_string().starts_with(name), "{error}");
    }
}
