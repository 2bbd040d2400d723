//! The stages of a circuit that a step runs.

use super::block::BlockKind;
use super::form::{Circuit, StagePart, StageSpec, StageValue};
use crate::error::{CircuitError, GraphError};
use std::collections::BTreeMap;

/// The stages of a decoder and, if the circuit has them, those of its MTP layer.
#[derive(Clone, Debug)]
pub struct DecoderStages<'c> {
    /// Token ids to the residual stream through all layers, then residual stream to logits.
    pub main: StagePair<'c>,
    /// Rows of the residual stream and the next tokens through one more layer, then to logits.
    pub mtp: Option<StagePair<'c>>,
}

/// A stage that ends in layers, and the next stage.
#[derive(Clone, Debug)]
pub struct StagePair<'c> {
    pub layers: &'c StageSpec,
    /// The next stage.
    pub head: &'c StageSpec,
    /// Inputs of the first stage, with their names.
    pub inputs: Vec<(&'c str, StageValue)>,
    /// Blocks of the first stage before the layers.
    pub before: Vec<&'c str>,
    /// Name of the residual stream at the end of the first stage.
    pub residual: &'c str,
    /// Name of the residual stream in the second stage.
    pub head_input: &'c str,
    /// Blocks of the second stage.
    pub head_blocks: Vec<&'c str>,
    /// Name of the logits in the second stage.
    pub logits: &'c str,
}

impl StagePair<'_> {
    /// Names of the inputs of the first stage.
    pub fn input_names(&self) -> Vec<&str> {
        self.inputs.iter().map(|(name, _)| *name).collect()
    }
}

impl Circuit {
    /// The stages that a step runs, and the stages of the MTP layer.
    ///
    /// # Errors
    /// [`CircuitError::Stage`] if the stages do not form a decoder.
    /// [`CircuitError::StageNotRun`] if an extra stage follows them.
    pub fn decoder(&self) -> Result<DecoderStages<'_>, GraphError> {
        // The engine runs exactly these two stages, and two more for drafts. The form allows
        // others, such as image encoders, for later.
        let [layers, head, rest @ ..] = &self.stages[..] else {
            let problem = format!(
                "the number of stages is {}, expected two: from tokens through the layers to hidden, and from hidden to logits",
                self.stages.len()
            );
            return Err(self.error(CircuitError::Contradiction(problem)));
        };
        let mtp = match rest {
            [] => None,
            [layer, head] if layer.blocks.contains(&StagePart::MtpLayers) => {
                let inputs = &[StageValue::Hidden, StageValue::Tokens];
                Some(self.pair(layer, head, inputs, &StagePart::MtpLayers)?)
            }
            [stage, ..] => {
                return Err(self.error(CircuitError::StageNotRun { stage: stage.name.clone() }));
            }
        };
        Ok(DecoderStages { main: self.pair(layers, head, &[StageValue::Tokens], &StagePart::Layers)?, mtp })
    }

    /// The decoder's own stages, or those of its MTP layer.
    ///
    /// # Errors
    /// As for [`decoder`](Self::decoder); [`GraphError::NoMtp`] for a circuit without an MTP layer.
    pub fn stage_pair(&self, mtp: bool) -> Result<StagePair<'_>, GraphError> {
        let decoder = self.decoder()?;
        if !mtp {
            return Ok(decoder.main);
        }
        let lacks = || format!("circuit {} has no stages of an MTP layer", self.name);
        decoder.mtp.ok_or_else(|| GraphError::NoMtp { what: lacks() })
    }

    fn pair<'c>(
        &self,
        layers: &'c StageSpec,
        head: &'c StageSpec,
        inputs: &[StageValue],
        part: &StagePart,
    ) -> Result<StagePair<'c>, GraphError> {
        let names = self.value_names(layers, ("in", &layers.inputs), inputs)?;
        let only =
            |stage: &StageSpec, side, value| self.value_names(stage, side, &[value]).map(|names| names[0]);
        Ok(StagePair {
            inputs: names.into_iter().zip(inputs.iter().copied()).collect(),
            before: self.before(layers, part)?,
            residual: only(layers, ("out", &layers.outputs), StageValue::Hidden)?,
            head_input: only(head, ("in", &head.inputs), StageValue::Hidden)?,
            head_blocks: self.block_names(head, &head.blocks, BlockKind::Head)?,
            logits: only(head, ("out", &head.outputs), StageValue::Logits)?,
            layers,
            head,
        })
    }

    /// The blocks of a stage before its layers. The layers must be its last part.
    fn before<'c>(&self, stage: &'c StageSpec, layers: &StagePart) -> Result<Vec<&'c str>, GraphError> {
        match stage.blocks.split_last() {
            Some((last, before)) if last == layers => self.block_names(stage, before, BlockKind::Embed),
            _ => {
                let word = String::from(layers.clone());
                Err(self.stage(stage, format!("this stage must end in `{word}`")))
            }
        }
    }

    fn stage(&self, stage: &StageSpec, problem: String) -> GraphError {
        self.error(CircuitError::Stage { stage: stage.name.clone(), problem })
    }

    /// The names of the values on one side of a stage, which must be exactly one of each of these
    /// kinds.
    fn value_names<'c>(
        &self,
        stage: &StageSpec,
        (side, values): (&str, &'c BTreeMap<String, StageValue>),
        wanted: &[StageValue],
    ) -> Result<Vec<&'c str>, GraphError> {
        let of_kind = |kind| values.iter().find(|(_, value)| *value == kind).map(|(name, _)| name.as_str());
        let names: Option<Vec<&str>> = wanted.iter().map(of_kind).collect();
        // No further values: nothing would fill or read them.
        names.filter(|names| names.len() == values.len()).ok_or_else(|| {
            let has: Vec<&str> = values.values().map(|value| value.name()).collect();
            let wanted: Vec<&str> = wanted.iter().map(|value| value.name()).collect();
            let alone = if wanted.len() == 1 { " alone" } else { "" };
            let problem = format!("its `{side}` is {has:?}, expected {}{alone}", wanted.join(" and "));
            self.stage(stage, problem)
        })
    }

    /// The names of parts, which must all be blocks of one kind.
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
                    format!("`{word}` is not allowed there, expected a block of kind {}", kind.name()),
                ))
            }
        };
        parts.iter().map(name).collect()
    }
}
