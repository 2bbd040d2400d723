//! The blocks of each layer: one attention block and one feed-forward block, by the circuit's
//! rules.

use super::block::BlockKind;
use super::form::{Circuit, LayerRule};
use super::vars::ConfigVars;
use crate::config::ModelConfig;
use crate::error::{CircuitError, GraphError};
use serde::Serialize;
use std::fmt;
use std::ops::Range;

/// The blocks of one layer, by their names in the circuit. Shown as `mla × moe`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LayerSpec {
    /// Its attention block.
    pub attention: String,
    /// Its feed-forward block.
    pub feed_forward: String,
}

/// Consecutive layers of one spec.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LayerRun {
    pub layers: Range<usize>,
    /// The blocks of each of them.
    #[serde(flatten)]
    pub spec: LayerSpec,
}

impl LayerSpec {
    /// Its blocks in the order in which they run.
    pub fn blocks(&self) -> [&str; 2] {
        [&self.attention, &self.feed_forward]
    }
}

impl fmt::Display for LayerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} × {}", self.attention, self.feed_forward)
    }
}

impl fmt::Display for LayerRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layers.len() {
            1 => write!(f, "{}: {}", self.layers.start, self.spec),
            _ => write!(f, "{}–{}: {}", self.layers.start, self.layers.end - 1, self.spec),
        }
    }
}

/// Layers with the same config variables, and therefore the same spec.
pub(crate) struct LayerGroup {
    pub(crate) layers: Vec<usize>,
    pub(crate) vars: ConfigVars,
    pub(crate) spec: LayerSpec,
}

impl Circuit {
    /// The blocks of a layer of `config`.
    ///
    /// # Errors
    /// [`CircuitError::NoLayerRule`] or [`CircuitError::TwoLayerRules`] unless exactly one rule
    /// holds per half; an unknown block or one of another kind.
    pub fn layer_spec(&self, config: &ModelConfig, layer: usize) -> Result<LayerSpec, GraphError> {
        self.spec_of(&ConfigVars::of(config, Some(layer)), layer)
    }

    /// The blocks of a layer with these variables.
    pub(crate) fn spec_of(&self, vars: &ConfigVars, layer: usize) -> Result<LayerSpec, GraphError> {
        Ok(LayerSpec {
            attention: self.half(BlockKind::Attention, &self.layers.attention, vars, layer)?,
            feed_forward: self.half(BlockKind::FeedForward, &self.layers.feed_forward, vars, layer)?,
        })
    }

    /// The block of the only rule that holds.
    fn half(
        &self,
        kind: BlockKind,
        rules: &[LayerRule],
        vars: &ConfigVars,
        layer: usize,
    ) -> Result<String, GraphError> {
        let part = kind.name();
        let mut found: Option<&LayerRule> = None;
        for rule in rules {
            if !vars.hold(&rule.when, &self.name)? {
                continue;
            }
            // Not "first rule wins": the order of rules in a file must not matter.
            if let Some(first) = found.replace(rule) {
                let (first, second) = (first.block.clone(), rule.block.clone());
                return Err(self.error(CircuitError::TwoLayerRules { part, layer, first, second }));
            }
        }
        let rule = found.ok_or_else(|| self.error(CircuitError::NoLayerRule { part, layer }))?;
        self.block(&rule.block, &[kind], format_args!("layers, {part}"))?;
        Ok(rule.block.clone())
    }

    /// Groups layers with equal variables, so that checks that depend only on these run once per
    /// group (61 layers of DeepSeek-V3 form two groups).
    pub(crate) fn layer_groups(
        &self,
        config: &ModelConfig,
        layers: Range<usize>,
    ) -> Result<Vec<LayerGroup>, GraphError> {
        let mut groups: Vec<LayerGroup> = Vec::new();
        for layer in layers {
            // Compared with the first layer of each group: groups are few, layers many.
            let same = |group: &&mut LayerGroup| ConfigVars::agree(config, group.layers[0], layer);
            if let Some(group) = groups.iter_mut().find(same) {
                group.layers.push(layer);
                continue;
            }
            let vars = ConfigVars::of(config, Some(layer));
            let spec = self.spec_of(&vars, layer)?;
            groups.push(LayerGroup { layers: vec![layer], vars, spec });
        }
        Ok(groups)
    }

    /// The blocks of each layer of `config`, including MTP layers.
    pub fn layer_specs(&self, config: &ModelConfig) -> Result<Vec<LayerSpec>, GraphError> {
        (0..config.all_layers()).map(|layer| self.layer_spec(config, layer)).collect()
    }

    /// The blocks of the layers that a step runs, with equal neighbours combined.
    pub fn layer_runs(&self, config: &ModelConfig) -> Result<Vec<LayerRun>, GraphError> {
        let mut runs: Vec<LayerRun> = Vec::new();
        for layer in 0..config.layers {
            let spec = self.layer_spec(config, layer)?;
            match runs.last_mut() {
                Some(run) if run.spec == spec => run.layers.end = layer + 1,
                _ => runs.push(LayerRun { layers: layer..layer + 1, spec }),
            }
        }
        Ok(runs)
    }
}
