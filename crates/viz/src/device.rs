//! Kernel calls of operations on a device.

use crate::data::OperationRun;
use latent_graph::KernelCalls;
use latent_graph::ir::{Ir, Node};
use latent_graph::passes::BatchBucket;
use std::collections::HashMap;

/// The calls of plans' nodes.
#[derive(Clone, Debug, Default)]
pub struct DeviceRuns {
    device: String,
    calls: HashMap<(BatchBucket, Option<usize>, String), Vec<KernelCalls>>,
}

impl DeviceRuns {
    /// None yet, on a device of this name.
    pub fn new(device: &str) -> DeviceRuns {
        DeviceRuns { device: device.to_owned(), calls: HashMap::new() }
    }

    /// The device, if there is one.
    pub(crate) fn device(&self) -> Option<String> {
        (!self.device.is_empty()).then(|| self.device.clone())
    }

    /// Adds the calls of a node in steps of a bucket. Plans of other formulations that have the same node share them.
    pub fn add(&mut self, bucket: BatchBucket, ir: &Ir, node: &Node, calls: Vec<KernelCalls>) {
        self.calls.insert((bucket, node.layer, ir.line(node)), calls);
    }

    /// What a node of a plan becomes.
    pub fn of(&self, bucket: BatchBucket, ir: &Ir, node: &Node) -> Option<OperationRun> {
        let kernels = self.calls.get(&(bucket, node.layer, ir.line(node)))?;
        Some(OperationRun { device: self.device.clone(), kernels: kernels.clone() })
    }
}
