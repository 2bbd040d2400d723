//! Which layers each of several hosts should have, and how fast the model is then.
//!
//! A step of few rows reads the weights of its layers once: a rank takes as long as its bytes take at its read bandwidth. Ranks take turns, since a step goes
//! through all layers before the next begins, and at each boundary the residual rows cross a link. A prompt takes the operations that it needs.

use latent_graph::ir::{AttentionPath, Step};
use latent_graph::passes::BatchBucket;
use latent_graph::stage_index::{LAYERS, LM_HEAD};
use latent_graph::{Partition, Stage};
use latent_types::CacheType;
use std::ops::Range;

/// What a part of a model takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Bytes of its weights.
    pub stored: f64,
    /// Bytes that a step of one row reads of them.
    pub read: f64,
    /// Bytes of a token in the KV cache.
    pub cached: f64,
    /// Floating-point operations of a row.
    pub flops: f64,
}

impl std::ops::AddAssign for Load {
    fn add_assign(&mut self, other: Load) {
        self.stored += other.stored;
        self.read += other.read;
        self.cached += other.cached;
        self.flops += other.flops;
    }
}

/// What a model takes, layer by layer.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelLoad {
    /// Of each layer.
    pub layers: Vec<Load>,
    /// Of what rank 0 has in addition to its layers: embedding, final norm, `lm_head`.
    pub around: Load,
    /// Bytes of a residual row on its way to another rank.
    pub row: f64,
}

impl ModelLoad {
    /// From the plans of the whole model, for a sequence of `context` tokens in the cache.
    pub fn of_stages(stages: &[Stage], hidden_size: usize, cache: CacheType, context: usize) -> ModelLoad {
        let mut layers: Vec<Load> = Vec::new();
        let mut around = Load::default();
        let path = AttentionPath::Absorbed;
        let step = Step { rows: 1, sequences: 1, past_len: context, cache, path };
        for stage in [LAYERS, LM_HEAD].into_iter().filter_map(|index| stages.get(index)) {
            let ir = &stage.plans[BatchBucket::Decode as usize].ir;
            let mut add = |layer: Option<usize>, load: Load| match layer {
                Some(layer) => {
                    layers.resize(layers.len().max(layer + 1), Load::default());
                    layers[layer] += load;
                }
                None => around += load,
            };
            for node in &ir.nodes {
                let cost = node.cost(ir, step);
                let read = cost.weight_bytes + cost.cache_bytes;
                add(node.layer, Load { read, flops: cost.flops, ..Load::default() });
            }
            for weight in &ir.weights {
                add(weight.layer, Load { stored: weight.bytes() as f64, ..Load::default() });
            }
            for layer in &ir.kv_layers {
                add(Some(layer.layer), Load { cached: layer.row(cache).bytes() as f64, ..Load::default() });
            }
        }
        ModelLoad { layers, around, row: 4.0 * hidden_size as f64 }
    }
}

/// What a host can do, as `latent bench` and `latent profile` measure it.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Bytes of memory that the model may take.
    pub memory: f64,
    /// Bytes per second that it reads.
    pub bandwidth: f64,
    /// Floating-point operations per second of prompts; none where they were not measured.
    pub flops: Option<f64>,
}

/// The network between hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bytes per second.
    pub bandwidth: f64,
    /// Seconds that a message takes however short it is.
    pub latency: f64,
}

/// What is expected of one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct RankPrediction {
    /// Its host.
    pub host: String,
    /// Its layers.
    pub layers: Range<usize>,
    /// Bytes of weights and of the cache.
    pub memory: f64,
    /// Seconds of a step of one row.
    pub seconds: f64,
}

/// What is expected of a model on several hosts.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// How they share it.
    pub partition: Partition,
    /// Each rank.
    pub ranks: Vec<RankPrediction>,
    /// Seconds of a step that the links take.
    pub links: f64,
    /// Seconds of a step of one row.
    pub step: f64,
    /// Seconds to the first token of a prompt, where all hosts say how fast they compute.
    pub first_token: Option<f64>,
}

/// Hosts that cannot hold the model together.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PredictError {
    /// Each rank needs a layer.
    #[error("{hosts} hosts for a model of {layers} layers: each needs a layer at least")]
    TooMany {
        /// Hosts.
        hosts: usize,
        /// Layers.
        layers: usize,
    },
    /// Too little memory.
    #[error(
        "the model does not fit: weights and a cache of {context} tokens take {needed:.1} GB, the hosts have {memory:.1} GB, in pieces of whole layers; \
         give more hosts, a smaller --ctx-size, or a file of fewer bits"
    )]
    Memory {
        /// Tokens of context.
        context: usize,
        /// Gigabytes that it takes.
        needed: f64,
        /// Gigabytes of all hosts.
        memory: f64,
    },
}

impl ModelLoad {
    /// What a rank with these layers has to hold and to do.
    fn of_rank(&self, rank: usize, layers: Range<usize>) -> Load {
        let mut load = if rank == 0 { self.around } else { Load::default() };
        self.layers[layers].iter().for_each(|layer| load += *layer);
        load
    }
}

impl Load {
    /// Bytes of weights, and of a cache of `context` tokens.
    fn memory(&self, context: usize) -> f64 {
        self.stored + self.cached * context as f64
    }
}

/// The stretches of layers, in the order of the hosts, with which a step is quickest and every host has room for `context` tokens.
fn stretches(model: &ModelLoad, hosts: &[Host], context: usize) -> Result<Vec<Range<usize>>, PredictError> {
    let (count, layers) = (hosts.len(), model.layers.len());
    if count == 0 || count > layers {
        return Err(PredictError::TooMany { hosts: count, layers });
    }
    // best[end]: seconds with which the hosts so far run the layers before `end`, and where the last of them begins
    let mut best: Vec<Vec<Option<(f64, usize)>>> = vec![vec![None; layers + 1]; count];
    for (rank, host) in hosts.iter().enumerate() {
        for start in rank..layers {
            let before = match rank {
                0 if start == 0 => 0.0,
                0 => continue,
                _ => match best[rank - 1][start] {
                    Some((seconds, _)) => seconds,
                    None => continue,
                },
            };
            let mut own = model.of_rank(rank, start..start);
            for end in start + 1..=layers - (count - 1 - rank) {
                own += model.layers[end - 1];
                if own.memory(context) > host.memory {
                    break;
                }
                let seconds = before + own.read / host.bandwidth;
                if best[rank][end].is_none_or(|(least, _)| seconds < least) {
                    best[rank][end] = Some((seconds, start));
                }
            }
        }
    }
    let mut ends = vec![layers];
    for rank in (0..count).rev() {
        let Some((_, start)) = best[rank][ends[ends.len() - 1]] else {
            let needed = model.of_rank(0, 0..layers).memory(context) / 1e9;
            let memory = hosts.iter().map(|host| host.memory).sum::<f64>() / 1e9;
            return Err(PredictError::Memory { context, needed, memory });
        };
        ends.push(start);
    }
    ends.reverse();
    Ok(ends.windows(2).map(|pair| pair[0]..pair[1]).collect())
}

/// The pipeline, in the order of the hosts, with which a step is quickest and every host has room.
///
/// # Errors
/// [`PredictError`] where there is none.
pub fn propose(
    model: &ModelLoad,
    hosts: &[Host],
    link: Link,
    (context, prompt): (usize, usize),
) -> Result<Prediction, PredictError> {
    let (count, stretches) = (hosts.len(), stretches(model, hosts, context)?);
    let ranks: Vec<RankPrediction> = hosts
        .iter()
        .zip(&stretches)
        .enumerate()
        .map(|(rank, (host, range))| {
            let own = model.of_rank(rank, range.clone());
            let (memory, seconds) = (own.memory(context), own.read / host.bandwidth);
            RankPrediction { host: host.name.clone(), layers: range.clone(), memory, seconds }
        })
        .collect();
    // from each rank to the next, and from the last back to the first
    let crossings = if count > 1 { count as f64 } else { 0.0 };
    let links = crossings * (link.latency + model.row / link.bandwidth);
    let computing: Option<f64> = hosts
        .iter()
        .zip(&stretches)
        .enumerate()
        .map(|(rank, (host, range))| {
            Some(model.of_rank(rank, range.clone()).flops * prompt as f64 / host.flops?)
        })
        .sum();
    let rows = crossings * (link.latency + prompt as f64 * model.row / link.bandwidth);
    Ok(Prediction {
        partition: Partition::of_layers(stretches.iter().map(ExactSizeIterator::len).collect()),
        step: ranks.iter().map(|rank| rank.seconds).sum::<f64>() + links,
        ranks,
        links,
        first_token: computing.map(|seconds| seconds + rows),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten layers of a gigabyte, all of it read in each step, and one around them.
    fn model() -> ModelLoad {
        let layer = Load { stored: 1e9, read: 1e9, cached: 1000.0, flops: 2e9 };
        ModelLoad { layers: vec![layer; 10], around: Load { cached: 0.0, ..layer }, row: 1e4 }
    }

    fn host(memory: f64, bandwidth: f64) -> Host {
        Host {
            name: format!("{memory} GB"),
            memory: memory * 1e9,
            bandwidth: bandwidth * 1e9,
            flops: Some(1e11),
        }
    }

    const LINK: Link = Link { bandwidth: 1e8, latency: 1e-4 };

    #[test]
    fn the_faster_host_gets_as_many_layers_as_fit() {
        let found = propose(&model(), &[host(6.0, 10.0), host(8.0, 40.0)], LINK, (1000, 100)).unwrap();
        // two layers and what is around them, at 10 GB/s; eight layers less what the cache takes of the room
        assert_eq!(found.partition.to_string(), "layers=3:7");
        let seconds = 4.0 / 10.0 + 7.0 / 40.0;
        assert!((found.step - seconds - found.links).abs() < 1e-9, "{found:?}");
        // there and back
        assert!((found.links - 2.0 * (1e-4 + 1e-4)).abs() < 1e-12);
        assert!((found.ranks[1].memory - (7e9 + 7.0 * 1e6)).abs() < 1.0);
        let first = 11.0 * 2e9 * 100.0 / 1e11 + 2.0 * (1e-4 + 1e-2);
        assert!((found.first_token.unwrap() - first).abs() < 1e-9);
    }

    #[test]
    fn one_host_has_no_links_and_all_layers() {
        let found = propose(&model(), &[host(20.0, 10.0)], LINK, (0, 0)).unwrap();
        assert_eq!((found.partition.to_string().as_str(), found.links), ("layers=10", 0.0));
        assert!((found.step - 1.1).abs() < 1e-9);
    }

    #[test]
    fn hosts_without_room_are_an_error_with_both_sides() {
        let error = propose(&model(), &[host(6.0, 10.0), host(4.5, 10.0)], LINK, (0, 0)).unwrap_err();
        assert_eq!(error, PredictError::Memory { context: 0, needed: 11.0, memory: 10.5 });
        let many = vec![host(6.0, 10.0); 11];
        assert!(matches!(propose(&model(), &many, LINK, (0, 0)), Err(PredictError::TooMany { .. })));
    }
}
