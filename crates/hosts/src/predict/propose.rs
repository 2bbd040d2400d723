//! Predicts the performance of partitions, and finds the best ones.

use super::group::groups;
use super::load::{PartLoad, PredictionCase};
use super::network::{Host, NetworkLink};
use super::peers::{self, GroupSeconds};
use super::shared::{PlannedModel, SharedLoad};
use super::stretches::{PredictError, crossings, stretches};
use latent_graph::Partition;
use std::ops::Range;

/// The prediction for one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct RankPrediction {
    pub host: String,
    pub layers: Range<usize>,
    /// Bytes of weights, KV cache and scratch memory.
    pub memory: f64,
    /// Computing time of a step in seconds.
    pub seconds: f64,
}

/// The prediction for a partition of a model over hosts.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    pub partition: Partition,
    pub ranks: Vec<RankPrediction>,
    /// Latency of a step in seconds.
    pub step: f64,
    /// Seconds of it that are spent on messages between ranks.
    pub links: f64,
    /// Tokens per second of all steps in flight.
    pub tokens_per_second: f64,
    /// Seconds to the first token of a prompt, if the FLOPS of all hosts are known.
    pub first_token: Option<f64>,
}

/// A kind of partition, with the prediction for the best partition of this kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    /// `pipeline`, `tensor=2`, …
    pub kind: String,
    /// The best partition, over the number of hosts with which it is fastest, or why none is
    /// possible.
    pub best: Result<Prediction, PredictError>,
}

/// Predicts the performance of a partition. Hosts are in the order of ranks.
///
/// # Errors
/// The partition does not match the model or the number of hosts. Memory is not checked.
pub fn predict(
    model: &PlannedModel<'_>,
    hosts: &[Host],
    link: NetworkLink,
    partition: &Partition,
    case: &PredictionCase,
) -> Result<Prediction, PredictError> {
    let cut = |error: latent_graph::PartitionError| PredictError::Cut(error.to_string());
    let (ranks, members) = (hosts.len(), partition.members());
    let layers = |rank| Ok(partition.part(model.config, rank, ranks).map_err(cut)?.layers);
    let stretches: Vec<Range<usize>> = (0..ranks).step_by(members).map(layers).collect::<Result<_, _>>()?;
    let shared =
        SharedLoad::new(model, partition.tensor(), partition.experts(), case).map_err(PredictError::Cut)?;
    Ok(Prediction { partition: partition.clone(), ..of_stretches(&shared, hosts, &stretches, &link, case)? })
}

/// Predicts each kind of partition. The fastest one is first. It may use only the first of the
/// hosts.
pub fn propose(
    model: &PlannedModel<'_>,
    hosts: &[Host],
    link: NetworkLink,
    case: &PredictionCase,
) -> Vec<Proposal> {
    let mut found: Vec<Proposal> = Vec::new();
    for members in (1..=hosts.len()).filter(|members| members.is_power_of_two() || *members == hosts.len()) {
        let mut kinds = vec![(members, 1)];
        if members > 1 && model.config.moe.is_some() {
            kinds.extend([(1, members), (members, members)]);
        }
        for (tensor, experts) in kinds {
            let shared = SharedLoad::new(model, tensor, experts, case).map_err(PredictError::Cut);
            let best = shared.and_then(|shared| best_count(&shared, hosts, &link, case));
            found.push(Proposal { kind: kind(tensor, experts), best });
        }
    }
    // Kinds that are not possible come last.
    let speed = |proposal: &Proposal| proposal.best.as_ref().map_or(0.0, |best| best.tokens_per_second);
    found.sort_by(|a, b| speed(b).total_cmp(&speed(a)));
    found
}

fn kind(tensor: usize, experts: usize) -> String {
    let shared: Vec<String> = [("tensor", tensor), ("experts", experts)]
        .into_iter()
        .filter(|(_, members)| *members > 1)
        .map(|(key, members)| format!("{key}={members}"))
        .collect();
    if shared.is_empty() { "pipeline".into() } else { shared.join(",") }
}

/// The best prediction over the first hosts, or an error if no number of hosts works.
fn best_count(
    model: &SharedLoad,
    hosts: &[Host],
    link: &NetworkLink,
    case: &PredictionCase,
) -> Result<Prediction, PredictError> {
    let mut best: Option<Prediction> = None;
    let mut last = PredictError::Cut("no hosts".into());
    for count in (model.members()..=hosts.len()).step_by(model.members()) {
        let hosts = &hosts[..count];
        match stretches(model, hosts, link, case)
            .and_then(|found| of_stretches(model, hosts, &found, link, case))
        {
            // Of equally fast predictions, the one with fewer hosts is kept.
            Ok(found)
                if best.as_ref().is_none_or(|best| found.tokens_per_second > best.tokens_per_second) =>
            {
                best = Some(found);
            }
            Ok(_) => {}
            Err(error) => last = error,
        }
    }
    best.ok_or(last)
}

fn of_stretches(
    model: &SharedLoad,
    hosts: &[Host],
    stretches: &[Range<usize>],
    link: &NetworkLink,
    case: &PredictionCase,
) -> Result<Prediction, PredictError> {
    let counts: Vec<usize> = stretches.iter().map(ExactSizeIterator::len).collect();
    let partition = model.partition(&counts).map_err(PredictError::Cut)?;
    let groups = groups(model, hosts, case);
    let of_range = |range: &Range<usize>| {
        let mut layers = PartLoad::default();
        model.layers[range.clone()].iter().for_each(|layer| layers += *layer);
        layers
    };
    let layers: Vec<PartLoad> = stretches.iter().map(of_range).collect();
    let chunks = case.prompt.div_ceil(case.chunk.max(1)).max(1);
    let of_steps = peers::seconds(&groups, &layers, link, |load| &load.step, case.in_flight);
    let of_prompt = peers::seconds(&groups, &layers, link, |load| &load.prompt, chunks);
    let sum = |of: &[GroupSeconds], part: fn(&GroupSeconds) -> f64| of.iter().map(part).sum::<f64>();
    let slowest = |of: &[GroupSeconds]| of.iter().map(GroupSeconds::all).fold(0.0, f64::max);
    let (computing, sums) = (sum(&of_steps, |of| of.computing), sum(&of_steps, |of| of.sums));
    let mut ranks = Vec::new();
    for (((group, seconds), layers), range) in groups.iter().zip(&of_steps).zip(&layers).zip(stretches) {
        for (at, (host, seconds)) in group.hosts.iter().zip(&seconds.ranks).enumerate() {
            let memory = group.memory(at, *layers, case);
            ranks.push(RankPrediction {
                host: host.name.clone(),
                layers: range.clone(),
                memory,
                seconds: *seconds,
            });
        }
    }
    // Rank 0 starts a step when it sends it, and the other members of its group one latency later.
    // In a pipeline this is hidden, since later stretches wait for rows anyway.
    let told = if stretches.len() == 1 && hosts.len() > 1 { link.latency } else { 0.0 };
    let links = sums + told + crossings(model, stretches.len(), link, case);
    let step = computing + links;
    let cycle = step.max(case.in_flight as f64 * slowest(&of_steps));
    let chunks = chunks as f64;
    // Messages of a prompt carry the rows of a chunk, and not those of a decoding step.
    let rows = PredictionCase { rows: case.chunk.min(case.prompt), ..*case };
    // A chunk runs through all stretches. With several stretches, the next chunk follows as soon as
    // the slowest one is free.
    let through =
        sum(&of_prompt, GroupSeconds::all) / chunks + told + crossings(model, stretches.len(), link, &rows);
    let each = if stretches.len() > 1 { slowest(&of_prompt) / chunks } else { through };
    // A pipeline has at most as many chunks in flight as stretches (`RankLinks::steps_in_flight`).
    let each = each.max(through / stretches.len() as f64);
    let first_token = through + (chunks - 1.0) * each;
    // Without FLOPS a prompt would seem to take only the time to read its weights.
    let known = hosts.iter().all(|host| host.speed.flops.is_some());
    Ok(Prediction {
        partition,
        ranks,
        step,
        links,
        tokens_per_second: case.rows as f64 * case.in_flight as f64 / cycle,
        first_token: known.then_some(first_token),
    })
}

#[cfg(test)]
mod tests {
    use super::super::load::StepWork;
    use super::super::network::HostSpeed;
    use super::*;
    use latent_graph::config::WireType;

    fn load(gigabytes: f64) -> PartLoad {
        let work = StepWork { bytes: gigabytes * 1e9, flops: gigabytes * 2e9, ..StepWork::default() };
        PartLoad {
            stored: gigabytes * 1e9,
            cached: 0.0,
            step: work,
            prompt: StepWork { flops: 100.0 * work.flops, ..work },
        }
    }

    /// A model of ten layers of 1 GB, and 1 GB around them, all of which each step reads. Each of
    /// the `members` ranks of a layer has an equal part of it.
    fn model(members: usize) -> SharedLoad {
        let mut layer = PartLoad { cached: 1000.0, ..load(1.0 / members as f64) };
        if members > 1 {
            layer.step.sums = 2.0;
            layer.step.summed = 2e4;
        }
        let (layers, around) = (vec![layer; 10], load(1.0));
        SharedLoad { tensor: members, experts: 1, layers, around, row: 2500.0, scratch: 0.0, step_rows: 0 }
    }

    fn host(memory: f64, bandwidth: f64) -> Host {
        let (memory, bandwidth) = (memory * 1e9, bandwidth * 1e9);
        let speed = HostSpeed { bandwidth, flops: Some(1e12) };
        Host { name: format!("{memory} bytes"), memory, speed, at_once: None }
    }

    /// A host that reads at half speed while all other ranks compute.
    fn crowded() -> Host {
        let host = host(20.0, 10.0);
        Host { at_once: Some(HostSpeed { bandwidth: 5e9, flops: Some(1e12) }), ..host }
    }

    const LINK: NetworkLink = NetworkLink { bandwidth: 1e8, latency: 1e-4, sums: None };
    const CASE: PredictionCase = PredictionCase {
        context: 1000,
        past: 0,
        rows: 1,
        in_flight: 1,
        prompt: 100,
        chunk: 100,
        wire: WireType::F32,
    };

    fn best(members: usize, hosts: &[Host], case: &PredictionCase) -> Result<Prediction, PredictError> {
        let model = model(members);
        let found = stretches(&model, hosts, &LINK, case)?;
        of_stretches(&model, hosts, &found, &LINK, case)
    }

    #[test]
    fn the_faster_host_gets_as_many_layers_as_fit() {
        let found = best(1, &[host(6.0, 10.0), host(8.0, 40.0)], &CASE).unwrap();
        // The slower host reads three layers and the gigabyte around them at 10 GB/s. The faster
        // one has no room for an eighth layer of 1 GB, since each layer also has a cache.
        assert_eq!(found.partition.to_string(), "layers=3:7");
        let seconds = 4.0 / 10.0 + 7.0 / 40.0;
        assert!((found.step - seconds - found.links).abs() < 1e-9, "{found:?}");
        // A row of 10 kB goes to the second host and back.
        assert!((found.links - 2.0 * (1e-4 + 1e-4)).abs() < 1e-12, "{found:?}");
        assert!((found.tokens_per_second * found.step - 1.0).abs() < 1e-9);
        assert!((found.ranks[1].memory - (7e9 + 7.0 * 1e6)).abs() < 1.0);
        // The rows of a prompt are a message of 1 MB, above the eager limit: a request and its
        // answer precede it, so that it takes three latencies.
        let first = 11.0 * 2e11 / 1e12 + 2.0 * (3e-4 + 1e-2);
        assert!((found.first_token.unwrap() - first).abs() < 1e-9);
    }

    #[test]
    fn with_several_steps_in_flight_the_slowest_stretch_is_shortened() {
        let hosts = [host(20.0, 10.0), host(20.0, 20.0)];
        let alone = best(1, &hosts, &CASE).unwrap();
        assert_eq!(alone.partition.to_string(), "layers=1:9");
        let case = PredictionCase { in_flight: 2, ..CASE };
        let found = best(1, &hosts, &case).unwrap();
        // 3 GB at 10 GB/s take 0.3 s, and 8 GB at 20 GB/s take 0.4 s. Two steps in flight take
        // twice the time of the slower host.
        assert_eq!(found.partition.to_string(), "layers=2:8");
        assert!((found.tokens_per_second - 2.0 / 0.8).abs() < 1e-9, "{found:?}");
        assert!(found.step > alone.step);
    }

    #[test]
    fn chunks_of_a_prompt_follow_each_other_through_a_pipeline() {
        let hosts = [host(20.0, 10.0), host(20.0, 10.0)];
        let model = model(1);
        let of = |chunk| {
            let case = PredictionCase { chunk, ..CASE };
            of_stretches(&model, &hosts, &[0..4, 4..10], &LINK, &case).unwrap().first_token.unwrap()
        };
        // A whole prompt takes 1 s for the 5 GB of the first host and 1.2 s for the 6 GB of the
        // second. The rows of a chunk go to the second host and back.
        let crossing = |rows: f64, trips: f64| 2.0 * (trips * 1e-4 + rows * 1e4 / 1e8);
        assert!((of(100) - 2.2 - crossing(100.0, 3.0)).abs() < 1e-9, "{}", of(100));
        assert!((of(50) - 1.1 - 0.6 - crossing(50.0, 3.0)).abs() < 1e-9, "{}", of(50));
    }

    #[test]
    fn ranks_that_share_layers_wait_for_each_other_and_for_sums() {
        let found = best(2, &[host(20.0, 10.0), host(20.0, 20.0)], &CASE).unwrap();
        assert_eq!(found.partition.to_string(), "layers=10,tensor=2");
        // The slower host reads half of ten layers and the gigabyte around them, in 0.6 s. The
        // links take twenty sums of 10 kB, and one latency for the command that starts the step.
        let links = 20.0 * (1e-4 + 1e-4) + 1e-4;
        assert!((found.links - links).abs() < 1e-9 && (found.step - 0.6 - links).abs() < 1e-9, "{found:?}");
        let four = vec![host(20.0, 10.0); 4];
        assert_eq!(best(2, &four, &CASE).unwrap().partition.ranks(), 4);
    }

    #[test]
    fn ranks_of_one_machine_are_slower_while_they_compute_concurrently() {
        let hosts = vec![crowded(); 2];
        let of = |in_flight| {
            let case = PredictionCase { in_flight, ..CASE };
            of_stretches(&model(1), &hosts, &[0..6, 6..10], &LINK, &case).unwrap()
        };
        // With one step in flight, the two ranks compute in turn, at full speed.
        let alone = of(1);
        assert!((alone.step - alone.links - 1.1).abs() < 1e-9, "{alone:?}");
        // Rank 0 computes 0.7 s alone. During 0.4 s of it rank 1 computes too, which doubles them.
        let both = of(2);
        assert!((both.ranks[0].seconds - 1.1).abs() < 1e-9 && (both.ranks[1].seconds - 0.8).abs() < 1e-9);
        assert!((both.tokens_per_second - 2.0 / 2.2).abs() < 1e-9, "{both:?}");
        // Ranks that share layers always compute them concurrently, at half speed. Rank 0 computes
        // the part around the layers alone, at full speed.
        let shared = best(2, &hosts, &CASE).unwrap();
        assert!((shared.step - shared.links - (1.0 + 0.1)).abs() < 1e-9, "{shared:?}");
        // In two groups of two ranks, one of the three other ranks computes: a third of the peers.
        let four = of_stretches(&model(2), &vec![crowded(); 4], &[0..5, 5..10], &LINK, &CASE).unwrap();
        let third = 0.25 * 4.0 / 3.0;
        assert!((four.step - four.links - (2.0 * third + 0.1)).abs() < 1e-9, "{four:?}");
    }

    #[test]
    fn one_host_computes_all_layers_without_messages() {
        let found = best(1, &[host(20.0, 10.0)], &CASE).unwrap();
        assert_eq!((found.partition.to_string().as_str(), found.links), ("layers=10", 0.0));
        assert!((found.step - 1.1).abs() < 1e-9);
    }

    #[test]
    fn an_error_of_memory_states_the_needed_and_the_available() {
        let case = PredictionCase { context: 0, ..CASE };
        let error = best(1, &[host(6.0, 10.0), host(4.5, 10.0)], &case).unwrap_err();
        assert_eq!(error, PredictError::Memory { context: 0, needed: 11.0, memory: 10.5 });
        // Two ranks that share each layer: rank 0 needs half of the layers and 1 GB around them.
        let error = best(2, &[host(5.5, 10.0), host(5.5, 10.0)], &case).unwrap_err();
        assert_eq!(error, PredictError::Memory { context: 0, needed: 11.0, memory: 11.0 });
        // More hosts than the ten layers of the model.
        let many = vec![host(6.0, 10.0); 11];
        assert!(matches!(best(1, &many, &CASE), Err(PredictError::TooMany { .. })));
    }

    #[test]
    fn scratch_memory_leaves_less_room_for_layers() {
        let hosts = [host(7.0, 10.0), host(8.0, 10.0)];
        assert_eq!(best(1, &hosts, &CASE).unwrap().partition.to_string(), "layers=3:7");
        let model = SharedLoad { scratch: 1.5e9, step_rows: 512, ..model(1) };
        let found = stretches(&model, &hosts, &LINK, &CASE).unwrap();
        // Without scratch memory the second host has room for seven layers, with it only for six.
        assert_eq!(found, [0..4, 4..10]);
        let ranks = of_stretches(&model, &hosts, &found, &LINK, &CASE).unwrap().ranks;
        // The buffers of rows in messages come on top of weights, cache and scratch memory.
        let crossing = ranks[0].memory - (5e9 + 4.0 * 1e6 + 1.5e9);
        assert!((512.0 * 2500.0 * 4.0..100e6).contains(&crossing), "{crossing}");
    }

    #[test]
    fn best_count_uses_more_hosts_only_if_that_is_faster() {
        let found = best_count(&model(1), &[host(20.0, 10.0), host(20.0, 10.0)], &LINK, &CASE).unwrap();
        assert_eq!(found.ranks.len(), 1);
        let case = PredictionCase { in_flight: 2, ..CASE };
        let found = best_count(&model(1), &[host(30.0, 10.0), host(30.0, 10.0)], &LINK, &case).unwrap();
        assert_eq!(found.ranks.len(), 2);
    }
}
