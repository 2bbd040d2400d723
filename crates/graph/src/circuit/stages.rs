//! The stages of a circuit that a step runs.

use super::block::BlockKind;
use super::form::{Circuit, StagePart, StageSpec, StageValue};
use crate::error::{CircuitError, GraphError};
use std::collections::BTreeMap;

/// The two stages of a decoder: token ids to the residual stream through all layers, then residual stream to logits.
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
}

impl Circuit {
    /// The stages that a step runs.
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
        if let Some(stage) = rest.first() {
            return Err(self.error(CircuitError::StageNotRun { stage: stage.name.clone() }));
        }
        let before = match layers.blocks.split_last() {
            Some((StagePart::Layers, before)) => self.block_names(layers, before, BlockKind::Embed)?,
            _ => {
                return Err(self.stage(layers, "it does not end in `layers`, as the first stage must".into()));
            }
        };
        Ok(Decoder {
            tokens: self.only(layers, ("in", &layers.inputs), StageValue::Tokens)?,
            before,
            residual: self.only(layers, ("out", &layers.outputs), StageValue::Hidden)?,
            taken: self.only(head, ("in", &head.inputs), StageValue::Hidden)?,
            behind: self.block_names(head, &head.blocks, BlockKind::Head)?,
            logits: self.only(head, ("out", &head.outputs), StageValue::Logits)?,
            layers,
            head,
        })
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
