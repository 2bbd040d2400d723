//! Broken plans of ranks that share a model.

use super::*;
use crate::Partition;
use crate::ir::{Node, Op};

/// The plans of one of several ranks, and its config.
fn of_rank(config: &ModelConfig, partition: &str, rank: usize, mla: MlaChoice) -> (ModelConfig, Vec<Plan>) {
    let partition: Partition = partition.parse().unwrap();
    let part = partition.part(config, rank, partition.ranks()).unwrap();
    let tensors = DeclaredTensors::new(config, TensorNaming::Gguf, TensorType::BF16).unwrap();
    let config = config.of_part(part);
    let bind = BindOptions { precision: Precision::Default, tier: Tier::Avx2, cache: CacheType::F16 };
    let make = |bucket| {
        let (span, form) = (ModelSpan::backbone(&config), CacheForm::Latent);
        let options = PlanOptions { span, bucket, max_batch_tokens: 64, mla, form, bind };
        Plan::make(&config, &tensors, &target(), &options).unwrap()
    };
    let plans = [BatchBucket::Decode, BatchBucket::SmallBatch, BatchBucket::Prefill].map(make);
    (config, plans.into())
}

fn audited(config: &ModelConfig, plans: &[Plan]) -> Vec<Finding> {
    let target = target();
    let options = BindOptions { precision: Precision::Default, tier: Tier::Avx2, cache: CacheType::F16 };
    let bound = BindContext { target: &target, options };
    let circuit = Circuit::named(&config.circuit).unwrap();
    plans.iter().flat_map(|each| plan(each, circuit, config, bound)).collect()
}

#[test]
fn plans_of_every_rank_are_clean() {
    let mut of_kind = [0; 5];
    // A rank could begin with a layer that reads the selection of the previous rank's indexer. The
    // engine runs such partitions without the indexer.
    let whole = |config: &&ModelConfig| config.mtp_layers == 0 && !config.full_indexers.contains(&false);
    for config in configs().iter().filter(whole) {
        let kinds = ["pipeline=2", "tensor=2", "experts=2", "tensor=2,experts=2", "pipeline=2,tensor=2"];
        for (partition, ran) in kinds.into_iter().zip(&mut of_kind) {
            let parsed: Partition = partition.parse().unwrap();
            let ranks = parsed.ranks();
            if parsed.part(config, 0, ranks).is_err() {
                continue;
            }
            for rank in 0..ranks {
                for mla in [MlaChoice::Auto, MlaChoice::Absorbed, MlaChoice::Naive] {
                    let (own, plans) = of_rank(config, partition, rank, mla);
                    clean(
                        &format!("{} {partition} rank {rank} {mla}", config.circuit),
                        &audited(&own, &plans),
                    );
                }
            }
            *ran += 1;
        }
    }
    assert!(of_kind.iter().all(|ran| *ran > 2), "{of_kind:?}");
}

/// Breaks the decode plan of a rank, and gives its findings.
fn broken(partition: &str, rank: usize, break_it: impl FnOnce(&mut Plan)) -> Vec<Finding> {
    let (own, mut plans) = of_rank(&config(), partition, rank, MlaChoice::Auto);
    break_it(&mut plans[0]);
    audited(&own, &plans[..1])
}

/// The nodes of an operation.
fn of_op(plan: &Plan, op: Op) -> Vec<usize> {
    (0..plan.ir.nodes.len()).filter(|n| plan.ir.nodes[*n].op == op).collect()
}

/// Removes a node; readers of its output read its input instead.
fn leave_out(plan: &mut Plan, n: usize) {
    let node = plan.ir.nodes.remove(n);
    plan.phases.remove(n);
    let (from, to) = (node.inputs[0], node.outputs.first().copied());
    let ids = plan.ir.nodes.iter_mut().flat_map(|node| &mut node.inputs);
    let results = plan.ir.outputs.iter_mut().map(|(_, id)| id);
    // `SendRows` has no output. `Some` equals no `None`, so that nothing is replaced for it.
    ids.chain(results).filter(|id| Some(**id) == to).for_each(|id| *id = from);
}

fn put(plan: &mut Plan, n: usize, node: Node) {
    let phase = plan.phases[n.min(plan.phases.len() - 1)];
    plan.ir.nodes.insert(n, node);
    plan.phases.insert(n, phase);
}

#[test]
fn sums_that_are_missing_or_too_many_are_found() {
    for partition in ["tensor=2", "experts=2", "tensor=2,experts=2"] {
        let (_, plans) = of_rank(&config(), partition, 1, MlaChoice::Auto);
        let sums = of_op(&plans[0], Op::AllReduce).len();
        assert!(sums > 0, "{partition}");
        for at in 0..sums {
            let found = broken(partition, 1, |plan| {
                let n = of_op(plan, Op::AllReduce)[at];
                leave_out(plan, n);
            });
            expect(&format!("{partition} without sum {at}"), Code::A90, &found);
            let found = broken(partition, 1, |plan| {
                let n = of_op(plan, Op::AllReduce)[at];
                let again = plan.ir.nodes[n].outputs[0];
                put(plan, n + 1, Node::new(Op::AllReduce, plan.ir.nodes[n].layer, vec![again], vec![again]));
            });
            expect(&format!("{partition} with sum {at} twice"), Code::A91, &found);
        }
    }
    // Every rank holds this value complete. An all-reduce would multiply it by the number of ranks.
    let found = broken("pipeline=2", 0, |plan| {
        let norm = plan.ir.nodes.iter().position(|node| node.layer == Some(0)).unwrap();
        let (layer, whole) = (plan.ir.nodes[norm].layer, plan.ir.nodes[norm].outputs[0]);
        put(plan, norm + 1, Node::new(Op::AllReduce, layer, vec![whole], vec![whole]));
    });
    expect("an all-reduce of a value that is not a partial sum", Code::A91, &found);
}

#[test]
fn misplaced_sends_and_receives_are_found() {
    for (rank, op, count) in
        [(0, Op::SendRows, 1), (0, Op::ReceiveRows, 1), (1, Op::SendRows, 1), (1, Op::ReceiveRows, 1)]
    {
        let (_, plans) = of_rank(&config(), "pipeline=2", rank, MlaChoice::Auto);
        assert_eq!(of_op(&plans[0], op).len(), count, "rank {rank} {op:?}");
        let found = broken("pipeline=2", rank, |plan| {
            let n = of_op(plan, op)[0];
            leave_out(plan, n);
        });
        expect(&format!("rank {rank} without {op:?}"), Code::A92, &found);
        let found = broken("pipeline=2", rank, |plan| {
            let n = of_op(plan, op)[0];
            let node = plan.ir.nodes.remove(n);
            let phase = plan.phases.remove(n);
            let middle = plan.ir.nodes.len() / 2;
            plan.ir.nodes.insert(middle, node);
            plan.phases.insert(middle, phase);
        });
        expect(&format!("rank {rank} with {op:?} in a layer"), Code::A92, &found);
    }
    // A rank must send its own result and not the rows that it received.
    let found = broken("pipeline=2", 1, |plan| {
        let (receives, sends) = (of_op(plan, Op::ReceiveRows)[0], of_op(plan, Op::SendRows)[0]);
        plan.ir.nodes[sends].inputs[0] = plan.ir.nodes[receives].outputs[0];
    });
    expect("sends what it received", Code::A92, &found);
    // A session without a partition must not send.
    let mut whole = AuditedSession::whole();
    let (_, id) = whole.layers[0].ir.outputs[0];
    let end = whole.layers[0].ir.nodes.len();
    put(&mut whole.layers[0], end, Node::new(Op::SendRows, None, vec![id], Vec::new()));
    expect("one host sends", Code::A92, &whole.audit());
}
