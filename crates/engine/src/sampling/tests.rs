use super::candidate::TokenCandidate;
use super::*;

fn probabilities(p: &[f32]) -> Vec<f32> {
    p.iter().map(|p| p.ln()).collect()
}

fn neutral() -> SamplingParams {
    SamplingParams { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..SamplingParams::default() }
}

/// The ids that are drawn in many draws.
fn possible(params: &SamplingParams, logits: &[f32], seen: &[u32]) -> Vec<u32> {
    let mut sampler = Sampler::new(params.clone(), logits.len(), vec![]).unwrap();
    seen.iter().for_each(|token| sampler.accept(*token));
    let mut ids: Vec<u32> = (0..2000).map(|_| sampler.sample(logits).unwrap()).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

#[test]
fn truncating_samplers_keep_what_llama_cpp_keeps() {
    let logits = probabilities(&[0.1, 0.2, 0.3, 0.4]);
    let with = |set: fn(&mut SamplingParams)| {
        let mut params = neutral();
        set(&mut params);
        possible(&params, &logits, &[])
    };
    assert_eq!(with(|_| {}), [0, 1, 2, 3]);
    assert_eq!(with(|p| p.top_k = 1), [3]);
    assert_eq!(with(|p| p.top_k = 3), [1, 2, 3]);
    assert_eq!(with(|p| p.top_p = 0.0), [3]);
    assert_eq!(with(|p| p.top_p = 0.69), [2, 3]);
    assert_eq!(with(|p| p.top_p = 0.8), [1, 2, 3]);
    assert_eq!(with(|p| p.min_p = 0.24), [0, 1, 2, 3]);
    assert_eq!(with(|p| p.min_p = 0.26), [1, 2, 3]);
    assert_eq!(with(|p| p.min_p = 0.51), [2, 3]);
    assert_eq!(with(|p| p.min_p = 1.0), [3]);
    assert_eq!(with(|p| (p.xtc_probability, p.xtc_threshold) = (1.0, 0.09)), [0]);
    assert_eq!(with(|p| (p.xtc_probability, p.xtc_threshold) = (1.0, 0.19)), [0, 1]);
    assert_eq!(with(|p| (p.xtc_probability, p.xtc_threshold) = (1.0, 0.39)), [0, 1, 2, 3]);
    let even = probabilities(&[0.97, 0.01, 0.01, 0.01]);
    assert_eq!(possible(&SamplingParams { typical_p: 0.5, ..neutral() }, &even, &[]), [0]);
    let odd = probabilities(&[0.4, 0.2, 0.2, 0.2]);
    assert_eq!(possible(&SamplingParams { typical_p: 0.5, ..neutral() }, &odd, &[]), [1, 2, 3]);
}

#[test]
fn large_vocabularies_are_cut_like_small_ones() {
    let n = 20_000;
    let mut random = random::Random::new(5);
    let logits: Vec<f32> = (0..n).map(|_| (random.unit() * 12.0) as f32).collect();
    let mut sorted: Vec<(f32, u32)> = logits.iter().enumerate().map(|(i, l)| (*l, i as u32)).collect();
    sorted.sort_by(|a, b| b.0.total_cmp(&a.0));
    for top_p in [0.01, 0.3, 0.6, 0.95] {
        let sum: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
        let mut reached = 0.0;
        let expected = sorted.iter().take_while(|(l, _)| {
            let before = reached;
            reached += f64::from(*l).exp() / sum;
            before < f64::from(top_p)
        });
        let expected = expected.count();
        let params = SamplingParams { top_p, ..neutral() };
        let candidate =
            |(id, l): (usize, &f32)| TokenCandidate { id: id as u32, logit: *l, probability: 0.0 };
        let mut candidates: Vec<TokenCandidate> = logits.iter().enumerate().map(candidate).collect();
        truncation::keep_top_p(params.top_p, 0, false, &mut candidates);
        let found = candidates.len() as i64;
        assert!(
            (found - expected as i64).abs() <= 1 + expected as i64 / 1000,
            "{top_p}: {found} of {expected}"
        );
    }
}

#[test]
fn penalties_lower_recent_tokens() {
    let logits = [2.0, 2.0, -2.0, 0.0];
    let greedy = |set: fn(&mut SamplingParams), seen: &[u32]| {
        let mut params = SamplingParams::greedy();
        set(&mut params);
        let mut sampler = Sampler::new(params, 4, vec![]).unwrap();
        seen.iter().for_each(|token| sampler.accept(*token));
        sampler.sample(&logits).unwrap()
    };
    assert_eq!(greedy(|_| {}, &[0]), 0);
    assert_eq!(greedy(|p| p.repeat_penalty = 2.0, &[0]), 1);
    assert_eq!(greedy(|p| p.presence_penalty = 3.0, &[0, 1]), 3);
    assert_eq!(greedy(|p| p.frequency_penalty = 0.5, &[0, 1, 1]), 0);
    assert_eq!(greedy(|p| (p.presence_penalty, p.repeat_last_n) = (3.0, 1), &[0, 1]), 0);
    assert_eq!(greedy(|p| p.logit_bias = vec![(0, f32::NEG_INFINITY), (3, 5.0)], &[]), 3);
}

#[test]
fn dry_penalizes_tokens_that_continue_a_repetition() {
    // 4 followed 1 2 3. After 1 2 3 again, 4 would continue the repetition.
    let logits = [0.0, 0.0, 0.0, 0.0, 1.0, 0.5];
    let choose = |allowed: usize, breakers: Vec<u32>, seen: &[u32]| {
        let params = SamplingParams { dry_multiplier: 1.0, dry_allowed: allowed, ..SamplingParams::greedy() };
        let mut sampler = Sampler::new(params, 6, breakers).unwrap();
        seen.iter().for_each(|token| sampler.accept(*token));
        sampler.sample(&logits).unwrap()
    };
    let seen = [1, 2, 3, 4, 0, 1, 2, 3];
    assert_eq!(choose(2, vec![], &seen), 5);
    assert_eq!(choose(4, vec![], &seen), 4);
    assert_eq!(choose(2, vec![3], &seen), 4);
    assert_eq!(choose(2, vec![], &[1, 2, 3]), 4);
    assert_eq!(choose(2, vec![], &[]), 4);
}

#[test]
fn dry_finds_what_a_plain_search_finds() {
    let mut random = random::Random::new(11);
    for _ in 0..200 {
        let seen: Vec<u32> = (0..40).map(|_| (random.unit() * 3.0) as u32).collect();
        let params = SamplingParams { dry_multiplier: 0.8, ..SamplingParams::greedy() };
        let mut candidates: Vec<TokenCandidate> =
            (0..3).map(|id| TokenCandidate { id, logit: 0.0, probability: 0.0 }).collect();
        dry::DrySampler::new(breakers::Breakers::default()).apply(&params, &seen, &mut candidates);
        for token in 0..3u32 {
            let repeats =
                |end: usize| (0..end).take_while(|k| seen[end - 1 - k] == seen[seen.len() - 1 - k]).count();
            let longest = (1..seen.len()).filter(|&i| seen[i] == token).map(repeats).max().unwrap_or(0);
            let expected = if longest >= 2 { 0.8 * 1.75f32.powi(longest as i32 - 2) } else { 0.0 };
            assert!((candidates[token as usize].logit + expected).abs() < 1e-3, "{seen:?} {token} {longest}");
        }
    }
}

#[test]
fn draws_follow_the_probabilities_and_the_seed() {
    let logits = probabilities(&[0.1, 0.2, 0.3, 0.4]);
    let draw = |seed: u64| -> Vec<u32> {
        let mut sampler = Sampler::new(SamplingParams { seed, ..neutral() }, 4, vec![]).unwrap();
        (0..10_000).map(|_| sampler.sample(&logits).unwrap()).collect()
    };
    let ids = draw(1);
    assert_eq!(ids, draw(1));
    assert_ne!(ids, draw(2));
    let squares: f64 = [0.1, 0.2, 0.3, 0.4]
        .iter()
        .enumerate()
        .map(|(id, p)| {
            let expected = 10_000.0 * p;
            let count = ids.iter().filter(|i| **i == id as u32).count() as f64;
            (count - expected).powi(2) / expected
        })
        .sum();
    assert!(squares < 16.3, "chi-square {squares}");
}

#[test]
fn odd_logits_never_panic() {
    let choose = |logits: &[f32], params: SamplingParams| {
        Sampler::new(params, logits.len(), vec![]).unwrap().sample(logits).map_err(|e| e.to_string())
    };
    assert_eq!(choose(&[f32::NAN, 1.0, f32::NAN], neutral()), Ok(1));
    assert_eq!(choose(&[1.0, f32::INFINITY, 2.0], SamplingParams::default()), Ok(1));
    assert!(choose(&[f32::NAN; 3], neutral()).unwrap_err().contains("NaN"));
    assert!(choose(&[f32::NEG_INFINITY; 3], neutral()).is_err());
    assert_eq!(choose(&[1.0, 1.0], SamplingParams::greedy()), Ok(0));
    assert_eq!(choose(&[5.0, 1.0], SamplingParams { temperature: 1e-6, ..neutral() }), Ok(0));
    let wrong = SamplingParams { top_p: 1.5, ..neutral() };
    assert!(wrong.validate(4).unwrap_err().to_string().contains("top_p is 1.5"));
    assert!(SamplingParams { temperature: f32::NAN, ..neutral() }.validate(4).is_err());
    assert!(SamplingParams { logit_bias: vec![(9, 1.0)], ..neutral() }.validate(4).is_err());
}

#[test]
fn log_probabilities_are_those_of_the_model() {
    let (own, top) = log_probabilities(&probabilities(&[0.1, 0.2, 0.3, 0.4]), 1, 2);
    assert!((own - 0.2f32.ln()).abs() < 1e-6);
    assert_eq!([top[0].id, top[1].id], [3, 2]);
    assert!((top[0].logprob - 0.4f32.ln()).abs() < 1e-6);
    assert_eq!(log_probabilities(&[0.0, f32::NAN], 1, 9).0, f32::NEG_INFINITY);
    assert_eq!(log_probabilities(&[1.0, f32::INFINITY], 1, 0).0, 0.0);
    assert_eq!(log_probabilities(&[1.0, f32::INFINITY], 0, 0).0, f32::NEG_INFINITY);
    assert_eq!(log_probabilities(&[f32::NEG_INFINITY; 2], 1, 0).0, f32::NEG_INFINITY);
}

#[test]
fn stop_strings_are_found_across_tokens_and_lose_nothing() {
    let feed = |stops: &[&str], parts: &[&str]| {
        let stops: Vec<String> = stops.iter().map(|s| (*s).to_owned()).collect();
        let mut watcher = StopStrings::new(&stops);
        let shown: String = parts.iter().map(|part| watcher.push(part)).collect();
        let found = watcher.found();
        (shown + &watcher.finish(), found)
    };
    assert_eq!(feed(&["END"], &["one E", "N", "D two"]), ("one ".into(), true));
    assert_eq!(feed(&["END"], &["one E", "N", "d"]), ("one ENd".into(), false));
    assert_eq!(feed(&["b", "abc"], &["a", "bc"]), ("a".into(), true));
    assert_eq!(feed(&["abcd", "bc"], &["abcd"]), feed(&["abcd", "bc"], &["abc", "d"]));
    assert_eq!(feed(&["bc", "abc"], &["abc"]), ("".into(), true));
    assert_eq!(feed(&["b", "abd"], &["a", "bc"]), ("a".into(), true));
    assert_eq!(feed(&["ü!"], &["ü", "ü", "!"]), ("ü".into(), true));
    assert_eq!(feed(&[""], &["text"]), ("text".into(), false));
    assert_eq!(feed(&["\n\n"], &["a\n", "b\n", "\n"]), ("a\nb".into(), true));
}

#[test]
fn dry_never_bans() {
    let params = SamplingParams { dry_multiplier: 1.0, dry_base: 4.0, ..SamplingParams::greedy() };
    let mut sampler = Sampler::new(params, 1, vec![]).unwrap();
    (0..200).for_each(|_| sampler.accept(0));
    assert_eq!(sampler.sample(&[1.0]).unwrap(), 0);
}

#[test]
fn both_zeros_are_equal() {
    let choose = |params| Sampler::new(params, 2, vec![]).unwrap().sample(&[-0.0, 0.0]).unwrap();
    assert_eq!(choose(SamplingParams::greedy()), 0);
    assert_eq!(choose(SamplingParams { top_k: 1, ..neutral() }), 0);
}

#[test]
fn dry_matches_llama_cpp() {
    // Recent tokens, expected probabilities, multiplier, allowed length, breakers.
    type Case<'a> = (&'a [u32], &'a [f32], f32, usize, &'a [u32]);
    let cases: [Case; 5] = [
        (&[0, 1], &[0.25; 4], 1.0, 2, &[]),
        (&[0, 1, 2, 0, 1], &[0.296923, 0.296923, 0.109232, 0.296923], 1.0, 2, &[]),
        (&[0, 1, 3, 4, 0, 1], &[0.2; 5], 1.0, 2, &[3]),
        (&[0, 1, 2, 0, 1], &[0.241818, 0.241818, 0.032727, 0.241818, 0.241818], 2.0, 2, &[]),
        (&[0, 1, 2, 3, 4, 0, 1], &[0.2; 5], 1.0, 4, &[]),
    ];
    for (seen, expected, dry_multiplier, dry_allowed, breakers) in cases {
        let params = SamplingParams { dry_multiplier, dry_base: 1.1, dry_allowed, ..neutral() };
        let mut candidates: Vec<TokenCandidate> = (0..expected.len() as u32)
            .map(|id| TokenCandidate { id, logit: (1.0 / expected.len() as f32).ln(), probability: 0.0 })
            .collect();
        dry::DrySampler::new(breakers::Breakers::of_tokens(breakers.to_vec())).apply(
            &params,
            seen,
            &mut candidates,
        );
        truncation::softmax(&mut candidates, 1.0);
        for (found, expected) in candidates.iter().zip(expected) {
            assert!((found.probability - expected).abs() < 1e-5, "{seen:?}: {found:?}, expected {expected}");
        }
    }
}

#[test]
fn penalties_match_llama_cpp() {
    let cases: [(&[u32], f32, f32, [f32; 5]); 6] = [
        (&[0], 50.0, 0.0, [0.0, 0.25, 0.25, 0.25, 0.25]),
        (&[0, 1, 2], 50.0, 0.0, [0.0, 0.0, 0.0, 0.5, 0.5]),
        (&[0, 1, 2, 0, 0], 50.0, 0.0, [0.0, 0.0, 0.0, 0.5, 0.5]),
        (&[0], 1.0, 5.0, [0.000011, 0.249997, 0.249997, 0.249997, 0.249997]),
        (&[0, 1, 2], 1.0, 5.0, [0.000023, 0.000023, 0.000023, 0.499966, 0.499966]),
        (&[0, 1, 2, 0, 0], 1.0, 5.0, [0.0, 0.000023, 0.000023, 0.499977, 0.499977]),
    ];
    for (seen, repeat_penalty, others, expected) in cases {
        let params = SamplingParams {
            repeat_penalty,
            frequency_penalty: others,
            presence_penalty: others,
            ..neutral()
        };
        let mut candidates: Vec<TokenCandidate> =
            (0..5).map(|id| TokenCandidate { id, logit: 0.2f32.ln(), probability: 0.0 }).collect();
        penalties::Penalties::new().apply(&params, seen, &mut candidates);
        truncation::softmax(&mut candidates, 1.0);
        for (found, expected) in candidates.iter().zip(expected) {
            assert!((found.probability - expected).abs() < 1e-5, "{seen:?}: {found:?}, expected {expected}");
        }
    }
}

#[test]
fn enough_largest_logits_give_the_choice_of_the_whole_row() {
    use latent_backend::{Logits, MAX_TOP_LOGITS, TokenLogit};
    let largest = |row: &[f32], count: usize| {
        let mut all: Vec<TokenLogit> =
            (0..).zip(row).map(|(token, logit)| TokenLogit { token, logit: *logit }).collect();
        all.retain(|pair| pair.logit > f32::NEG_INFINITY);
        all.sort_by(|a, b| b.logit.partial_cmp(&a.logit).unwrap().then(a.token.cmp(&b.token)));
        all.truncate(count);
        all.sort_by_key(|pair| pair.token);
        all
    };
    let mut random = random::Random::new(11);
    let penalised = SamplingParams {
        repeat_penalty: 1.3,
        presence_penalty: 0.4,
        frequency_penalty: 0.2,
        repeat_last_n: 20,
        ..SamplingParams::default()
    };
    let chains = [
        SamplingParams::greedy(),
        SamplingParams { temperature: 0.0, ..penalised.clone() },
        SamplingParams::default(),
        SamplingParams { top_k: 1, ..SamplingParams::default() },
        SamplingParams { top_k: 5, typical_p: 0.7, xtc_probability: 0.5, ..SamplingParams::default() },
        SamplingParams { logit_bias: vec![(3, f32::NEG_INFINITY), (900, -4.0)], ..penalised.clone() },
        penalised,
    ];
    for (chain, params) in chains.into_iter().enumerate() {
        // 30 candidates are fewer than top-k. Few different values give many equal logits.
        for (vocab, values) in [(30, 5), (1000, 7), (1000, 1 << 20)] {
            let mut params = params.clone();
            params.logit_bias.retain(|(token, _)| (*token as usize) < vocab);
            let mut whole = Sampler::new(params.clone(), vocab, vec![]).unwrap();
            let mut cut = Sampler::new(params, vocab, vec![]).unwrap();
            for step in 0..200 {
                let value = |random: &mut random::Random| (random.unit() * f64::from(values)).floor() as f32;
                let mut row: Vec<f32> =
                    (0..vocab).map(|_| value(&mut random) * 12.0 / values as f32 - 6.0).collect();
                (row[5], row[7], row[8]) = (f32::NAN, f32::NEG_INFINITY, -0.0);
                let enough = cut.enough(0, 0);
                assert!((1..=MAX_TOP_LOGITS).contains(&enough), "chain {chain}: {enough}");
                let expected = whole.sample(&row).unwrap();
                let found = cut.sample_of(Logits::Largest(&largest(&row, enough)), &[]).unwrap();
                assert_eq!(found, expected, "chain {chain}, {vocab} tokens, step {step}");
                whole.accept(expected);
                cut.accept(found);
            }
        }
    }
    // Parameters that need the whole row.
    let whole_rows = [
        SamplingParams { top_k: 0, ..SamplingParams::default() },
        SamplingParams { top_k: MAX_TOP_LOGITS, ..SamplingParams::default() },
        SamplingParams { dry_multiplier: 0.8, ..SamplingParams::default() },
        SamplingParams { repeat_penalty: 0.9, ..SamplingParams::greedy() },
        SamplingParams { logit_bias: vec![(1, 0.5)], ..SamplingParams::greedy() },
    ];
    for params in whole_rows {
        assert_eq!(Sampler::new(params.clone(), 1000, vec![]).unwrap().enough(0, 0), 0, "{params:?}");
    }
}
