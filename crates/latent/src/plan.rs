//! The plan of a step as text and data, and with the feature `drawing` as a picture.

use crate::error::{Error, ErrorKind};
use crate::model::Model;
use latent_engine::EngineOptions;
#[cfg(feature = "drawing")]
use latent_graph::GraphError;
use latent_graph::circuit::Circuit;
use latent_graph::ir::{Ir, ModelSpan};
use latent_graph::passes::BatchBucket;
#[cfg(feature = "drawing")]
use latent_graph::passes::CacheForm;
use latent_graph::{CheckpointTensors, Plan, PlanOptions};
#[cfg(feature = "drawing")]
use latent_viz::{Drawing, DrawingView, InitialView, Options, PageOptions, bucket_key};
use serde_json::Value;

/// The plan of a step of some rows.
pub struct PlanView {
    plan: Plan,
    #[cfg(feature = "drawing")]
    drawing: PlanDrawing,
}

/// Creates the drawing, and identifies the view of this plan.
#[cfg(feature = "drawing")]
struct PlanDrawing {
    make: Box<dyn Fn() -> Result<Drawing, GraphError> + Send + Sync>,
    formulation: &'static str,
    bucket: &'static str,
}

/// An operation of a plan.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PlannedOperation {
    /// The name of the operation in the IR.
    pub op: &'static str,
    /// The layer. `None` outside of layers.
    pub layer: Option<usize>,
    /// The phase, counted from 0.
    pub phase: usize,
    /// The kernels.
    pub kernels: Vec<String>,
    /// The weights: slot, and type with shape.
    pub weights: Vec<(String, String)>,
}

impl Model {
    /// The plan of a step of `rows` tokens.
    ///
    /// # Errors
    /// If `rows` is 0 or exceeds the maximum batch size.
    pub fn plan(&self, rows: usize) -> Result<PlanView, Error> {
        let inner = &self.inner;
        let most = inner.max_batch_tokens;
        if !(1..=most).contains(&rows) {
            return Err(Error::argument_named("rows", format!("rows {rows}: expected 1 to {most}")));
        }
        let (config, engine): (_, &EngineOptions) = (&inner.config, &inner.options.engine);
        let target = engine.target(&*self.backend()?);
        let circuit = Circuit::named(&config.circuit)?;
        let tensors = CheckpointTensors(&inner.checkpoint);
        // The MTP layer has plans of its own.
        let span = ModelSpan { embed: true, layers: 0..config.layers, head: true, mtp: false };
        let ir = Ir::build_with(circuit, config, &span, &tensors)?;
        let bucket = BatchBucket::of(rows);
        let (bind, max_batch_tokens) = (inner.bind, most);
        let options =
            PlanOptions { span, bucket, max_batch_tokens, mla: engine.mla, form: engine.form, bind };
        let plan = Plan::from_ir(ir, config, &target, &options)?;
        #[cfg(feature = "drawing")]
        let drawing = {
            let (checkpoint, config) = (std::sync::Arc::clone(&inner.checkpoint), config.clone());
            let layers = 0..config.layers;
            let options =
                Options { bind, max_batch_tokens, layers, mtp: false, assumed: None, kernels: true };
            // Made on request, since a drawing has the views of all formulations and batch sizes.
            let make =
                move || Drawing::make(circuit, &config, &CheckpointTensors(&checkpoint), &target, &options);
            let formulation = match engine.form {
                CacheForm::Expanded => "expanded",
                CacheForm::Latent => engine.mla.name(),
            };
            PlanDrawing { make: Box::new(make), formulation, bucket: bucket_key(bucket) }
        };
        Ok(PlanView {
            plan,
            #[cfg(feature = "drawing")]
            drawing,
        })
    }
}

impl PlanView {
    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The IR that the plan was made from, after all passes.
    pub fn ir(&self) -> &Ir {
        &self.plan.ir
    }

    /// The plan as text: one line per operation.
    pub fn text(&self) -> String {
        self.plan.to_text()
    }

    /// The plan as JSON, as printed by `latent graph plan --json`.
    ///
    /// # Errors
    /// If JSON cannot represent a number, which plans do not contain.
    pub fn to_json(&self) -> Result<Value, Error> {
        serde_json::to_value(&self.plan).map_err(unwritable)
    }

    /// Number of phases.
    pub fn phases(&self) -> usize {
        self.plan.phase_count()
    }

    /// Size of the arena of intermediate values, in bytes.
    pub fn arena_bytes(&self) -> usize {
        self.plan.arena.bytes
    }

    /// The operations, in order.
    pub fn operations(&self) -> Vec<PlannedOperation> {
        let nodes = self.plan.ir.nodes.iter().zip(&self.plan.phases);
        let operation = |(node, phase): (&latent_graph::ir::Node, &usize)| PlannedOperation {
            op: node.op.word(),
            layer: node.layer,
            phase: *phase,
            kernels: node.kernels.iter().map(|kernel| kernel.name.clone()).collect(),
            weights: node
                .weights
                .iter()
                .map(|(slot, id)| {
                    let weight = self.plan.ir.weight(*id);
                    (slot.as_str().to_owned(), format!("{} {:?}", weight.ty, weight.shape))
                })
                .collect(),
        };
        nodes.map(operation).collect()
    }
}

#[cfg(feature = "drawing")]
impl PlanView {
    /// The drawing as SVG.
    ///
    /// # Errors
    /// If the drawing has no view of this plan, which does not happen.
    pub fn svg(&self) -> Result<String, Error> {
        let PlanDrawing { make, formulation, bucket } = &self.drawing;
        let drawing = make()?;
        let view: Option<&DrawingView> = drawing.view("plan", formulation, bucket);
        let view = view.ok_or_else(|| {
            Error::new(ErrorKind::Engine, format!("the drawing has no plan for {formulation} {bucket}"))
        })?;
        Ok(drawing.svg(view))
    }

    /// The page of `latent graph --html`: a self-contained file.
    ///
    /// # Errors
    /// If JSON cannot represent a number, which drawings do not contain.
    pub fn html(&self) -> Result<String, Error> {
        let PlanDrawing { make, formulation, bucket } = &self.drawing;
        let wanted = InitialView {
            stage: "plan".into(),
            formulation: (*formulation).into(),
            bucket: (*bucket).into(),
        };
        make()?.page(&PageOptions { wanted, ..PageOptions::default() }).map_err(unwritable)
    }
}

fn unwritable(error: serde_json::Error) -> Error {
    Error::new(ErrorKind::Engine, error.to_string())
}
