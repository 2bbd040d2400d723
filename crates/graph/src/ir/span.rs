//! Spans: the part of a model that an IR covers.

use crate::circuit::{Circuit, StageSpec};
use crate::config::ModelConfig;
use crate::error::GraphError;
use std::ops::Range;

/// The part of a model that an IR covers: consecutive parts of its stages. Rows of the residual
/// stream enter and leave at its borders.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ModelSpan {
    /// Whether it has the blocks before the layers, and so starts from token ids instead of
    /// residual rows.
    pub embed: bool,
    pub layers: Range<usize>,
    /// Whether it has the stage after the layers, and so ends in logits instead of residual rows.
    pub head: bool,
    /// Whether it belongs to the MTP layer's stages, which start from residual rows and the next
    /// token ids.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub mtp: bool,
}

/// One side of a model that is cut once, so that two backends run it one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelSide {
    /// The layers before this one.
    Before(usize),
    /// The layers from this one on, and every later stage.
    From(usize),
}

impl ModelSpan {
    /// The stages of one side of a model. The second side keeps the embedding block: a step gives
    /// it residual rows in the place of embeddings, so no other entry is needed.
    pub fn of_side<'c>(
        circuit: &'c Circuit,
        config: &ModelConfig,
        mtp: bool,
        side: ModelSide,
    ) -> Result<Vec<(&'c StageSpec, ModelSpan)>, GraphError> {
        let mut stages = ModelSpan::of_stages(circuit, config, mtp)?;
        let layers = &mut stages[0].1.layers;
        match side {
            ModelSide::From(cut) => layers.start = cut.min(layers.end),
            ModelSide::Before(cut) => {
                // The head needs rows after the last layer, so it belongs to the other side.
                layers.end = cut.min(layers.end);
                stages.truncate(1);
            }
        }
        Ok(stages)
    }

    /// The stages of a step of `circuit` and the span of each. With `mtp`, the stages of the first
    /// MTP layer follow.
    ///
    /// # Errors
    /// Stages that do not form a decoder; [`GraphError::NoMtp`] if the MTP layer is requested and
    /// the model or the circuit has none.
    pub fn of_stages<'c>(
        circuit: &'c Circuit,
        config: &ModelConfig,
        mtp: bool,
    ) -> Result<Vec<(&'c StageSpec, ModelSpan)>, GraphError> {
        let main = circuit.stage_pair(false)?;
        let mut stages =
            vec![(main.layers, ModelSpan::backbone(config)), (main.head, ModelSpan::lm_head(config))];
        if config.part.as_ref().is_some_and(|part| !part.speaks()) {
            // Logits are computed on rank 0 alone. Other ranks have no head and need no tensors for
            // it.
            stages.truncate(1);
        }
        if mtp {
            if config.mtp_layers == 0 {
                let what = "the file has no tensors of an MTP layer (such as eh_proj)".into();
                return Err(GraphError::NoMtp { what });
            }
            let mtp = circuit.stage_pair(true)?;
            stages.extend([(mtp.layers, ModelSpan::mtp(config)), (mtp.head, ModelSpan::mtp_head(config))]);
        }
        Ok(stages)
    }

    /// From tokens to the residual stream after the last layer. On a rank, its own layers only.
    pub fn backbone(config: &ModelConfig) -> ModelSpan {
        let layers = config.own_layers();
        ModelSpan { embed: layers.start == 0, layers, head: false, mtp: false }
    }

    /// From residual rows to logits.
    pub fn lm_head(config: &ModelConfig) -> ModelSpan {
        ModelSpan { embed: false, layers: config.layers..config.layers, head: true, mtp: false }
    }

    /// From residual rows after the last layer and the next tokens, to the residual stream after
    /// the first MTP layer.
    pub fn mtp(config: &ModelConfig) -> ModelSpan {
        ModelSpan { embed: true, layers: config.layers..config.layers + 1, head: false, mtp: true }
    }

    /// Both stages of the MTP layer in one span, for `latent graph` and drawings.
    pub fn whole_mtp(circuit: &Circuit, config: &ModelConfig) -> Result<ModelSpan, GraphError> {
        // Only for its errors: the model or the circuit may lack an MTP layer.
        ModelSpan::of_stages(circuit, config, true)?;
        Ok(ModelSpan { head: true, ..ModelSpan::mtp(config) })
    }

    /// From residual rows after the MTP layer to logits.
    pub fn mtp_head(config: &ModelConfig) -> ModelSpan {
        ModelSpan { embed: false, layers: config.layers + 1..config.layers + 1, head: true, mtp: true }
    }
}
