//! The stages of a circuit that a step runs.

use super::block::BlockKind;
use super::form::{Circuit, StagePart, StageSpec, StageValue};
use crate::error::{CircuitError, GraphError};
use std::collections::BTreeMap;

/// The stages of a decoder: token ids to the residual stream through all layers, then residual stream to logits; behind them, in a circuit
/// that has them, those of its MTP layer.
#[derive(Clone, Debug)]
pub struct Decoder<'c> {
    /// The stage with the layers.
    pub layers: &'c StageSpec,
    /// The stage behind it.
    pub head: &'c StageSpec,
    /// What the first calls token ids.
    pub tokens: &'c str,
    /// Its blocks before the layers.
    pub before: Vec<&'c str>,
    /// What it calls the residual stream that it ends in.
    pub residual: &'c str,
    /// What the second calls the residual stream that it takes.
    pub taken: &'c str,
    /// The blocks of the second.
    pub behind: Vec<&'c str>,
    /// What it calls logits.
    pub logits: &'c str,
    /// The stages of the MTP layer.
    pub mtp: Option<MtpStages<'c>>,
}

/// The two stages of the MTP layer: rows of the residual stream with the tokens after them through one more layer, then to logits.
#[derive(Clone, Debug)]
pub struct MtpStages<'c> {
    /// The stage with the layer.
    pub layer: &'c StageSpec,
    /// The stage behind it.
    pub head: &'c StageSpec,
    /// What the first calls the rows of the residual stream that it takes.
    pub hidden: &'c str,
    /// What it calls the tokens after them.
    pub tokens: &'c str,
    /// Its blocks before the layer.
    pub before: Vec<&'c str>,
    /// What it calls the residual stream that it ends in.
    pub residual: &'c str,
    /// What the second calls the residual stream that it takes.
    pub taken: &'c str,
    /// The blocks of the second.
    pub behind: Vec<&'c str>,
    /// What it calls logits.
    pub logits: &'c str,
}

impl Circuit {
    /// The stages that a step runs, and those of the MTP layer.
    ///
    /// # Errors
    /// [`CircuitError::Stage`] for stages that are no decoder, [`CircuitError::StageNotRun`] for one more.
    pub fn decoder(&self) -> Result<Decoder<'_>, GraphError> {
        let [layers, head, rest @ ..] = &self.stages[..] else {
            let problem = format!(
                "the number of stages is {}, expected two: from tokens through the layers to hidden, and from hidden to logits",
                self.stages.len()
            );
            return Err(self.error(CircuitError::Contradiction(problem)));
        };
        let mtp = match rest {
            [] => None,
            [layer, head] if layer.blocks.contains(&StagePart::MtpLayers) => Some(self.mtp(layer, head)?),
            [stage, ..] => {
                return Err(self.error(CircuitError::StageNotRun { stage: stage.name.clone() }));
            }
        };
        Ok(Decoder {
            tokens: self.only(layers, ("in", &layers.inputs), StageValue::Tokens)?,
            before: self.before(layers, &StagePart::Layers)?,
            residual: self.only(layers, ("out", &layers.outputs), StageValue::Hidden)?,
            taken: self.only(head, ("in", &head.inputs), StageValue::Hidden)?,
            behind: self.block_names(head, &head.blocks, BlockKind::Head)?,
            logits: self.only(head, ("out", &head.outputs), StageValue::Logits)?,
            layers,
            head,
            mtp,
        })
    }

    /// The stages of the MTP layer.
    fn mtp<'c>(&self, layer: &'c StageSpec, head: &'c StageSpec) -> Result<MtpStages<'c>, GraphError> {
        let input = |wanted| {
            let mut of_kind = layer.inputs.iter().filter(|(_, value)| **value == wanted);
            match (of_kind.next(), layer.inputs.len()) {
                (Some((name, _)), 2) => Ok(name.as_str()),
                _ => {
                    let has: Vec<&str> = layer.inputs.values().map(|value| value.name()).collect();
                    let problem = format!("its `in` is {has:?}, expected hidden and tokens");
                    Err(self.stage(layer, problem))
                }
            }
        };
        Ok(MtpStages {
            hidden: input(StageValue::Hidden)?,
            tokens: input(StageValue::Tokens)?,
            before: self.before(layer, &StagePart::MtpLayers)?,
            residual: self.only(layer, ("out", &layer.outputs), StageValue::Hidden)?,
            taken: self.only(head, ("in", &head.inputs), StageValue::Hidden)?,
            behind: self.block_names(head, &head.blocks, BlockKind::Head)?,
            logits: self.only(head, ("out", &head.outputs), StageValue::Logits)?,
            layer,
            head,
        })
    }

    /// The blocks of a stage before its layers, which must be its last part.
    fn before<'c>(&self, stage: &'c StageSpec, layers: &StagePart) -> Result<Vec<&'c str>, GraphError> {
        match stage.blocks.split_last() {
            Some((last, before)) if last == layers => self.block_names(stage, before, BlockKind::Embed),
            _ => {
                let word = String::from(layers.clone());
                Err(self.stage(stage, format!("it does not end in `{word}`, as this stage must")))
            }
        }
    }

    fn stage(&self, stage: &StageSpec, problem: String) -> GraphError {
        self.error(CircuitError::Stage { stage: stage.name.clone(), problem })
    }

    /// The name of the one value on a side of a stage, which must be of this kind.
    fn only<'c>(
        &self,
        stage: &StageSpec,
        (side, values): (&str, &'c BTreeMap<String, StageValue>),
        wanted: StageValue,
    ) -> Result<&'c str, GraphError> {
        let mut of_kind = values.iter().filter(|(_, value)| **value == wanted);
        match (of_kind.next(), values.len()) {
            (Some((name, _)), 1) => Ok(name),
            _ => {
                let has: Vec<&str> = values.values().map(|value| value.name()).collect();
                let problem = format!("its `{side}` is {has:?}, expected {} alone", wanted.name());
                Err(self.stage(stage, problem))
            }
        }
    }

    /// The names of parts that must all be blocks of one kind.
    fn block_names<'c>(
        &self,
        stage: &StageSpec,
        parts: &'c [StagePart],
        kind: BlockKind,
    ) -> Result<Vec<&'c str>, GraphError> {
        let name = |part: &'c StagePart| match part {
            StagePart::Block(name) => {
                self.block(name, &[kind], format_args!("stage {}", stage.name)).map(|_| name.as_str())
            }
            other => {
                let word = String::from(other.clone());
                Err(self.stage(
                    stage,
                    format!("`{word}` has no place there, only a block of kind {}", kind.name()),
                ))
            }
        };
        parts.iter().map(name).collect()
    }
}
