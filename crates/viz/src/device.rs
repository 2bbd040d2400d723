//! Kernel calls of operations on a device.

use crate::data::OperationRun;
use latent_graph::KernelCalls;
use latent_graph::ir::{Ir, Node};
use latent_graph::passes::BatchBucket;
use std::collections::HashMap;

/// Kernel calls by node.
#[derive(Clone, Debug, Default)]
pub struct DeviceRuns {
    device: String,
    // Keyed by the node's line of text, because plans of several formulations contain the same node
    // under different indices.
    calls: HashMap<(BatchBucket, Option<usize>, String), Vec<KernelCalls>>,
}

impl DeviceRuns {
    /// An empty collection for a device of this name.
    pub fn new(device: &str) -> DeviceRuns {
        DeviceRuns { device: device.to_owned(), calls: HashMap::new() }
    }

    /// Name of the device, if any.
    pub(crate) fn device(&self) -> Option<String> {
        (!self.device.is_empty()).then(|| self.device.clone())
    }

    /// Adds the calls of a node in steps of a bucket. Plans of other formulations with the same
    /// node share them.
    pub fn add(&mut self, bucket: BatchBucket, ir: &Ir, node: &Node, calls: Vec<KernelCalls>) {
        self.calls.insert((bucket, node.layer, ir.line(node)), calls);
    }

    /// The calls of a node of a plan.
    pub fn of(&self, bucket: BatchBucket, ir: &Ir, node: &Node) -> Option<OperationRun> {
        let kernels = self.calls.get(&(bucket, node.layer, ir.line(node)))?;
        // Nodes without calls (views) have none.
        Some(OperationRun { device: self.device.clone(), kernels: kernels.clone() })
    }
}
