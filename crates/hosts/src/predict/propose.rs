//! Predicted performance of partitions, and the best of them.

use super::company::{self, GroupSeconds};
use super::group::groups;
use super::load::{PartLoad, PredictionCase};
use super::network::{Host, NetworkLink};
use super::shared::{PlannedModel, SharedLoad};
use super::stretches::{PredictError, crossings, stretches};
use latent_graph::Partition;
use std::ops::Range;

/// What is expected of one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct RankPrediction {
    pub host: String,
    pub layers: Range<usize>,
    /// Bytes of weights, of the cache, and of what steps work in.
    pub memory: f64,
    /// Seconds that it computes in a step.
    pub seconds: f64,
}

/// What is expected of a model on several hosts.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// How they share it.
    pub partition: Partition,
    pub ranks: Vec<RankPrediction>,
    /// Seconds of a step from its beginning to its end.
    pub step: f64,
    /// Those of them in which values are on their way between ranks.
    pub links: f64,
    /// Tokens per second of all steps in flight.
    pub tokens_per_second: f64,
    /// Seconds to the first token of a prompt, where all hosts say how fast they compute.
    pub first_token: Option<f64>,
}

/// A kind of partition, and what is expected of the best one of the kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    /// `pipeline`, `tensor=2`, …
    pub kind: String,
    /// The best of its kind, with as many of the hosts as make it the quickest; or why there is none.
    pub best: Result<Prediction, PredictError>,
}

/// What is expected of one partition on hosts in the order of its ranks.
///
/// # Errors
/// A partition for another model or another number of hosts. Whether it fits is not asked.
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

/// Every kind of partition over the first hosts, or all of them, the best one first.
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
    let of_steps = company::seconds(&groups, &layers, link, |load| &load.step, case.in_flight);
    let of_prompt = company::seconds(&groups, &layers, link, |load| &load.prompt, chunks);
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
    // other ranks hear of a step when rank 0 begins it: those that it waits for are late by that
    let told = if stretches.len() == 1 && hosts.len() > 1 { link.latency } else { 0.0 };
    let links = sums + told + crossings(model, stretches.len(), link, case);
    let step = computing + links;
    let cycle = step.max(case.in_flight as f64 * slowest(&of_steps));
    let chunks = chunks as f64;
    let rows = PredictionCase { rows: case.chunk.min(case.prompt), ..*case };
    // a chunk goes through all stretches; with several, the next one follows as soon as the slowest stretch is free
    let through =
        sum(&of_prompt, GroupSeconds::all) / chunks + told + crossings(model, stretches.len(), link, &rows);
    let each = if stretches.len() > 1 { slowest(&of_prompt) / chunks } else { through };
    let each = each.max(through / stretches.len() as f64);
    let first_token = through + (chunks - 1.0) * each;
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

    /// Ten layers of a gigabyte, all of it read in each step, and one around them, for ranks that share each layer by halves, or none that do.
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

    /// One that reads at half of its speed while others compute.
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
        // three layers and what is around them, at 10 GB/s; seven layers, since the cache takes some of the room
        assert_eq!(found.partition.to_string(), "layers=3:7");
        let seconds = 4.0 / 10.0 + 7.0 / 40.0;
        assert!((found.step - seconds - found.links).abs() < 1e-9, "{found:?}");
        // there and back, 10 kB each
        assert!((found.links - 2.0 * (1e-4 + 1e-4)).abs() < 1e-12, "{found:?}");
        assert!((found.tokens_per_second * found.step - 1.0).abs() < 1e-9);
        assert!((found.ranks[1].memory - (7e9 + 7.0 * 1e6)).abs() < 1.0);
        // rows of a prompt are a long message, of which the receiver is asked first
        let first = 11.0 * 2e11 / 1e12 + 2.0 * (3e-4 + 1e-2);
        assert!((found.first_token.unwrap() - first).abs() < 1e-9);
    }

    #[test]
    fn with_steps_in_flight_no_stretch_is_much_longer_than_the_others() {
        let hosts = [host(20.0, 10.0), host(20.0, 20.0)];
        let alone = best(1, &hosts, &CASE).unwrap();
        assert_eq!(alone.partition.to_string(), "layers=1:9");
        let case = PredictionCase { in_flight: 2, ..CASE };
        let found = best(1, &hosts, &case).unwrap();
        // 3 GB at 10 GB/s and 8 GB at 20 GB/s: two steps in flight take twice the slower
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
        // 5 and 6 GB of 1 s and 1.2 s; rows cross twice for a chunk
        let crossing = |rows: f64, trips: f64| 2.0 * (trips * 1e-4 + rows * 1e4 / 1e8);
        assert!((of(100) - 2.2 - crossing(100.0, 3.0)).abs() < 1e-9, "{}", of(100));
        assert!((of(50) - 1.1 - 0.6 - crossing(50.0, 3.0)).abs() < 1e-9, "{}", of(50));
    }

    #[test]
    fn ranks_that_share_layers_wait_for_each_other_and_for_sums() {
        let found = best(2, &[host(20.0, 10.0), host(20.0, 20.0)], &CASE).unwrap();
        assert_eq!(found.partition.to_string(), "layers=10,tensor=2");
        // half of ten layers and what is around them on the slower host; twenty sums of 10 kB; the step is told
        let links = 20.0 * (1e-4 + 1e-4) + 1e-4;
        assert!((found.links - links).abs() < 1e-9 && (found.step - 0.6 - links).abs() < 1e-9, "{found:?}");
        let four = vec![host(20.0, 10.0); 4];
        assert_eq!(best(2, &four, &CASE).unwrap().partition.ranks(), 4);
    }

    #[test]
    fn ranks_of_one_machine_are_slower_while_others_compute() {
        let hosts = vec![crowded(); 2];
        let of = |in_flight| {
            let case = PredictionCase { in_flight, ..CASE };
            of_stretches(&model(1), &hosts, &[0..6, 6..10], &LINK, &case).unwrap()
        };
        // one step in flight: no other group competes for the host
        let alone = of(1);
        assert!((alone.step - alone.links - 1.1).abs() < 1e-9, "{alone:?}");
        // 0.7 s, for 0.4 s of which the other one computes too: that much takes twice as long
        let both = of(2);
        assert!((both.ranks[0].seconds - 1.1).abs() < 1e-9 && (both.ranks[1].seconds - 0.8).abs() < 1e-9);
        assert!((both.tokens_per_second - 2.0 / 2.2).abs() < 1e-9, "{both:?}");
        // those that share layers compute them at once, and rank 0 the rest alone
        let shared = best(2, &hosts, &CASE).unwrap();
        assert!((shared.step - shared.links - (1.0 + 0.1)).abs() < 1e-9, "{shared:?}");
        // of four ranks that share layers by twos, one of three others computes
        let four = of_stretches(&model(2), &vec![crowded(); 4], &[0..5, 5..10], &LINK, &CASE).unwrap();
        let third = 0.25 * 4.0 / 3.0;
        assert!((four.step - four.links - (2.0 * third + 0.1)).abs() < 1e-9, "{four:?}");
    }

    #[test]
    fn one_host_has_no_links_and_all_layers() {
        let found = best(1, &[host(20.0, 10.0)], &CASE).unwrap();
        assert_eq!((found.partition.to_string().as_str(), found.links), ("layers=10", 0.0));
        assert!((found.step - 1.1).abs() < 1e-9);
    }

    #[test]
    fn hosts_without_room_are_an_error_with_both_sides() {
        let case = PredictionCase { context: 0, ..CASE };
        let error = best(1, &[host(6.0, 10.0), host(4.5, 10.0)], &case).unwrap_err();
        assert_eq!(error, PredictError::Memory { context: 0, needed: 11.0, memory: 10.5 });
        let many = vec![host(6.0, 10.0); 11];
        assert!(matches!(best(1, &many, &CASE), Err(PredictError::TooMany { .. })));
    }

    #[test]
    fn what_steps_work_in_takes_room_on_every_host() {
        let hosts = [host(7.0, 10.0), host(8.0, 10.0)];
        assert_eq!(best(1, &hosts, &CASE).unwrap().partition.to_string(), "layers=3:7");
        let model = SharedLoad { scratch: 1.5e9, step_rows: 512, ..model(1) };
        let found = stretches(&model, &hosts, &LINK, &CASE).unwrap();
        // a layer less on the second than without, and rows that are on their way
        assert_eq!(found, [0..4, 4..10]);
        let ranks = of_stretches(&model, &hosts, &found, &LINK, &CASE).unwrap().ranks;
        let crossing = ranks[0].memory - (5e9 + 4.0 * 1e6 + 1.5e9);
        assert!((512.0 * 2500.0 * 4.0..100e6).contains(&crossing), "{crossing}");
    }

    #[test]
    fn more_hosts_are_taken_only_where_they_make_it_quicker() {
        let found = best_count(&model(1), &[host(20.0, 10.0), host(20.0, 10.0)], &LINK, &CASE).unwrap();
        assert_eq!(found.ranks.len(), 1);
        let case = PredictionCase { in_flight: 2, ..CASE };
        let found = best_count(&model(1), &[host(30.0, 10.0), host(30.0, 10.0)], &LINK, &case).unwrap();
        assert_eq!(found.ranks.len(), 2);
    }
}
